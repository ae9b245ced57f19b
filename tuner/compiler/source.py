"""A rendered translation unit with every header it reaches: all that decides what a compiler sees."""

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import sha256
from typing import Literal

Target = Literal["cuda", "host"]
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">\n]+)[">]', re.MULTILINE)


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
        named = {name for text in (self.text, *(text for _, text in self.headers)) for name in _included(text)}
        return tuple(sorted(named - carried))

    @cached_property
    def digest(self) -> str:
        """Sixteen hex digits that change with any byte the compiler would see."""
        parts = [self.target, *self.entries, self.text, *(f"{name}\0{text}" for name, text in self.headers)]
        return sha256("\0".join(parts).encode()).hexdigest()[:16]


@lru_cache(maxsize=256)
def _included(text: str) -> tuple[str, ...]:
    """All configs of a search have the same headers."""
    return tuple(_INCLUDE.findall(text))
