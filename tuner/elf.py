"""The sections of a 64-bit ELF file, which is what a cubin is."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass

_FILE_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
_NOBITS = 8  # a section that takes no room in the file: uninitialised memory


@dataclass(frozen=True, slots=True)
class Section:
    size: int  # bytes at run time
    data: bytes  # empty where the file holds none


def sections(image: bytes) -> Mapping[str, Section]:
    """Sections by name. Raises ValueError when `image` is no ELF file or is cut short."""
    if image[:5] != b"\x7fELF\x02":
        raise ValueError(f"not a 64-bit ELF file: it starts with {image[:5]!r}")
    try:
        return _sections(image)
    except (struct.error, IndexError) as error:
        raise ValueError(f"ELF file cut short at {len(image)} bytes") from error


def _sections(image: bytes) -> dict[str, Section]:
    header = _FILE_HEADER.unpack_from(image)
    table, entry_size, count, names_index = header[6], header[11], header[12], header[13]
    headers = [_SECTION_HEADER.unpack_from(image, table + i * entry_size) for i in range(count)]
    names = _content(image, headers[names_index])
    found = {}
    for each in headers:
        data = b"" if each[1] == _NOBITS else _content(image, each)
        found[names[each[0] : names.index(b"\0", each[0])].decode()] = Section(each[5], data)
    return found


def _content(image: bytes, header: tuple[int, ...]) -> bytes:
    offset, size = header[4], header[5]
    if offset + size > len(image):
        raise IndexError(offset)
    return image[offset : offset + size]
