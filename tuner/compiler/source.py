"""A rendered translation unit with all its headers: the complete input of a compiler."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import sha256
from typing import Literal, NamedTuple

Target = Literal["cuda", "host"]
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
TEXTURE = re.compile(r"\b(?:texture\s*<|cudaTextureObject_t\b|tex[123]D\w*\s*\()")
_NAMED = re.compile(r"^(?:// )?name expression (.+) is (\S+)$", re.MULTILINE)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(["<])([^">\n]+)[">].*\n?', re.MULTILINE)


class Include(NamedTuple):
    """A line that includes a header."""

    line: str
    name: str
    quoted: bool  # "ours.cuh" instead of <theirs.h>


@lru_cache(maxsize=256)
def includes(text: str) -> tuple[Include, ...]:
    """The includes of a text, regardless of preprocessor conditions. Cached: configs of a search share headers."""
    return tuple(Include(line[0].strip(), line[2], line[1] == '"') for line in _INCLUDE.finditer(text))


def without_includes(text: str) -> str:
    """Return the other lines."""
    return _INCLUDE.sub("", text)


def _is_plain(entry: str, text: str) -> bool:
    """Whether the text declares the entry extern "C"; if in doubt, NVRTC returns the name unchanged."""
    return bool(re.search(rf'\bextern\s*"C"[^;{{}}]*\b{re.escape(entry)}\s*\(', text))


def symbol_lines(symbols: Mapping[str, str]) -> tuple[str, ...]:
    """Lines for a log or for PTX that map C++ names of kernels to symbols."""
    return tuple(f"name expression {expression} is {symbol}" for expression, symbol in symbols.items())


def symbols(text: str) -> dict[str, str]:
    """The symbols that `symbol_lines` wrote into a text, by C++ name."""
    return {line[1]: line[2] for line in _NAMED.finditer(text)}


@dataclass(frozen=True)
class Source:
    """CUDA C++ for one compiler: `cuda` goes to NVRTC, `host` to g++ and the emulator.

    `headers` holds (include name, text) pairs, sorted, so that neither compiler needs a file system
    and a source travels to a worker process as one value.
    """

    entries: tuple[str, ...]  # the kernels: extern "C" ones, or name expressions of C++
    text: str
    headers: tuple[tuple[str, str], ...]
    target: Target
    threads: int = 0  # maximum block size, if no kernel has __launch_bounds__
    constants: tuple[str, ...] = ()  # `__constant__` symbols that launches fill

    @property
    def flags(self) -> tuple[str, ...]:
        """Compiler flags of the source: the block size, from which ptxas derives the register limit."""
        return (f"--ptxas-options=--maxntid={self.threads}",) if self.threads else ()

    @cached_property
    def expressions(self) -> tuple[str, ...]:
        """The entries whose symbols only the compiler knows: templates, kernels in namespaces, and those without extern
        "C".
        """
        return tuple(entry for entry in self.entries if not _is_plain(entry, self.text))

    @cached_property
    def foreign(self) -> tuple[str, ...]:
        """Names of included headers that the source does not contain; they belong to the toolkit."""
        carried = {name for name, _ in self.headers}
        named = {
            include.name for text in (self.text, *(text for _, text in self.headers)) for include in includes(text)
        }
        return tuple(sorted(named - carried))

    @cached_property
    def digest(self) -> str:
        """Sixteen hex digits that change with any byte the compiler would see."""
        parts = [
            self.target,
            *self.flags,
            *self.constants,
            *self.entries,
            self.text,
            *(f"{name}\0{text}" for name, text in self.headers),
        ]
        return sha256("\0".join(parts).encode()).hexdigest()[:16]
