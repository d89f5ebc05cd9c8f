"""Data sets, feature files and partitions of both among clients."""

from fedhip.data.dataset import Dataset, ImagePaths
from fedhip.data.feature_files import FeatureSet, read_features, write_features
from fedhip.data.registry import DatasetInfo, list_datasets, load_dataset

__all__ = [
    "Dataset",
    "DatasetInfo",
    "FeatureSet",
    "ImagePaths",
    "list_datasets",
    "load_dataset",
    "read_features",
    "write_features",
]
