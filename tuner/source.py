"""A rendered translation unit with every header it reaches: all that decides what a compiler sees."""

from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Literal

Target = Literal["cuda", "host"]


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
    def digest(self) -> str:
        """Sixteen hex digits that change with any byte the compiler would see."""
        parts = [self.target, *self.entries, self.text, *(f"{name}\0{text}" for name, text in self.headers)]
        return sha256("\0".join(parts).encode()).hexdigest()[:16]
