"""Data sets, feature files, and partitions of both among clients."""

from fedhip.data.feature_files import FeatureSet, feature_set, read_features, write_features
from fedhip.data.federations import FEDERATIONS, load_federation
from fedhip.data.images.files import image_files, is_image_name
from fedhip.data.images.window import Window
from fedhip.data.partitions.manifest import load_partition, save_partition
from fedhip.data.partitions.partition import (
    DEFAULT_CLIENTS,
    Partition,
    client_parts,
    divide_rows,
    list_partitions,
    make_partition,
    split_clients,
    split_of,
)
from fedhip.data.partitions.picture import draw_partition
from fedhip.data.partitions.styles import Style, draw_styles, styled
from fedhip.data.sets.dataset import Dataset, ImagePaths
from fedhip.data.sets.registry import DatasetInfo, list_datasets, load_dataset

__all__ = [
    "DEFAULT_CLIENTS",
    "FEDERATIONS",
    "Dataset",
    "DatasetInfo",
    "FeatureSet",
    "ImagePaths",
    "Partition",
    "Style",
    "Window",
    "client_parts",
    "divide_rows",
    "draw_partition",
    "draw_styles",
    "feature_set",
    "image_files",
    "is_image_name",
    "list_datasets",
    "list_partitions",
    "load_dataset",
    "load_federation",
    "load_partition",
    "make_partition",
    "read_features",
    "save_partition",
    "split_clients",
    "split_of",
    "styled",
    "write_features",
]
