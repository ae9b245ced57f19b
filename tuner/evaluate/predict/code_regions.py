"""Divides machine code into regions, each a loop without its inner loops, and counts the passes of each.

Counts come from executed PTX, which ptxas compiled to this machine code: it keeps the order of loops, and unrolls some
of them, partly or completely. Loops of both sides are matched in order by what they access and compute; the ratio of
that work gives the unroll factor.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner.backends.ptx.counting import Access, Counts
from tuner.backends.ptx.counting.memory_traffic import Metric
from tuner.backends.ptx.instructions.access import space_of
from tuner.backends.ptx.text.parse import Instruction as Ptx
from tuner.compiler.sass.decode import Instruction
from tuner.compiler.sass.paths import Path, frequent_paths

_UNMATCHED = 1.5  # penalty of a loop without a partner, in kinds of work that differ: a guess
_DEPTH = 0.25  # penalty per level of nesting that differs: a guess
_EXACT = 6  # multiply-adds that refine a quotient or a root to the last bit, counted in machine code

# Kinds of work that ptxas neither adds nor removes, except by unrolling.
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
    """A loop's code along its common path without its inner loops, or the kernel's without its loops."""

    path: Path
    passes: float  # passes summed over the warps of a block
    trips: float  # passes each time that a warp enters the loop
    accesses: tuple[Access, ...]  # accesses summed over all passes
    share: float = 1.0  # mean fraction of the path that a warp executes: some warps skip parts of it
    double_share: float = 1.0  # the same of its fp64 arithmetic and conversions


@dataclass(frozen=True)
class _Loop:
    """A loop of PTX or of machine code, with the work of one pass by kind, inner loops excluded."""

    span: range
    depth: int
    kinds: Mapping[str, float]


def regions(code: Sequence[Instruction], counts: Counts) -> tuple[Region, ...]:
    """The kernel outside its loops, then each loop that blocks execute."""
    all_paths = frequent_paths(code)
    loop_paths = [path for path in all_paths if path.repeats]
    spans = [path.span for path in loop_paths]
    bodies = [_without(path.indices, _inner(path.span, spans)) for path in loop_paths]
    machine = [
        _Loop(span, _depth(span, spans), _machine_kinds(code, body)) for span, body in zip(spans, bodies, strict=True)
    ]
    executed = _executed_loops(counts)
    matched = _matched(executed, machine)
    loops, executed_spans = [], [loop.span for loop in executed]
    for position, source in sorted(matched.items()):
        loop = counts.loops[source]
        passes = float(counts.tally[Metric.WARPS, loop.start])
        unroll = _unroll_factor(machine[position].kinds, executed[source].kinds)
        if passes and bodies[position]:
            accesses = _accesses(counts, executed[source].span, executed_spans)
            path = Path(bodies[position], True)
            loops.append(Region(path, passes / unroll, max(1.0, loop.trips / unroll), accesses))
    matched_spans = [executed[source].span for source in sorted(set(matched.values()))]
    accesses = _accesses(counts, range(len(counts.entry.code)), matched_spans)
    outside = _without(range(len(counts.entry.code)), matched_spans)
    executed_once = _executed_kinds(counts, outside)
    double_share = _double_share(counts, outside)
    once = [_without(path.indices, _inside(path.span, spans)) for path in all_paths if not path.repeats]
    kinds = [_machine_kinds(code, indices) for indices in once]
    whole = (
        Region(
            Path(indices, False),
            float(counts.warps),
            1.0,
            accesses,
            _share(executed_once, of_path, counts.warps),
            double_share,
        )
        for indices, of_path in zip(once, kinds, strict=True)
    )
    return (*whole, *loops)


def _double_share(counts: Counts, indices: Sequence[int]) -> float:
    """Mean fraction of the warps that execute each instruction with a type of fp64."""
    double = [index for index in indices if "f64" in counts.entry.code[index].opcode]
    executed = sum(float(counts.tally[Metric.WARPS][index]) for index in double)
    return executed / (counts.warps * len(double)) if double else 1.0


def _share(executed: Mapping[str, float], machine: Mapping[str, float], warps: int) -> float:
    on_path = warps * sum(machine.values())
    return min(1.0, sum(executed.get(kind, 0.0) for kind in machine) / on_path) if on_path else 1.0


def _inside(outer: range, spans: Sequence[range]) -> list[range]:
    return [span for span in spans if outer.start <= span.start and span.stop <= outer.stop]


def _inner(outer: range, spans: Sequence[range]) -> list[range]:
    return [span for span in _inside(outer, spans) if span != outer]


def _without(indices: Sequence[int], spans: Sequence[range]) -> tuple[int, ...]:
    return tuple(index for index in indices if not any(index in span for span in spans))


def _depth(span: range, spans: Sequence[range]) -> int:
    return sum(bool(_inner(other, [span])) for other in spans)


def _machine_kinds(code: Sequence[Instruction], indices: Sequence[int]) -> Mapping[str, float]:
    return Counter(kind for index in indices if (kind := _KINDS.get(code[index].mnemonic)))


def _executed_loops(counts: Counts) -> list[_Loop]:
    spans = [range(loop.start, loop.stop + 1) for loop in counts.loops]
    loops = []
    for span in spans:
        kinds = _executed_kinds(counts, _without(span, _inner(span, spans)))
        passes = max(1.0, float(counts.tally[Metric.WARPS][span.start]))
        loops.append(_Loop(span, _depth(span, spans), {kind: count / passes for kind, count in kinds.items()}))
    return loops


def _executed_kinds(counts: Counts, indices: Sequence[int]) -> Counter[str]:
    """Work by kind of all warps."""
    kinds: Counter[str] = Counter()
    for index in indices:
        for kind, amount in kinds_of(counts.entry.code[index]).items():
            kinds[kind] += amount * counts.tally[Metric.WARPS][index]
    return kinds


def kinds_of(instruction: Ptx) -> Mapping[str, int]:
    """Amounts by kind of the work of a PTX instruction that is recognisable in machine code."""
    name = instruction.opcode[0]
    if name in ("ld", "ldu", "st") and (space := space_of(instruction)) in ("global", "shared", "generic"):
        return {f"{'shared' if space == 'shared' else 'global'} {'store' if name == 'st' else 'load'}": 1}
    if name in ("fma", "mul", "add", "sub") and instruction.type in ("f32", "f64"):
        return {"fp32" if instruction.type == "f32" else "fp64": 1}
    if name in ("div", "sqrt", "rcp") and instruction.has("rn", "rz", "rm", "rp") and instruction.type == "f32":
        return {"function": 1, "fp32": _EXACT}
    if name in ("ex2", "lg2", "rcp", "rsqrt", "sqrt", "sin", "cos", "tanh", "div"):
        return {"function": 1}
    if instruction.opcode[:3] in (("cp", "async", "ca"), ("cp", "async", "cg")):
        return {"copy": 1}
    if name == "bar" and not instruction.has("warp"):
        return {"barrier": 1}
    others = {"mma": "products", "wmma": "products", "ldmatrix": "shared load", "stmatrix": "shared store"}
    others |= {"atom": "atomic", "red": "atomic", "shfl": "lanes"}
    return {others[name]: 1} if name in others else {}


def _matched(executed: Sequence[_Loop], machine: Sequence[_Loop]) -> dict[int, int]:
    """Executed loop of each machine loop, by index: the in-order alignment with the least difference."""
    rows, columns = len(machine), len(executed)
    best = [[_UNMATCHED * (i + j) for j in range(columns + 1)] for i in range(rows + 1)]
    step: dict[tuple[int, int], tuple[int, int]] = {}
    for i in range(1, rows + 1):
        for j in range(1, columns + 1):
            moves = {
                (1, 1): best[i - 1][j - 1] + _difference(machine[i - 1], executed[j - 1]),
                (1, 0): best[i - 1][j] + _UNMATCHED,
                (0, 1): best[i][j - 1] + _UNMATCHED,
            }
            step[i, j] = min(moves, key=moves.__getitem__)
            best[i][j] = moves[step[i, j]]
    pairs, i, j = {}, rows, columns
    while i and j:
        if step[i, j] == (1, 1):
            pairs[i - 1] = j - 1
        i, j = i - step[i, j][0], j - step[i, j][1]
    return pairs


def _difference(a: _Loop, b: _Loop) -> float:
    kinds = {*a.kinds, *b.kinds}
    differing = sum((a.kinds.get(kind, 0.0) > 0) != (b.kinds.get(kind, 0.0) > 0) for kind in kinds)
    return differing + _DEPTH * abs(a.depth - b.depth)


def _unroll_factor(machine: Mapping[str, float], executed: Mapping[str, float]) -> float:
    """The lower median of the ratios of work by kind, since ptxas adds some."""
    ratios = sorted(machine[kind] / executed[kind] for kind in machine if executed.get(kind))
    return max(1.0, float(round(ratios[(len(ratios) - 1) // 2]))) if ratios else 1.0


def _accesses(counts: Counts, span: range, spans: Sequence[range]) -> tuple[Access, ...]:
    """Accesses of the instructions in `span` outside the loops inside it."""
    lines = {counts.entry.code[index].line for index in _without(span, _inner(span, spans))}
    return tuple(access for access in counts.accesses if access.line in lines)
