"""A compiled translation unit: its bytes, what each kernel uses, and what its machine code is made of."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256

from tuner.compiler.sass import decode as sass
from tuner.compiler.source import symbols
from tuner.compiler.toolkit import Options, Toolkit
from tuner.compiler.usage import Usage, parse_log

# Attributes of `.nv.info.<entry>`, each x, y, z.
_MAX_THREADS = 0x05  # of __launch_bounds__
_CLUSTER = 0x3D  # of __cluster_dims__
_WITH_VALUE = 4  # attribute format: a 16-bit size and that many bytes; other formats have their value in the header
_FILE_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")  # a row of .symtab
_NOBITS = 8  # a section that takes no room in the file: uninitialised memory


@dataclass(frozen=True, slots=True)
class Section:
    size: int  # bytes at run time
    data: bytes  # empty where the file holds none


@dataclass(frozen=True)
class Cubin:
    """Machine code of one source for one arch. Equal cubins have equal bytes, however long they took to compile."""

    image: bytes = field(repr=False)  # a whole ELF file
    entries: Mapping[str, Usage] = field(hash=False)  # by kernel
    options: Options
    toolkit: Toolkit
    compile_seconds: float = field(default=0.0, compare=False)
    log: str = field(default="", repr=False, compare=False)
    ptx: str = field(default="", repr=False, compare=False)  # what ptxas made it of; empty where nobody kept it

    @cached_property
    def sass_digest(self) -> str:
        """Sixteen hex digits over machine code and constant tables, kernel names included.

        Configs of one arch with equal digests are one kernel; they run alike where their launches are equal too.
        """
        kept = sorted((name, each.data) for name, each in self._sections.items() if _is_code(name))
        digest = sha256()
        for name, data in kept:
            digest.update(f"{name} {len(data)}\0".encode() + data)
        return digest.hexdigest()[:16]

    def instruction_mix(self, entry: str) -> Mapping[str, int]:
        """Static counts by instruction; see `sass.instruction_mix`. `sass.work_mix` sums them by class of work."""
        return sass.instruction_mix(self.code(entry), self.options.arch)

    def innermost_loops(self, entry: str) -> tuple[sass.Loop, ...]:
        """Loops without a loop inside, each with its mix: the step that the time goes into is one of them."""
        return sass.innermost_loops(self.code(entry), self.options.arch)

    def disassemble(self, entry: str) -> str:
        """SASS as text. Raises MachineError where nvdisasm is not installed."""
        self.code(entry)
        return self._listing[self.symbol(entry)]

    @cached_property
    def _listing(self) -> Mapping[str, str]:
        return sass.disassemble(self.image)

    @cached_property
    def _sections(self) -> Mapping[str, Section]:
        return sections(self.image)

    def code(self, entry: str) -> bytes:
        """Machine code of a kernel."""
        if entry not in self.entries:
            raise KeyError(f"no kernel {entry!r} in this cubin (it has {', '.join(self.entries)})")
        return self._sections[f".text.{self.symbol(entry)}"].data

    def symbol(self, entry: str) -> str:
        """What the machine code calls a kernel."""
        return self.symbols.get(entry, entry)

    @cached_property
    def symbols(self) -> Mapping[str, str]:
        """What it calls kernels that C++ names otherwise: instances of templates, and what is not extern "C"."""
        return symbols(self.log)


def read(
    image: bytes, log: str, options: Options, toolkit: Toolkit, compile_seconds: float = 0.0, ptx: str = ""
) -> Cubin:
    """The Cubin of a compiler's output: an ELF file, and a log of `--ptxas-options=-v`.

    Raises ValueError when the two do not belong together.
    """
    found = sections(image)
    logged = parse_log(log)
    kernels = [name.removeprefix(".nv.info.") for name in found if name.startswith(".nv.info.")]
    if missing := sorted(set(kernels) - set(logged)):
        raise ValueError(f"the log tells no usage of {', '.join(missing)}")
    called = {symbol: expression for expression, symbol in symbols(log).items()}
    entries = {called.get(name, name): _with_elf(logged[name], name, found) for name in kernels}
    return Cubin(image, entries, options, toolkit, compile_seconds, log, ptx)


def _with_elf(usage: Usage, entry: str, found: Mapping[str, Section]) -> Usage:
    constant = sum(each.size for name, each in found.items() if _is_constant(name) and name.endswith(f".{entry}"))
    info = found[f".nv.info.{entry}"].data
    bound, cluster = _product(info, _MAX_THREADS), _product(info, _CLUSTER)
    return replace(usage, constant=constant, max_threads=bound, cluster=cluster or 1)


def _product(info: bytes, attribute: int) -> int:
    """x times y times z of an attribute of a kernel's `.nv.info`; 0 where it has none."""
    at = 0
    while at + 4 <= len(info):
        size = int.from_bytes(info[at + 2 : at + 4], "little") if info[at] == _WITH_VALUE else 0
        if info[at + 1] == attribute and size == 12:
            x, y, z = (int.from_bytes(info[at + 4 + i : at + 8 + i], "little") for i in (0, 4, 8))
            return x * y * z
        at += 4 + size
    return 0


def _is_code(name: str) -> bool:
    """Kernels, the functions they call, and tables; not bank 0, which is the parameters' room."""
    return name.startswith(".text.") or (_is_constant(name) and not name.startswith(".nv.constant0"))


def _is_constant(name: str) -> bool:
    return name.startswith(".nv.constant")


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


def symbol_sizes(image: bytes) -> Mapping[str, int]:
    """Bytes of each named object of an ELF file: what a `__constant__` symbol has room for."""
    found = sections(image)
    table, names = (found[each].data for each in (".symtab", ".strtab"))
    rows = (_SYMBOL.unpack_from(table, at) for at in range(0, len(table), _SYMBOL.size))
    return {names[at : names.index(b"\0", at)].decode(): size for at, *_, size in rows if at}


def _content(image: bytes, header: tuple[int, ...]) -> bytes:
    offset, size = header[4], header[5]
    if offset + size > len(image):
        raise IndexError(offset)
    return image[offset : offset + size]
