"""A compiled translation unit: its ELF image, the resources of each kernel, and its decoded machine code."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from math import prod

from tuner.compiler.sass import decode as sass
from tuner.compiler.source import symbols
from tuner.compiler.toolkit import Options, Toolkit
from tuner.compiler.usage import Usage, parse_log

# Attributes of `.nv.info.<entry>`, each x, y, z.
_MAX_THREADS = 0x05  # maximum block size by __launch_bounds__
_CLUSTER = 0x3D  # cluster shape by __cluster_dims__
# Attribute format: a 16-bit size followed by that many bytes; other formats store their value in the header.
_WITH_VALUE = 4
_FILE_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")  # a row of .symtab
_NOBITS = 8  # type of a section without bytes in the file: uninitialised memory


@dataclass(frozen=True, slots=True)
class Section:
    size: int  # bytes at run time
    data: bytes  # empty for a section without bytes in the file


@dataclass(frozen=True)
class Cubin:
    """Machine code of one source for one arch. Equality ignores compile time and log."""

    image: bytes = field(repr=False)  # a whole ELF file
    entries: Mapping[str, Usage] = field(hash=False)  # by kernel
    options: Options
    toolkit: Toolkit
    compile_seconds: float = field(default=0.0, compare=False)
    log: str = field(default="", repr=False, compare=False)
    ptx: str = field(default="", repr=False, compare=False)  # ptxas's input; empty if it was not kept

    @cached_property
    def sass_digest(self) -> str:
        """Sixteen hex digits over machine code and constant tables, kernel names included.

        Configs of one arch with equal digests are the same kernel; with equal launches they perform alike.
        """
        digest = sha256()
        for name, section in sorted(self._sections.items()):
            if _is_code(name):
                digest.update(f"{name} {len(section.data)}\0".encode() + section.data)
        return digest.hexdigest()[:16]

    def instructions(self, entry: str) -> tuple[sass.Instruction, ...]:
        """Machine code of a kernel, decoded once."""
        if entry not in self._decoded:
            self._decoded[entry] = sass.decode(self.code(entry), self.options.arch)
        return self._decoded[entry]

    def mnemonics(self, entry: str) -> frozenset[str]:
        """The mnemonics in a kernel's machine code, without modifiers."""
        return frozenset(instruction.mnemonic for instruction in self.instructions(entry))

    @cached_property
    def _decoded(self) -> dict[str, tuple[sass.Instruction, ...]]:
        return {}

    def instruction_mix(self, entry: str) -> Mapping[str, int]:
        """Static counts by instruction; see `sass.instruction_mix`. `sass.work_mix` sums them by class of work."""
        return sass.instruction_mix(self.instructions(entry))

    def innermost_loops(self, entry: str) -> tuple[sass.InnermostLoop, ...]:
        """Loops that contain no other loop, with their static counts."""
        return sass.innermost_loops(self.instructions(entry))

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
        """A kernel's name in the machine code."""
        return self.symbols.get(entry, entry)

    @cached_property
    def symbols(self) -> Mapping[str, str]:
        """Names in the machine code of kernels that are not extern "C", by their C++ names."""
        return symbols(self.log)


def read(
    image: bytes, log: str, options: Options, toolkit: Toolkit, compile_seconds: float = 0.0, ptx: str = ""
) -> Cubin:
    """The Cubin of a compiler's output: an ELF file, and a log of `--ptxas-options=-v`.

    Raises ValueError when the two do not belong together.
    """
    elf = sections(image)
    usage = parse_log(log)
    kernels = [name.removeprefix(".nv.info.") for name in elf if name.startswith(".nv.info.")]
    if missing := sorted(set(kernels) - set(usage)):
        raise ValueError(f"the log has no usage of {', '.join(missing)}")
    expressions = {symbol: expression for expression, symbol in symbols(log).items()}
    entries = {expressions.get(name, name): _with_elf(usage[name], name, elf) for name in kernels}
    return Cubin(image, entries, options, toolkit, compile_seconds, log, ptx)


def _with_elf(usage: Usage, entry: str, elf: Mapping[str, Section]) -> Usage:
    constant = sum(section.size for name, section in elf.items() if _is_constant(name) and name.endswith(f".{entry}"))
    info = elf[f".nv.info.{entry}"].data
    bound, cluster = _product(info, _MAX_THREADS), _product(info, _CLUSTER)
    return replace(usage, constant=constant, max_threads=bound, cluster=cluster or 1)


def _product(info: bytes, attribute: int) -> int:
    """Return x * y * z of an attribute in a kernel's `.nv.info`; 0 if the kernel does not have it."""
    offset = 0
    while offset + 4 <= len(info):
        kind, name, size = struct.unpack_from("<BBH", info, offset)
        if name == attribute and kind == _WITH_VALUE and size == 12:
            return prod(struct.unpack_from("<III", info, offset + 4))
        offset += 4 + (size if kind == _WITH_VALUE else 0)
    return 0


def _is_code(name: str) -> bool:
    """Return whether a section contains kernels, functions or tables; excludes constant bank 0, which holds
    parameters.
    """
    return name.startswith(".text.") or (_is_constant(name) and not name.startswith(".nv.constant0"))


def _is_constant(name: str) -> bool:
    return name.startswith(".nv.constant")


def sections(image: bytes) -> Mapping[str, Section]:
    """Sections by name. Raises ValueError if `image` is not an ELF file or is truncated."""
    if image[:5] != b"\x7fELF\x02":
        raise ValueError(f"not a 64-bit ELF file: it starts with {image[:5]!r}")
    try:
        header = _FILE_HEADER.unpack_from(image)
        table, entry_size, count, names_index = header[6], header[11], header[12], header[13]
        headers = [_SECTION_HEADER.unpack_from(image, table + i * entry_size) for i in range(count)]
        names = _content(image, headers[names_index])
        return {_string(names, header[0]): Section(header[5], _content(image, header)) for header in headers}
    except (struct.error, IndexError) as error:
        raise ValueError(f"ELF file truncated at {len(image)} bytes") from error


def _content(image: bytes, header: tuple[int, ...]) -> bytes:
    offset, size = header[4], header[5]
    if header[1] == _NOBITS:
        return b""
    if offset + size > len(image):
        raise IndexError(offset)
    return image[offset : offset + size]


def _string(table: bytes, offset: int) -> str:
    return table[offset : table.index(b"\0", offset)].decode()


def symbol_sizes(image: bytes) -> Mapping[str, int]:
    """Return the size in bytes of each named object of an ELF file, such as a `__constant__` symbol."""
    elf = sections(image)
    rows = _SYMBOL.iter_unpack(elf[".symtab"].data)
    return {_string(elf[".strtab"].data, name): size for name, *_, size in rows if name}
