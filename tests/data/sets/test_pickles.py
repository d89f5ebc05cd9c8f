import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhip.data.sets.pickles import read_pickle
from fedhip.errors import FileError
from tests.waiting import PATIENCE

PYTHON_2 = (  # {'data': array([[97, 98, 99], [100, 101, 102]], uint8)} as Python 2 with an old numpy wrote it
    b"\x80\x02}(U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    b"(K\x01K\x02K\x03\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xff"
    b"K\x00tb\x89U\x06abcdeftbu."
)


def write(path: Path, value: Any, protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(value, protocol))
    return path


@pytest.mark.parametrize("protocol", range(6))
def test_plain_data_comes_back(tmp_path: Path, protocol: int) -> None:
    value = {
        b"bytes": [b"", b"\x00\xff"],
        "numbers": (1, -(2**70), 0.5, True, None),
        "C": np.arange(6, dtype=np.uint8).reshape(2, 3),
        "F": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "big": np.arange(3, dtype=">i4"),
        "scalar": np.int64(7),
    }
    found = read_pickle(write(tmp_path / "p", value, protocol))
    assert found.keys() == value.keys()
    for name in ("C", "F", "big"):
        np.testing.assert_array_equal(found[name], value[name])
        assert found[name].dtype == value[name].dtype  # type: ignore[attr-defined]
    assert found["numbers"] == value["numbers"]
    assert found[b"bytes"] == value[b"bytes"]
    assert found["scalar"] == 7


def test_python_2_pickle_with_old_numpy(tmp_path: Path) -> None:
    (tmp_path / "p").write_bytes(PYTHON_2)
    found = read_pickle(tmp_path / "p")
    np.testing.assert_array_equal(found[b"data"], [[97, 98, 99], [100, 101, 102]])
    assert found[b"data"].dtype == np.uint8


class Command:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)


def test_code_is_refused_and_not_run(tmp_path: Path) -> None:
    path = write(tmp_path / "p", {"data": Command(tmp_path / "ran")})
    with pytest.raises(FileError, match=r"p was not read: it asks for posix.mkdir"):
        read_pickle(path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({1, 2}, "a set"),
        (bytearray(b"x"), "bytearray"),
        (np.array([1, "a", None], dtype=object), "type 'O8'"),
        (np.array(["a"]), "type 'U1'"),
        (np.zeros(2, dtype=[("a", "i4")]), "type 'V4'"),
        (np.dtype("u1"), "_Type"),
        (np.ndarray, "a type"),
        (1 + 2j, "complex"),
        (print, "builtins.print"),
        (eval, "builtins.eval"),
    ],
    ids=str,
)
def test_anything_else_is_refused(tmp_path: Path, value: Any, reason: str) -> None:
    with pytest.raises(FileError, match=reason):
        read_pickle(write(tmp_path / "p", [value]))


def test_container_that_contains_itself_is_refused(tmp_path: Path) -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(FileError, match="contains itself"):
        read_pickle(write(tmp_path / "p", value))


def test_shared_containers_are_walked_once(tmp_path: Path) -> None:
    value: list[Any] = []
    for _ in range(200):  # 2^200 leaves if walked as a tree
        value = [value, value]
    assert len(read_pickle(write(tmp_path / "p", value))) == 2


def nested_tuple(depth: int = 40) -> Any:
    value: Any = ()
    for _ in range(depth):
        value = (value, value)
    return value


def pickles_that_hash() -> dict[str, bytes]:
    """A tuple with 2^40 leaves where it would be hashed, compared or written out."""
    tuple_ = pickle.dumps(nested_tuple(), 4)[:-1]  # without the stop
    tuple_ = tuple_[2 + 9 :] if tuple_[2:3] == pickle.FRAME else tuple_[2:]
    return {
        "setitem": b"\x80\x04}" + tuple_ + b"K\x01s.",
        "setitems": b"\x80\x04}(" + tuple_ + b"K\x01K\x02K\x03u.",
        "dict": b"\x80\x04(" + tuple_ + b"K\x01d.",
        "additems": b"\x80\x04\x8f(" + tuple_ + b"\x90.",
        "frozenset": b"\x80\x04(" + tuple_ + b"\x91.",
        "persistent": b"\x80\x04" + tuple_ + b"Q.",
        "dtype": b"\x80\x04cnumpy\ndtype\n" + tuple_ + b"\x85R.",
        "encoding": b"\x80\x04c_codecs\nencode\nX\x01\x00\x00\x00a" + tuple_ + b"\x86R.",
    }


def test_what_takes_forever_to_hash_is_refused(tmp_path: Path) -> None:
    """In a process of its own, as a hang in compiled code can only be ended from outside."""
    for name, content in pickles_that_hash().items():
        (tmp_path / name).write_bytes(content)
    code = """if True:
        import pathlib, sys
        from fedhip.errors import FileError
        from fedhip.data.sets.pickles import read_pickle
        for path in pathlib.Path(sys.argv[1]).iterdir():
            print(path, flush=True)
            try:
                read_pickle(path)
            except FileError as error:
                if "was not read: it " in str(error):
                    continue
            sys.exit(1)
    """
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=PATIENCE)  # noqa: S603


def test_persistent_id_is_refused(tmp_path: Path) -> None:
    (tmp_path / "p").write_bytes(b"Pname\n.")
    with pytest.raises(FileError, match="outside object"):
        read_pickle(tmp_path / "p")


def test_number_as_buffer_allocates_nothing(tmp_path: Path) -> None:
    call = b"\x80\x04cnumpy._core.numeric\n_frombuffer\n(\x8a\x06\x00\x00\x00\x00\x00\x01"
    (tmp_path / "p").write_bytes(call + b"cnumpy\ndtype\nX\x02\x00\x00\x00u1\x85RK\x01\x85X\x01\x00\x00\x00CtR.")
    with pytest.raises(FileError, match="array of int"):
        read_pickle(tmp_path / "p")


@pytest.mark.parametrize("keep", [0, 1, 10, 60, -1])
def test_truncated_pickle_is_named(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "train"
    path.write_bytes(pickle.dumps({"data": np.arange(100)})[:keep])
    with pytest.raises(FileError, match="train is truncated or not a pickle"):
        read_pickle(path)


def test_array_whose_bytes_do_not_fit_its_shape(tmp_path: Path) -> None:
    (tmp_path / "p").write_bytes(PYTHON_2.replace(b"K\x02K\x03\x86", b"K\x02K\x04\x86"))
    with pytest.raises(FileError, match="truncated or not a pickle"):
        read_pickle(tmp_path / "p")
