"""Variables of a PTX module in `.global` and `.const` memory, with their initial bytes."""

import re
import struct
from collections.abc import Iterator, Set
from dataclasses import dataclass
from math import prod

from tuner.errors import UsageError

_PACKED = {"b8": "B", "u8": "B", "s8": "b", "b16": "H", "u16": "H", "s16": "h", "b32": "I", "u32": "I", "s32": "i"}
_PACKED |= {"b64": "Q", "u64": "Q", "s64": "q", "f32": "I", "f64": "Q"}  # floats are written as bits
_TABLE = re.compile(
    r"\.(?P<space>global|const)\b(?:\s+\.attribute\([^)]*\))?(?:\s+\.align\s+\d+)?\s+\.(?P<type>\w+)\s+"
    r"(?P<name>[\w$]+)\s*(?P<sizes>(?:\[\d*\]\s*)*)(?:=\s*(?P<values>[^;]*))?;"
)


@dataclass(frozen=True, slots=True)
class ModuleTable:
    """A variable that all launches of a module share; kernels may write it unless it is `constant`."""

    name: str
    data: bytes
    constant: bool

    @property
    def key(self) -> str:
        """The name of its buffer, distinct from argument names."""
        return f"the module's {self.name}"


def tables(text: str, named: Set[str]) -> Iterator[ModuleTable]:
    """Return the module variables in `named` that are declared outside functions. Raises UsageError if one holds an
    address.
    """
    for table in _TABLE.finditer(text):
        if table["name"] not in named:
            continue
        values = re.findall(r"[^\s{},]+", table["values"] or "")
        sizes = [int(digits) for digits in re.findall(r"\d+", table["sizes"])]
        count = prod(sizes) if sizes else max(len(values), 1)
        packed = b"".join(_packed(value, table["type"], table["name"]) for value in values)
        nbytes = count * struct.calcsize("<" + _PACKED[table["type"]])
        yield ModuleTable(table["name"], packed.ljust(nbytes, b"\0"), table["space"] == "const")


def _packed(value: str, kind: str, name: str) -> bytes:
    number = value.rstrip("U")
    try:
        bits = int(number[2:], 16) if number[:2] in ("0f", "0F", "0d", "0D") else int(number, 0)
    except ValueError:
        raise UsageError(
            f"the PTX has a table of addresses ({name} = {value}), which the PTX interpreter does not support"
        ) from None
    width = 8 * struct.calcsize("<" + _PACKED[kind])
    return (bits & (1 << width) - 1).to_bytes(width // 8, "little")
