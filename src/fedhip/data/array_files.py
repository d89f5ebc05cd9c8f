"""Named arrays in `.npz` and `.safetensors` files, read without pickle, with labels and names as strings."""

import json
import math
import struct
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from safetensors import SafetensorError, safe_open

from fedhip.errors import DataMissingError, FileError, InputError

Arrays = dict[str, NDArray[Any]]
#: Features of so many bytes stay in their file, of which as much is in memory as the system finds room for.
MAPPED = 2**28
_CHECKED = 2**24
_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_KNOWN = {"features", "images", "labels", "clients", "split", "class_names", "groups", "weights"}
#: RuntimeError: a way of compression that there is not, or a password; TokenError: a header that is no Python.
_UNREADABLE = (
    *(OSError, EOFError, ValueError, KeyError, RuntimeError, SyntaxError),
    *(zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError, SafetensorError),
)


def read_arrays(path: Path) -> Arrays:
    """The arrays of an `.npz` or `.safetensors` file, with names from the metadata put back as strings."""
    if path.is_dir():
        raise InputError(f"{path} is a folder; give the name of a file")
    if not path.is_file():
        raise DataMissingError(f"{path} is not there; check the path, or write the file first")
    if path.suffix not in (".npz", ".safetensors"):
        raise InputError(f"{path}: a feature file ends in .npz or .safetensors, not '{path.suffix}'")
    try:
        return _read_npz(path) if path.suffix == ".npz" else _read_safetensors(path)
    except InputError:
        raise
    except _UNREADABLE as error:
        raise FileError(
            f"{path} cannot be read as {path.suffix} ({error}); it is truncated or of another kind: write it again"
        ) from error
    except MemoryError as error:
        raise InputError(
            f"{path} does not fit in memory ({error}); write it with fewer rows, or write it again if it is damaged"
        ) from error


def _read_npz(path: Path) -> Arrays:
    with path.open("rb") as stream:
        file = np.load(stream, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile) or file.zip is None:
            raise InputError(f"{path} is a single array; save named arrays with numpy.savez")
        arrays: Arrays = {}
        for name in set(file.files) & _KNOWN:
            _check_size(path, file.zip, name)
            try:
                mapped = _mapped(path, file.zip, name) if name == "features" else None
                arrays[name] = file[name] if mapped is None else mapped
            except ValueError as error:
                if "allow_pickle" not in str(error):
                    raise
                as_numbers = "features.toarray() of a sparse matrix, else numpy.asarray(features, dtype=float)"
                repair = as_numbers if name == "features" else f"numpy.asarray({name}, dtype=str)"
                raise InputError(f"{path}: '{name}' holds Python objects; save {repair}") from error
        return arrays


def _mapped(path: Path, archive: zipfile.ZipFile, name: str) -> NDArray[Any] | None:
    """A large array where it lies in the file, read as it is used; None of a small one, or of one that is compressed.

    Its bytes are checked once, as they are when an array is read.
    """
    member = archive.getinfo(name if name in archive.namelist() else f"{name}.npy")
    if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1 or member.file_size < MAPPED:
        return None
    with path.open("rb") as file:
        file.seek(member.header_offset)
        fields = struct.unpack("<4s22xHH", file.read(30))
        start = member.header_offset + 30 + fields[1] + fields[2]
        file.seek(start)
        found, left = 0, member.file_size
        while left and (part := file.read(min(left, _CHECKED))):
            found, left = zlib.crc32(part, found), left - len(part)
        if left or found != member.CRC:
            raise zipfile.BadZipFile(f"bad CRC-32 for '{name}'")
        file.seek(start)
        version = np.lib.format.read_magic(file)
        if version not in _READERS:
            return None
        shape, by_column, dtype = _READERS[version](file)
        if dtype.hasobject:
            return None
        return np.memmap(path, dtype, "r", file.tell(), shape, "F" if by_column else "C")


def names_in(path: Path) -> list[str]:
    """The names of all arrays of a file that `read_arrays` has read, those that mean nothing here too."""
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as npz:
            return sorted(npz.files)
    with safe_open(path, framework="np") as file:
        return sorted(file.keys())


def _check_size(path: Path, archive: zipfile.ZipFile, name: str) -> None:
    """Compare the size in an array's header with that of its bytes, before memory is taken for it."""
    member = archive.getinfo(name if name in archive.namelist() else f"{name}.npy")
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        if version not in _READERS:
            return  # structured types with names that are not latin-1: none of ours, and refused later
        shape, _, dtype = _READERS[version](file)
        stored = member.file_size - file.tell()
    if not dtype.hasobject and math.prod(shape) * dtype.itemsize != stored:
        raise InputError(
            f"{path}: the header of '{name}' claims {dtype} of shape {shape}, but {stored:,} bytes follow; "
            "it is damaged: write it again"
        )


def _read_safetensors(path: Path) -> Arrays:
    with safe_open(path, framework="np") as file:
        metadata: dict[str, str] = file.metadata() or {}
        arrays: Arrays = {name: file.get_tensor(name) for name in set(file.keys()) & _KNOWN}
    if "class_names" in metadata:
        arrays["class_names"] = _names(path, metadata, "class_names")
    for key, what in (("client_names", "clients"), ("group_names", "groups")):
        if key in metadata and what in arrays:
            names, indices = _names(path, metadata, key), arrays[what]
            if indices.dtype.kind not in "iu" or not np.isin(indices, np.arange(len(names))).all():
                raise InputError(f"{path}: {what} do not index the {len(names)} {key}")
            arrays[what] = names[indices]
    return arrays


def _names(path: Path, metadata: dict[str, str], key: str) -> NDArray[Any]:
    names = json.loads(metadata[key])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError(f"{path}: '{key}' in the metadata must be a JSON list of strings")
    return np.array(names, dtype=np.str_)


def named_labels(labels: NDArray[Any], class_names: NDArray[Any] | None) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Labels as indices and what they index: the given names, or the sorted distinct labels themselves."""
    if labels.ndim != 1 or labels.dtype.kind not in "iuUS":
        raise InputError(
            f"labels are {labels.dtype} of shape {labels.shape}; give integers or strings, one for each row"
        )
    if class_names is None:
        return encode_names(labels if labels.dtype.kind in "iu" else as_text(labels, "labels"))
    names = as_text(class_names, "class_names").tolist()
    if labels.dtype.kind in "iu":
        return labels.astype(np.int64), tuple(names)
    position = {name: i for i, name in enumerate(names)}
    labels = as_text(labels, "labels")
    unknown = sorted(set(labels.tolist()) - set(position))
    if unknown:
        raise InputError(f"label {unknown[0]!r} is not among the {len(names)} class_names; add it")
    return np.array([position[label] for label in labels.tolist()], dtype=np.int64), tuple(names)


def named_targets(labels: ArrayLike, names: NDArray[Any] | None) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """Real targets (N, t) and their names; without any, "target", or "target 1" and so on."""
    values = np.asarray(labels)
    values = values[:, None] if values.ndim == 1 else values
    if values.ndim != 2 or values.dtype.kind not in "fiub" or 0 in values.shape:
        raise InputError(
            f"targets are {values.dtype} of shape {values.shape}; give real numbers, one for each row or a column for "
            "each target"
        )
    t = values.shape[1]
    if names is None:
        return values.astype(np.float64), ("target",) if t == 1 else tuple(f"target {i + 1}" for i in range(t))
    target_names = tuple(as_text(np.atleast_1d(names), "class_names").tolist())
    if len(target_names) != t:
        raise InputError(f"there are {t} targets and {len(target_names)} names of them; give one for each")
    return values.astype(np.float64), target_names


def as_text(values: NDArray[Any], name: str) -> NDArray[np.str_]:
    """Integers or strings as strings; bytes are read as UTF-8."""
    if values.ndim != 1 or values.dtype.kind not in "iuUS":
        raise InputError(
            f"{name} are {values.dtype} of shape {values.shape}; give integers or strings in one dimension"
        )
    if values.dtype.kind == "S":
        try:
            return np.char.decode(values, "utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{name} are not UTF-8 ({error}); save them as strings") from error
    return values.astype(np.str_, copy=False)


def encode_names(values: ArrayLike) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Whole numbers or strings as indices into their sorted distinct values, and those values as names."""
    array = np.asarray(values)
    # Rows of one client mostly stand together: one of each stretch is sorted.
    heads = np.flatnonzero(np.concatenate(([True], array[1:] != array[:-1]))[: len(array)])
    names, indices = np.unique(array[heads], return_inverse=True)
    lengths = np.diff(np.append(heads, len(array)))
    return np.repeat(indices.astype(np.int64), lengths), tuple(str(name) for name in names)
