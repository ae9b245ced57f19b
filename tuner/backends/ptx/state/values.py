"""Registers of all lanes as NumPy arrays, and operands read as the type that an instruction specifies."""

import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tuner.backends.ptx.text.module import Entry
from tuner.backends.ptx.text.parse import BYTES

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_] | None  # active lanes; None means all


class UnsupportedError(Exception):
    """An instruction that the interpreter does not support."""


class _Types(dict[str, np.dtype[Any]]):
    """NumPy dtypes by PTX type name; missing types raise UnsupportedError."""

    def __missing__(self, name: str) -> np.dtype[Any]:
        raise UnsupportedError(f"values of type .{name}")


_KINDS = {"b": "u", "u": "u", "s": "i", "f": "f"}
DTYPES = _Types(
    {name: np.dtype(f"{_KINDS[name[0]]}{size}") for name, size in BYTES.items() if name[1:].isdigit() and size <= 8}
)
DTYPES["pred"] = np.dtype(bool)
JOINED: Mapping[str, np.ufunc] = {  # integer functions of atomics and reductions
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


class Registers:
    """The registers of `lanes` lanes of one entry, each an array that is created on first use."""

    def __init__(self, entry: Entry, lanes: int, special: Mapping[str, Array], symbol: Callable[[str], int]) -> None:
        self.entry, self.lanes, self.special, self._symbol = entry, lanes, special, symbol
        self._arrays: dict[str, Array] = {}

    def array(self, name: str) -> Array:
        """Return the register's array: bool, or unsigned of the register's width."""
        if name not in self._arrays:
            kind = self.entry.register_type(name)
            if kind is None:
                raise UnsupportedError(f"{name} is no register")
            dtype = DTYPES["pred"] if kind == "pred" else np.dtype(f"u{BYTES[kind]}")
            self._arrays[name] = np.zeros(self.lanes, dtype)
        return self._arrays[name]

    def read(self, name: str, type: str) -> Array:
        """Return a live view of the operand as `type`, one element per lane; a single element for a number or
        symbol.
        """
        dtype = DTYPES[type]
        if name in self.special:
            return _as(self.special[name], dtype)
        if name.startswith("%") or self.entry.register_type(name):
            return _as(self.array(name), dtype)
        return _number(name, dtype) if _is_number(name) else np.array(self._symbol(name)).astype(dtype)

    def condition(self, name: str) -> Array:
        """Return the predicate; a new array if it is inverted or a number."""
        if _is_number(name):
            return np.full(self.lanes, int(name, 0) != 0)
        return ~self.array(name[1:]) if name.startswith("!") else self.array(name)

    def write(self, name: str, type: str) -> Array:
        """Return the destination of a result of `type`; a wider register receives it sign-extended or zero-extended."""
        if name == "_":
            return np.zeros(self.lanes, DTYPES[type])
        array, dtype = self.array(name), DTYPES[type]
        if array.dtype == bool or array.itemsize == dtype.itemsize:
            return array if array.dtype == bool else array.view(dtype)
        if array.itemsize < dtype.itemsize:
            raise UnsupportedError(f"{name} is too narrow for {type}")
        return array.view(f"i{array.itemsize}") if type.startswith("s") else array


def _as(array: Array, dtype: np.dtype[Any]) -> Array:
    if array.dtype == bool or array.dtype == dtype:
        return array
    if array.itemsize == dtype.itemsize:
        return array.view(dtype)
    if array.itemsize < dtype.itemsize:
        raise UnsupportedError(f"a register of {array.itemsize} bytes is read as {dtype}")
    return array.view(dtype)[:: array.itemsize // dtype.itemsize]  # little endian: the low part


def _is_number(name: str) -> bool:
    return name[0].isdigit() or (name[0] == "-" and len(name) > 1)


def _number(text: str, dtype: np.dtype[Any]) -> Array:
    if text[:2] in ("0f", "0F"):
        number = np.frombuffer(struct.pack("<I", int(text[2:], 16)), np.float32)
    elif text[:2] in ("0d", "0D"):
        number = np.frombuffer(struct.pack("<Q", int(text[2:], 16)), np.float64)
    elif dtype.kind == "f":
        raise UnsupportedError(f"{text} is not a number of type {dtype}")
    else:
        bits = int(text.rstrip("U"), 0) & (1 << 8 * max(dtype.itemsize, 1)) - 1
        return np.array(bits, f"u{dtype.itemsize}").view(dtype) if dtype.kind != "b" else np.array(bits != 0)
    return number.astype(dtype)[0:1].reshape(()) if dtype.kind == "f" else number.view(dtype)[0:1].reshape(())


def assign(target: Array, value: Any, mask: Mask) -> None:
    """Assign `target[lane] = value[lane]` for the lanes of `mask`, with integer conversion."""
    if mask is None:
        target[...] = value
    else:
        np.copyto(target, value, casting="unsafe", where=mask)
