"""Pickles of plain data, read without running anything.

A pickle is a program. Old data sets come as pickles all the same, so this reader lets them build arrays,
lists, dicts, strings, bytes and numbers, and nothing else. Not even numpy's own constructors are called:
they trust what a pickle says about its memory layout. Stand-ins collect the parts, and the array is made from
its bytes after a check.
"""

import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedhip.errors import FileError

_NUMBER = re.compile(r"[<>|=]?([biuf])([1248])")


def _shown(value: Any) -> str:
    """A value in a message. A container is named by its type, since to write it out may take forever."""
    return repr(value) if isinstance(value, str | bytes) else f"a {type(value).__name__}"


class _Type:
    """Stands in for numpy.dtype: a number type and its byte order."""

    def __init__(self, code: Any, *_: Any) -> None:
        code = code.decode("ascii") if isinstance(code, bytes) else code
        if not isinstance(code, str) or not _NUMBER.fullmatch(code):
            raise FileError(f"it holds an array of type {_shown(code)}")
        self.dtype = np.dtype(code)

    def __setstate__(self, state: Any) -> None:
        order = state[1].decode("ascii") if isinstance(state[1], bytes) else state[1]
        if order not in ("<", ">", "|", "="):
            raise FileError(f"it holds an array of byte order {_shown(order)}")
        self.dtype = np.dtype(order + self.dtype.str[1:])


class _Array:
    """Stands in for numpy.ndarray: the shape, the number type and the bytes."""

    def __init__(self, *_: Any) -> None:
        self.array: NDArray[Any] = np.empty(0)

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, data = state
        if not isinstance(data, bytes) or not isinstance(dtype, _Type):
            raise FileError(f"it holds an array of {type(data).__name__}")
        flat = np.frombuffer(data, dtype.dtype)
        self.array = flat.reshape(shape, order="F" if fortran else "C")


class _Scalar:
    """Stands in for numpy's scalars, which are arrays without a dimension."""

    def __init__(self, dtype: _Type, data: bytes) -> None:
        self.array = np.frombuffer(data, dtype.dtype).reshape(())[()]

    def __setstate__(self, state: Any) -> None:
        raise FileError("it alters a number")


class _Buffer(_Array):
    """Stands in for numpy's constructor from a buffer, as in pickles of protocol 5."""

    def __init__(self, data: Any, dtype: _Type, shape: tuple[int, ...], order: str) -> None:
        # bytes(10**12) would fill the memory with zeros, so numbers are not converted.
        content = bytes(data) if isinstance(data, bytearray) else data
        self.__setstate__((1, shape, dtype, order == "F", content))


class _Bytes:
    """Stands in for codecs.encode and bytes(), which is how old protocols write bytes; makes real ones."""

    def __new__(cls, text: str = "", encoding: str = "latin1") -> bytes:  # type: ignore[misc]
        if encoding != "latin1":
            raise FileError(f"it encodes a string as {_shown(encoding)}")
        return text.encode("latin1")

    def __setstate__(self, state: Any) -> None:
        raise FileError("it alters a string")


_STAND_INS: dict[tuple[str, str], type] = {
    ("numpy", "dtype"): _Type,
    ("numpy", "ndarray"): _Array,
    ("_codecs", "encode"): _Bytes,
    ("__builtin__", "bytes"): _Bytes,
}
for _core in ("numpy.core", "numpy._core"):
    _STAND_INS[_core + ".multiarray", "_reconstruct"] = _Array
    _STAND_INS[_core + ".multiarray", "scalar"] = _Scalar
    _STAND_INS[_core + ".numeric", "_frombuffer"] = _Buffer


class _Reader(pickle._Unpickler):
    """Looks up stand-ins instead of importing, and puts only plain keys in dicts.

    Hashing is what makes keys dangerous: a tuple that holds another twice, and so on, takes 2^depth steps. The
    reader written in C does not let anyone look at a key first; this one does. Sets hash too.
    """

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = dict(pickle._Unpickler.dispatch)
    stack: list[Any]
    append: Callable[[Any], None]
    pop_mark: Callable[[], list[Any]]

    def set_items(self, target: Any, items: list[Any]) -> None:
        """Put keys and values, one after the other, in a dict."""
        if type(target) is not dict:
            raise FileError(f"it gives keys to a {type(target).__name__}")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if type(key) not in (bool, int, float, str, bytes):
                raise FileError(f"it holds a dict with a {type(key).__name__} as a key")
            target[key] = value

    def load_dict(self) -> None:
        """A dict from all since the mark."""
        target: dict[Any, Any] = {}
        self.set_items(target, self.pop_mark())
        self.append(target)

    def load_setitem(self) -> None:
        """One key and value."""
        value, key = self.stack.pop(), self.stack.pop()
        self.set_items(self.stack[-1], [key, value])

    def load_setitems(self) -> None:
        """All keys and values since the mark."""
        items = self.pop_mark()
        self.set_items(self.stack[-1], items)

    def load_set(self) -> None:
        """Refuse sets before anything is put in them."""
        raise FileError("it holds a set")

    dispatch[pickle.DICT[0]] = load_dict
    dispatch[pickle.SETITEM[0]] = load_setitem
    dispatch[pickle.SETITEMS[0]] = load_setitems
    dispatch[pickle.EMPTY_SET[0]] = load_set
    dispatch[pickle.ADDITEMS[0]] = load_set
    dispatch[pickle.FROZENSET[0]] = load_set

    def find_class(self, module: str, name: str) -> Any:
        """The stand-in of a name that arrays need; an error for any other."""
        try:
            return _STAND_INS[module, name]
        except KeyError:
            raise FileError(f"it asks for {module}.{name}") from None

    def persistent_load(self, pid: Any) -> Any:
        """Refuse references to outside objects."""
        raise FileError(f"it refers to an outside object, {_shown(pid)}")


def read_pickle(path: Path) -> Any:
    """Read a pickle of plain data; Python 2 strings come back as bytes."""
    try:
        with path.open("rb") as file:
            return _plain(_Reader(file, encoding="bytes").load(), {})
    except FileError as error:
        raise FileError(
            f"{path} was not read: {error}. Only arrays of numbers, lists, dicts, strings, bytes and "
            "numbers are allowed in a pickle; get the file from its official address"
        ) from error
    except OSError:
        raise
    # A damaged pickle can fail in any operation it spells out, so in any way at all.
    except Exception as error:
        raise FileError(
            f"{path} is truncated or not a pickle ({type(error).__name__}: {error}); get the file again"
        ) from error


def _plain(value: Any, done: dict[int, Any]) -> Any:
    """Replace stand-ins by what they stand for and refuse what is not plain data.

    `done` holds every container once it was replaced: one that is shared is walked once, one that contains
    itself is refused.
    """
    if isinstance(value, _Array | _Scalar):
        return value.array
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    if type(value) not in (list, tuple, dict):
        raise FileError(f"it holds a {type(value).__name__}")
    if id(value) in done:
        if done[id(value)] is None:
            raise FileError("it holds a container that contains itself")
        return done[id(value)]
    done[id(value)] = None
    result: Any
    if isinstance(value, dict):
        result = {_plain(key, done): _plain(item, done) for key, item in value.items()}
    else:
        result = type(value)(_plain(item, done) for item in value)
    done[id(value)] = result
    return result
