"""Machine code in regions, each a loop without the loops inside it, and how often a block's warps pass each of them.

The PTX of a block was executed, and ptxas made machine code of it: it keeps the order of loops, and unrolls some of
them or all passes of some. Loops are matched in their order by what they access and multiply. How many passes of the
one are a pass of the other, what both do in a pass tells.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tuner.backends.ptx.counting import Access, Counts
from tuner.backends.ptx.counting.tally import Metric
from tuner.backends.ptx.instructions.access import space_of
from tuner.backends.ptx.text.parse import Instruction as Ptx
from tuner.compiler.sass.decode import Instruction
from tuner.compiler.sass.paths import Path, is_detour, paths

_ALONE = 1.5  # what it costs in a matching to leave a loop without one, in kinds of work that differ
_DEPTH = 0.25
_EXACT = 6  # multiply-adds that refine a quotient or a root to the last bit

# What ptxas neither adds nor takes away, but for what it unrolls.
_KINDS: Mapping[str, str] = {
    **dict.fromkeys(("LDG", "LD"), "global load"),
    **dict.fromkeys(("STG", "ST"), "global store"),
    **dict.fromkeys(("LDS", "LDSM"), "shared load"),
    **dict.fromkeys(("STS", "STSM"), "shared store"),
    **dict.fromkeys(("FFMA", "FMUL", "FADD"), "fp32"),
    **dict.fromkeys(("HMMA", "IMMA", "DMMA"), "products"),
    **dict.fromkeys(("RED", "ATOM", "ATOMG", "ATOMS"), "atomic"),
    **dict.fromkeys(("DFMA", "DMUL", "DADD"), "fp64"),
    "LDGSTS": "copy",
    "BAR": "barrier",
    "MUFU": "function",
    "SHFL": "lanes",
}


@dataclass(frozen=True, slots=True)
class Region:
    """A loop's own machine code along its common way, or the kernel's; `passes` of a block's warps together."""

    path: Path
    passes: float
    trips: float  # passes each time that a warp comes there
    accesses: tuple[Access, ...]  # of all passes


@dataclass(frozen=True)
class _Loop:
    """A loop on either side: what a pass of its own does, by kind."""

    span: range
    depth: int
    kinds: Mapping[str, float]


def regions(code: Sequence[Instruction], counts: Counts) -> tuple[Region, ...]:
    """The kernel around its loops, then its loops that blocks pass."""
    ways = [each for each in paths(code) if not (each.repeats and is_detour(each, code))]
    spans = [range(each.indices[0], each.indices[-1] + 1) for each in ways if each.repeats]
    own = [_own(each, spans) for each in ways]
    machine = [
        _Loop(span, _depth(span, spans), _machine_kinds(code, indices))
        for span, indices in zip(spans, own[len(own) - len(spans) :], strict=True)
    ]
    executed = _executed_loops(counts)
    matched = _matched(executed, machine)
    found = []
    taken: set[int] = set()
    for way, indices in zip(ways, own, strict=True):
        if not way.repeats:
            continue
        place = spans.index(range(way.indices[0], way.indices[-1] + 1))
        if (source := matched.get(place)) is None:
            continue
        taken.add(source)
        loop, ptx = counts.loops[source], executed[source]
        passes = float(counts.tally[Metric.WARPS, loop.start])
        unrolled = _unrolled(machine[place].kinds, ptx.kinds)
        if passes and indices:
            accesses = _accesses(counts, ptx.span, [each.span for each in executed])
            found.append(Region(Path(indices, True), passes / unrolled, max(1.0, loop.trips / unrolled), accesses))
    rest = [each.span for i, each in enumerate(executed) if i in taken]
    once = [(indices, way) for indices, way in zip(own, ways, strict=True) if not way.repeats]
    whole = range(len(counts.entry.code))
    around = [
        Region(Path(indices, False), float(counts.warps), 1.0, _accesses(counts, whole, rest)) for indices, _ in once
    ]
    return (*around, *found)


def _own(way: Path, spans: Sequence[range]) -> tuple[int, ...]:
    """The indices of a path that lie in none of the loops inside it."""
    this = range(way.indices[0], way.indices[-1] + 1)
    inner = [each for each in spans if _inside(each, this) and not (way.repeats and each == this)]
    return tuple(index for index in way.indices if not any(index in each for each in inner))


def _inside(inner: range, outer: range) -> bool:
    return outer.start <= inner.start and inner.stop <= outer.stop


def _depth(span: range, spans: Sequence[range]) -> int:
    return sum(_inside(span, each) and each != span for each in spans)


def _machine_kinds(code: Sequence[Instruction], indices: Sequence[int]) -> Mapping[str, float]:
    return Counter(kind for index in indices if (kind := _KINDS.get(code[index].mnemonic)))


def _executed_loops(counts: Counts) -> list[_Loop]:
    spans = [range(each.start, each.stop + 1) for each in counts.loops]
    warps = counts.tally[Metric.WARPS]
    found = []
    for span in spans:
        inner = [each for each in spans if _inside(each, span) and each != span]
        kinds: Counter[str] = Counter()
        for at in span:
            if not any(at in each for each in inner):
                for kind, times in kinds_of(counts.entry.code[at]).items():
                    kinds[kind] += times * warps[at]
        passes = max(1.0, float(warps[span.start]))
        found.append(_Loop(span, _depth(span, spans), {kind: count / passes for kind, count in kinds.items()}))
    return found


def kinds_of(each: Ptx) -> Mapping[str, int]:
    """The kinds of work of an instruction of PTX that machine code shows, and how often it does each."""
    name = each.opcode[0]
    if name in ("ld", "ldu", "st") and (space := space_of(each)) in ("global", "shared", "generic"):
        return {f"{'shared' if space == 'shared' else 'global'} {'store' if name == 'st' else 'load'}": 1}
    if name in ("fma", "mul", "add", "sub") and each.type in ("f32", "f64"):
        return {"fp32" if each.type == "f32" else "fp64": 1}
    if name in ("div", "sqrt", "rcp") and each.has("rn", "rz", "rm", "rp") and each.type == "f32":
        return {"function": 1, "fp32": _EXACT}
    if name in ("ex2", "lg2", "rcp", "rsqrt", "sqrt", "sin", "cos", "tanh", "div"):
        return {"function": 1}
    if each.opcode[:3] in (("cp", "async", "ca"), ("cp", "async", "cg")):
        return {"copy": 1}
    if name == "bar" and not each.has("warp"):
        return {"barrier": 1}
    others = {"mma": "products", "wmma": "products", "ldmatrix": "shared load", "stmatrix": "shared store"}
    others |= {"atom": "atomic", "red": "atomic", "shfl": "lanes"}
    return {others[name]: 1} if name in others else {}


def _matched(executed: Sequence[_Loop], machine: Sequence[_Loop]) -> dict[int, int]:
    """For loops of machine code, those of the PTX that they are: in order, at the least difference."""
    rows, columns = len(machine), len(executed)
    best = [[_ALONE * (i + j) for j in range(columns + 1)] for i in range(rows + 1)]
    step: dict[tuple[int, int], str] = {}
    for i in range(1, rows + 1):
        for j in range(1, columns + 1):
            ways = {
                "both": best[i - 1][j - 1] + _difference(machine[i - 1], executed[j - 1]),
                "machine": best[i - 1][j] + _ALONE,
                "executed": best[i][j - 1] + _ALONE,
            }
            step[i, j] = min(ways, key=lambda way: ways[way])
            best[i][j] = ways[step[i, j]]
    found, i, j = {}, rows, columns
    while i and j:
        if step[i, j] == "both":
            found[i - 1] = j - 1
        i, j = i - (step[i, j] != "executed"), j - (step[i, j] != "machine")
    return found


def _difference(a: _Loop, b: _Loop) -> float:
    kinds = {*a.kinds, *b.kinds}
    apart = sum((a.kinds.get(kind, 0.0) > 0) != (b.kinds.get(kind, 0.0) > 0) for kind in kinds)
    return apart + _DEPTH * abs(a.depth - b.depth)


def _unrolled(machine: Mapping[str, float], executed: Mapping[str, float]) -> float:
    """Passes of the PTX in one of the machine code: by the lower median of what both do, since ptxas adds some."""
    ratios = sorted(machine[kind] / executed[kind] for kind in machine if executed.get(kind))
    return max(1.0, float(round(ratios[(len(ratios) - 1) // 2]))) if ratios else 1.0


def _accesses(counts: Counts, span: range, others: Sequence[range]) -> tuple[Access, ...]:
    """Of a loop's own instructions."""
    inner = [each for each in others if _inside(each, span) and each != span]
    places: Callable[[int], bool] = lambda at: at in span and not any(at in each for each in inner)  # noqa: E731
    lines = {each.line: at for at, each in enumerate(counts.entry.code)}
    return tuple(each for each in counts.accesses if places(lines[each.line]))
