"""The compiler and its options: together with the source, they determine the machine code."""

from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256


@dataclass(frozen=True, slots=True)
class Toolkit:
    """A CUDA compiler. Results are compared within a version; cached cubins also within a build."""

    name: str
    version: str  # "13.4"
    build: str = field(default="", compare=False)  # "V13.4.92"

    @property
    def major(self) -> int:
        return int(self.version.partition(".")[0])

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


@dataclass(frozen=True)
class Options:
    """Options of NVRTC. The defaults keep IEEE division, square roots and denormals."""

    arch: str  # as NVRTC spells it, e.g. sm_90a
    maxrregcount: int = 0  # maximum registers per thread; 0 uses the kernel's launch bounds
    fast_math: bool = False
    lineinfo: bool = False
    extra: tuple[str, ...] = ()

    @cached_property
    def flags(self) -> tuple[str, ...]:
        """The compiler's arguments."""
        chosen = {
            f"-maxrregcount={self.maxrregcount}": self.maxrregcount > 0,
            "-use_fast_math": self.fast_math,
            "-lineinfo": self.lineinfo,
        }
        return (f"-arch={self.arch}", *_ALWAYS, *(flag for flag, on in chosen.items() if on), *self.extra)

    @cached_property
    def digest(self) -> str:
        """Sixteen hex digits that change with any flag."""
        return sha256("\0".join(self.flags).encode()).hexdigest()[:16]

    def __str__(self) -> str:
        return " ".join(self.flags)


_ALWAYS = (
    "-std=c++17",
    "-default-device",  # constexpr functions shared with the host need no annotation
    "--ptxas-options=-v",  # reports spills in the log
)
