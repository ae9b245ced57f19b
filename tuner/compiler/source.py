"""A rendered translation unit with every header it reaches: all that decides what a compiler sees."""

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import sha256
from typing import Literal, NamedTuple

Target = Literal["cuda", "host"]
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(["<])([^">\n]+)[">].*\n?', re.MULTILINE)


class Include(NamedTuple):
    """A line that includes a header."""

    line: str
    name: str
    quoted: bool  # "ours.cuh", and not <theirs.h>


@lru_cache(maxsize=256)
def includes(text: str) -> tuple[Include, ...]:
    """What a text includes, whatever conditions stand around it. All configs of a search have the same headers."""
    return tuple(Include(found[0].strip(), found[2], found[1] == '"') for found in _INCLUDE.finditer(text))


def without_includes(text: str) -> str:
    """The other lines."""
    return _INCLUDE.sub("", text)


@dataclass(frozen=True)
class Source:
    """CUDA C++ for one compiler: `cuda` goes to NVRTC, `host` to g++ and the emulator.

    `headers` holds (include name, text) pairs, sorted, so that neither compiler needs a file system
    and a source travels to a worker process as one value.
    """

    entries: tuple[str, ...]  # the extern "C" kernels
    text: str
    headers: tuple[tuple[str, str], ...]
    target: Target

    @cached_property
    def foreign(self) -> tuple[str, ...]:
        """The names of headers that it includes and does not carry: the toolkit has them, and they are its own."""
        carried = {name for name, _ in self.headers}
        named = {each.name for text in (self.text, *(text for _, text in self.headers)) for each in includes(text)}
        return tuple(sorted(named - carried))

    @cached_property
    def digest(self) -> str:
        """Sixteen hex digits that change with any byte the compiler would see."""
        parts = [self.target, *self.entries, self.text, *(f"{name}\0{text}" for name, text in self.headers)]
        return sha256("\0".join(parts).encode()).hexdigest()[:16]
