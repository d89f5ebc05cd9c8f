"""Which data sets are known by name, and what a path may be: `load_dataset`."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedhip.data.array_files import as_text, named_labels, names_in, read_arrays
from fedhip.data.federations import FEDERATIONS
from fedhip.data.images.window import Window
from fedhip.data.sets.cifar import load_cifar100
from fedhip.data.sets.dataset import Dataset
from fedhip.data.sets.folders import load_folder, load_imagenet_r
from fedhip.data.tables.reader import is_table
from fedhip.errors import InputError
from fedhip.utils.nearest import did_you_mean

SKETCHES = Path(__file__).parent / "sketches" / "sketches.npz"


@dataclass(frozen=True)
class DatasetInfo:
    """One line of the list of data sets."""

    name: str
    description: str


_NAMED = (
    DatasetInfo("sketches", "100 classes × 100 drawings from Quick, Draw! (Google, CC BY 4.0), in the package"),
    DatasetInfo("cifar100", "CIFAR-100, 60,000 photographs of 32×32; from a folder, or downloaded (169 MB)"),
    DatasetInfo("imagenet-r", "ImageNet-R, 30,000 renditions in 200 classes; from a folder"),
)


def list_datasets() -> tuple[DatasetInfo, ...]:
    """The data sets that are known by name, to `load_dataset` (images) and `load_federation`; others go by path."""
    return (*_NAMED, *(DatasetInfo(name, found.description) for name, found in FEDERATIONS.items()))


def load_dataset(
    source: str | Path,
    data_dir: str | Path | None = None,
    *,
    official_split: bool = False,
    skip_corrupt: bool = False,
    allow_single: bool = False,
    cache_dir: str | Path | None = None,
    window: Window | tuple[float, float] | None = None,
) -> Dataset:
    """Load a data set by name, or an image folder or an .npz of images by path.

    A name wins over a path: write './sketches' for a folder of that name. `data_dir` is where the files of a
    named set lie. `official_split` keeps the published split into training and test rows; without it they are
    pooled. `skip_corrupt` leaves out images that cannot be decoded, with a warning. A class with a single
    image cannot be both trained on and tested: it is an error unless `allow_single`. A class name without any
    image is kept: it is a class that never occurs.

    `window` says which values of images of more than 8 bits become 0 and 255; by default the range of the bits that
    they use (`data.window` is what was taken). Images of 8 bits stay as they are.
    """
    window = Window(*window) if isinstance(window, tuple) else window
    data = None if data_dir is None else Path(data_dir)
    path = Path(source)
    if isinstance(source, str) and source in FEDERATIONS:
        raise InputError(
            f"{source} has no images: fedhip run --dataset {source} takes it, and fedhip.data.load_federation in Python"
        )
    if source == "sketches":
        dataset = load_npz(SKETCHES, name="sketches")
    elif source == "cifar100":
        dataset = load_cifar100(data, None if cache_dir is None else Path(cache_dir), official_split)
    elif source == "imagenet-r":
        dataset = load_imagenet_r(data, skip_corrupt=skip_corrupt)
    elif path.is_dir():
        dataset = load_folder(path, skip_corrupt=skip_corrupt, window=window)
    elif path.suffix == ".npz":
        dataset = load_npz(path)
    else:
        raise InputError(_unknown(str(source)))
    if official_split and dataset.split is None:
        raise InputError(
            f"{dataset.name} has no official split; leave official_split (--official-split on the command line) out"
        )
    if not allow_single:
        _refuse_single(dataset)
    return dataset


def load_npz(path: Path, name: str | None = None) -> Dataset:
    """An .npz with uint8 `images`; labels, class names, clients and split as in a feature file."""
    try:
        arrays = read_arrays(path)
        for key in ("images", "labels"):
            if key not in arrays:
                hint = "; it holds features: read it as a feature file" if "features" in arrays else ""
                raise InputError(f"{path} has no array '{key}', only {names_in(path)}{hint or '; add it'}")
        labels, class_names = named_labels(arrays["labels"], arrays.get("class_names"))
        clients = arrays.get("clients")
        return Dataset(
            name=name or path.stem,
            images=arrays["images"],
            labels=labels,
            class_names=class_names,
            clients=None if clients is None else as_text(clients, "clients"),
            split=arrays.get("split"),
            groups=None if arrays.get("groups") is None else as_text(arrays["groups"], "groups"),
        )
    except InputError as error:
        raise InputError(str(error) if str(path) in str(error) else f"{path}: {error}") from error


def _refuse_single(dataset: Dataset) -> None:
    counts = np.bincount(dataset.labels, minlength=dataset.num_classes)
    single = np.flatnonzero(counts == 1)
    if single.size:
        more = f", and so have {single.size - 1} other classes" if single.size > 1 else ""
        raise InputError(
            f"class '{dataset.class_names[single[0]]}' of {dataset.name} has 1 image{more}; add images, remove the "
            "class, or allow it with allow_single=True (--allow-single on the command line)"
        )


def _unknown(source: str) -> str:
    names = [info.name for info in list_datasets()]
    if source in names:
        return f"there is no folder or file '{source}'; the data set of that name is the string (--dataset {source})"
    if is_table(Path(source)) and Path(source).is_file():
        return f"{source} is a table, and images are needed: a folder class/image, or an .npz file of them"
    guess = did_you_mean(source, names)
    return f"'{source}' is neither a data set ({', '.join(names)}) nor an image folder nor an .npz file{guess}"
