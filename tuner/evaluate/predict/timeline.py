"""The cycles of one warp in order: each path of a kernel as intervals of issuing and waiting.

It is a simulation of the control bits (`compiler.sass.simulate`) for a single resident warp, which neither waits for
warps in other roles nor shares a pipe. Lengths are predicted cycles, not times.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tuner.arch import GPU
from tuner.compiler.cubin import Cubin
from tuner.compiler.sass.decode import Instruction
from tuner.compiler.sass.fields import BYTES
from tuner.compiler.sass.instruction_timing import timing_of
from tuner.compiler.sass.simulate import LOADS, PathCycles, simulate_kernel
from tuner.spec.plan import Launch

ISSUE = "issue"
_COPIES = frozenset({"UTMALDG", "UTMASTG", "UTMAREDG", "UBLKCP", "UBLKRED", "LDGSTS"})


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive cycles in which the warp is in one state: it issues, or waits for a cause."""

    state: str  # ISSUE, or the cause of the wait
    cycles: float


@dataclass(frozen=True, slots=True)
class Track:
    """One path of a kernel, executed once, or a loop."""

    kernel: str
    role: str  # role of its warps: "copies", "products", "computes"
    place: str  # range in the machine code
    spans: tuple[Span, ...]

    @property
    def cycles(self) -> float:
        return sum(span.cycles for span in self.spans)

    @property
    def shares(self) -> dict[str, float]:
        """Return the fraction of each state, largest first."""
        total: defaultdict[str, float] = defaultdict(float)
        for span in self.spans:
            total[span.state] += span.cycles / self.cycles
        return dict(sorted(total.items(), key=lambda item: -item[1]))

    def states(self, width: int) -> list[str]:
        """Return the most frequent state in each of `width` equal parts."""
        parts: list[defaultdict[str, float]] = [defaultdict(float) for _ in range(width)]
        at, step = 0.0, self.cycles / width
        for span in self.spans:
            end = at + span.cycles
            for part in range(int(at / step), min(width, int(end / step) + 1)):
                parts[part][span.state] += max(0.0, min(end, (part + 1) * step) - max(at, part * step))
            at = end
        return [max(part, key=lambda state: part[state]) if part else ISSUE for part in parts]


def timeline(cubin: Cubin, launches: Sequence[Launch], gpu: GPU) -> tuple[Track, ...]:
    """Yield every path of each kernel of `launches`: the kernel executed once, then its loops."""
    tracks = []
    for entry in dict.fromkeys(launch.entry for launch in launches):
        code = cubin.instructions(entry)
        for path in simulate_kernel(code, gpu, 1, 1):
            first, last = (path.path.indices[at] * BYTES for at in (0, -1))
            place = f"loop {first:#x} to {last:#x}" if path.path.repeats else "once through"
            tracks.append(Track(entry, _role(code, path, gpu), place, tuple(_spans(path))))
    return tuple(tracks)


def _spans(path: PathCycles) -> Iterator[Span]:
    """Yield the waits in order, with all cycles between two of them as one interval of issuing."""
    waits: defaultdict[int, list[Span]] = defaultdict(list)
    for stall in path.stalls:
        waits[stall.index].append(Span(stall.cause, stall.cycles))
    issued = 0
    for index in path.path.indices:
        if waits[index] and issued:
            yield Span(ISSUE, float(issued))
            issued = 0
        yield from waits[index]
        issued += 1
    if issued:
        yield Span(ISSUE, float(issued))


def _role(code: Sequence[Instruction], path: PathCycles, gpu: GPU) -> str:
    timings = [timing_of(code[index], gpu) for index in path.path.indices]
    if any(timing.pipe == "tensor" or timing.cause == "wgmma" for timing in timings):
        return "products"
    copies = any(code[index].mnemonic in _COPIES for index in path.path.indices)
    return "copies" if copies or any(timing.cause in LOADS for timing in timings) else "computes"
