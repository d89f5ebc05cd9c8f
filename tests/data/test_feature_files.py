import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from scipy.sparse import csr_matrix

from fedhip.data import FeatureSet, array_files, read_features, write_features
from fedhip.errors import DataMissingError, FileError, InputError

X = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
Y = np.array([0, 2, 1, 0])


def npz(path: Path, **arrays: Any) -> Path:
    np.savez(path, **{"features": X, "labels": Y, **arrays})
    return path


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("full", [False, True])
def test_what_is_written_is_read(tmp_path: Path, suffix: str, dtype: type, full: bool) -> None:
    extra: dict[str, Any] = {}
    if full:
        extra = {"clients": np.array(["Köln", "a", "b", "a"]), "split": np.array([0, 1, 0, 0])}
    written = FeatureSet(X.astype(dtype), Y, ("x", "y", "z"), **extra)
    write_features(tmp_path / f"f{suffix}", written)
    found = read_features(tmp_path / f"f{suffix}")
    assert found.fingerprint == written.fingerprint
    assert found.features.dtype == dtype
    np.testing.assert_array_equal(found.features, written.features)
    np.testing.assert_array_equal(found.labels, Y)
    assert found.class_names == ("x", "y", "z")
    if full:
        assert found.clients is not None
        assert found.clients.tolist() == ["Köln", "a", "b", "a"]
        assert found.split is not None
        assert found.split.tolist() == [0, 1, 0, 0]
    else:
        assert found.clients is None
        assert found.split is None
    assert [p.name for p in tmp_path.iterdir()] == [f"f{suffix}"]


def test_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f.npz"
    write_features(path, FeatureSet(X, Y, ("x", "y", "z")))
    before = path.read_bytes()

    def full_disk(file: Any, **_: Any) -> None:
        file.write(b"the first half")
        raise OSError("No space left on device")

    monkeypatch.setattr(np, "savez", full_disk)
    with pytest.raises(OSError, match="No space"):
        write_features(path, FeatureSet(X * 2, Y, ("x", "y", "z")))
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["f.npz"]


def test_labels_as_strings_bytes_or_any_integers(tmp_path: Path) -> None:
    for labels, names in (
        (["dog", "cat", "dog", "eel"], ("cat", "dog", "eel")),
        (np.array([b"dog", b"cat", b"dog", b"eel"]), ("cat", "dog", "eel")),
        ([7, -3, 7, 100], ("-3", "7", "100")),
    ):
        found = read_features(npz(tmp_path / "f.npz", labels=np.asarray(labels)))
        assert found.labels.tolist() == [1, 0, 1, 2]
        assert found.class_names == names


def test_class_names_say_what_labels_mean(tmp_path: Path) -> None:
    names = np.array(["z", "y", "x", "never seen"])
    found = read_features(npz(tmp_path / "f.npz", class_names=names))
    assert (found.class_names, found.labels.tolist()) == (("z", "y", "x", "never seen"), [0, 2, 1, 0])
    found = read_features(npz(tmp_path / "f.npz", class_names=names, labels=np.array(["x", "y", "x", "z"])))
    assert found.labels.tolist() == [2, 1, 2, 0]


def test_safetensors_of_others_needs_no_metadata(tmp_path: Path) -> None:
    save_file({"features": X, "labels": Y, "clients": np.array([3, 3, 10, 3])}, tmp_path / "f.safetensors")
    found = read_features(tmp_path / "f.safetensors")
    assert found.class_names == ("0", "1", "2")
    assert found.clients is not None
    assert found.clients.tolist() == ["3", "3", "10", "3"]


def test_integer_features_become_floats(tmp_path: Path) -> None:
    found = read_features(npz(tmp_path / "f.npz", features=np.arange(12).reshape(4, 3)))
    assert found.features.dtype == np.float64


@pytest.mark.parametrize(
    ("stored", "held"),
    [(">f2", "=f2"), (">f4", "=f4"), (">f8", "=f8"), ("g", "=f8"), (">g", "=f8"), (">i2", "=f4"), (">i4", "=f8")],
)
def test_features_are_floats_of_this_machine(tmp_path: Path, stored: str, held: str) -> None:
    values = np.arange(12).reshape(4, 3).astype(stored)
    found = read_features(npz(tmp_path / "f.npz", features=values)).features
    assert found.dtype.str == np.dtype(held).str
    np.testing.assert_array_equal(found, values)
    torch.from_numpy(found.copy())


def test_number_beyond_float64_is_refused() -> None:
    if np.finfo(np.longdouble).max == np.finfo(np.float64).max:
        pytest.skip("extended precision is float64 here")
    with pytest.raises(InputError, match="row 0 hold NaN or infinity"):
        FeatureSet(np.full((1, 1), np.finfo(np.longdouble).max), np.array([0]), ("a",))


def with_header(path: Path, shape: tuple[int, ...]) -> Path:
    """Features of four rows whose header claims another shape."""
    header, arrays = io.BytesIO(), io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": shape})
    np.save(arrays, Y)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("features.npy", header.getvalue() + X.tobytes())
        archive.writestr("labels.npy", arrays.getvalue())
    return path


@pytest.mark.parametrize("shape", [(10**9, 10**6), (2**62, 2**62), (4, 4), (4, 2)])
def test_header_that_claims_another_size(tmp_path: Path, shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"f\.npz: the header of 'features' claims .* but 48 bytes follow"):
        read_features(with_header(tmp_path / "f.npz", shape))


def test_file_that_does_not_fit_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: Any, **__: Any) -> None:
        raise MemoryError("Unable to allocate 9 PiB")

    path = npz(tmp_path / "f.npz")
    monkeypatch.setattr(np.lib.npyio.NpzFile, "__getitem__", no_memory)
    with pytest.raises(InputError, match=r"f\.npz does not fit in memory \(Unable to allocate 9 PiB\)"):
        read_features(path)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"features": X[0]}, r"shape \(3,\)"),
        ({"features": X[:, :0]}, r"shape \(4, 0\)"),
        ({"features": X[:3]}, r"labels have shape \(4,\), but there are 3 rows"),
        ({"features": X.astype(complex)}, "complex"),
        ({"features": np.where(np.arange(4)[:, None] == 2, np.nan, X)}, "row 2 hold NaN or infinity; remove this row"),
        (
            {"features": np.where(np.arange(X.shape[1]) == 1, np.nan, X)},
            "column 1 of the features holds NaN or infinity in 4 of 4 rows, first in row 0; remove the column",
        ),
        ({"features": np.where(np.arange(4)[:, None] > 1, np.inf, X)}, "row 2 .* 1 other row; remove these rows"),
        ({"features": np.where(np.arange(4)[:, None] > 0, np.inf, X)}, "row 1 .* 2 other rows"),
        ({"features": X[:0], "labels": Y[:0]}, r"shape \(0, 3\)"),
        ({"labels": Y / 1}, "labels are float64"),
        ({"labels": Y > 0}, "labels are bool"),
        ({"labels": Y[:, None]}, r"labels are int64 of shape \(4, 1\)"),
        (
            {"labels": np.array([{}, 1, 2, 3], dtype=object)},
            r"'labels' holds Python objects.*asarray\(labels, dtype=str",
        ),
        (
            {"features": np.array(csr_matrix(X), dtype=object)},
            r"'features' holds Python objects; save features\.toarray",
        ),
        ({"class_names": np.array(["a", "b"])}, "labels run from 0 to 2, but there are 2 class names"),
        ({"class_names": np.array(["a"]), "labels": np.array(list("abab"))}, "label 'b' is not among"),
        ({"clients": np.array([0.5] * 4)}, "clients are float64"),
        ({"clients": np.array([b"\xff"] * 4)}, "clients are not UTF-8"),
        ({"split": np.array([0, 1, 2, 0])}, r"split holds \[0, 1, 2\]"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, str) else "",
)
def test_bad_arrays_are_named_with_their_file(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=rf"mine\.npz: .*{message}"):
        read_features(npz(tmp_path / "mine.npz", **arrays))


def test_missing_file_and_missing_array(tmp_path: Path) -> None:
    with pytest.raises(DataMissingError, match=r"nowhere\.npz is not there"):
        read_features(tmp_path / "nowhere.npz")
    np.savez(tmp_path / "f.npz", features=X)
    with pytest.raises(InputError, match=r"f\.npz has no array 'labels', only \['features'\]"):
        read_features(tmp_path / "f.npz")
    np.savez(tmp_path / "f.npz", X=X, y=Y)
    with pytest.raises(InputError, match=r"no array 'features', only \['X', 'y'\]; a feature file holds 'features'"):
        read_features(tmp_path / "f.npz")
    save_file({"X": X}, tmp_path / "f.safetensors")
    with pytest.raises(InputError, match=r"no array 'features', only \['X'\]"):
        read_features(tmp_path / "f.safetensors")
    np.savez(tmp_path / "f.npz", images=X, labels=Y)
    with pytest.raises(InputError, match="holds images"):
        read_features(tmp_path / "f.npz")


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_truncated_file_is_named(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"f{suffix}"
    write_features(path, FeatureSet(X, Y, ("x", "y", "z")))
    whole = path.read_bytes()
    for keep in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:keep])
        with pytest.raises(FileError, match=rf"f{suffix} cannot be read"):
            read_features(path)


@pytest.mark.parametrize(("at", "value"), [(10, 97), (8, 1)])
def test_a_way_of_compression_or_a_password_that_nobody_has(tmp_path: Path, at: int, value: int) -> None:
    """One byte of the zip's directory and of its entry: the kind of compression, or the flag of a password."""
    path = tmp_path / "f.npz"
    write_features(path, FeatureSet(X, Y, ("x", "y", "z")))
    content = bytearray(path.read_bytes())
    for head, offset in ((b"PK\x01\x02", at), (b"PK\x03\x04", at - 2)):
        place = -1
        while (place := content.find(head, place + 1)) >= 0:
            content[place + offset] = value
    path.write_bytes(content)
    with pytest.raises(FileError, match=r"cannot be read as \.npz"):
        read_features(path)


def test_pickle_in_npz_clothing_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "f.npz").write_bytes(pickle.dumps({"features": 1}))
    with pytest.raises(FileError, match="cannot be read"):
        read_features(tmp_path / "f.npz")


def test_single_array_in_npz_clothing(tmp_path: Path) -> None:
    with (tmp_path / "f.npz").open("wb") as file:
        np.save(file, X)
    with pytest.raises(InputError, match="single array"):
        read_features(tmp_path / "f.npz")


def test_unknown_suffix(tmp_path: Path) -> None:
    (tmp_path / "f.csv").touch()
    with pytest.raises(InputError, match=r"not '\.csv'"):
        read_features(tmp_path / "f.csv")
    with pytest.raises(InputError, match=r"not '\.csv'"):
        write_features(tmp_path / "g.csv", FeatureSet(X, Y, ("x", "y", "z")))


@pytest.mark.parametrize("names", ['["a"]', '"a"', "[1, 2]", "not json"])
def test_client_names_that_do_not_fit(tmp_path: Path, names: str) -> None:
    arrays = {"features": X, "labels": Y, "clients": np.array([0, 1, 0, 1])}
    save_file(arrays, tmp_path / "f.safetensors", {"client_names": names})
    with pytest.raises((FileError, InputError), match=r"f\.safetensors"):
        read_features(tmp_path / "f.safetensors")


def test_rows_to_classify_need_no_labels(tmp_path: Path) -> None:
    np.savez(tmp_path / "new.npz", features=X)
    found = read_features(tmp_path / "new.npz", labelled=False)
    np.testing.assert_array_equal(found.features, X)
    assert (found.labels.tolist(), found.class_names) == ([0] * len(X), ("unknown",))
    np.savez(tmp_path / "new.npz", features=X[0])
    with pytest.raises(InputError, match=r"new\.npz: .*shape \(3,\)"):
        read_features(tmp_path / "new.npz", labelled=False)


def test_large_features_stay_in_their_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_files, "MAPPED", 1)
    path, F = tmp_path / "rows.npz", np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32)
    for features in (F, np.asfortranarray(F)):
        np.savez(path, features=features, labels=np.arange(50) % 3)
        assert isinstance(array_files.read_arrays(path)["features"], np.memmap)
        np.testing.assert_array_equal(read_features(path).features, F)
    np.savez_compressed(path, features=F, labels=np.arange(50) % 3)
    assert not isinstance(array_files.read_arrays(path)["features"], np.memmap)
    np.testing.assert_array_equal(read_features(path).features, F)


def test_a_mapped_file_whose_bytes_were_changed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_files, "MAPPED", 1)
    path, F = tmp_path / "rows.npz", np.random.default_rng(0).normal(size=(50, 6))
    np.savez(path, features=F, labels=np.arange(50) % 3)
    contents = bytearray(path.read_bytes())
    at = contents.index(F[20].tobytes())
    contents[at] ^= 1
    path.write_bytes(contents)
    with pytest.raises(FileError, match="cannot be read"):
        read_features(path)
