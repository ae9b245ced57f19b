"""Work that nobody declared: what the machine code of launches tells of it, beside what the operator's cost says.

Machine code says what one pass of each loop does, and not how many there are. All loops of a kernel, or those that
multiply matrices where some do, are taken to be passed equally often: as often as it takes for the products that the
cost counts, else for the bytes that the launch leaves, else for the arithmetic or the bytes of the cost. Other loops
are passed once.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tuner.arch import MMA_FLOPS
from tuner.compiler.cubin import Cubin
from tuner.compiler.sass.decode import Instruction, decode, mix_of, work_mix
from tuner.compiler.sass.fields import copies_left
from tuner.compiler.sass.paths import is_detour, paths
from tuner.spec.operator import Operator, Work
from tuner.spec.plan import Launch, Plan

_FMA_FLOPS = 64  # of a warp
_LANES = 32
_WAVEFRONT = 128  # bytes that an SM's memory takes or gives in a clock
_LOADS, _STORES = frozenset({"LDG", "LD", "LDGSTS"}), frozenset({"STG", "ST"})
_PLAIN = ("alu", "uniform", "control", "const", "order", "other")  # what issues and is nothing else


def work_of_code(
    operator: Operator[Any], problem: Any, plan: Plan, least: Sequence[Work], cubin: Cubin
) -> tuple[Work, ...]:
    """What each launch does, `least` of it by the operator's cost: DRAM gives no more than that."""
    each = zip(plan.launches, least, _left(operator, problem, plan), strict=True)
    return tuple(_counted(launch, work, left, cubin) for launch, work, left in each)


@dataclass(frozen=True, slots=True)
class _Pass:
    """What a warp does on one way through machine code: instructions by class, bytes of global memory."""

    mix: Mapping[str, float]
    loaded: float
    stored: float
    wavefronts: float  # of those bytes
    stages: int  # steps whose copies have a place: of `cp_async_wait<N>`, N are ahead

    def sum(self, *classes: str) -> float:
        return sum(self.mix.get(name, 0.0) for name in classes)


def _counted(launch: Launch, least: Work, left: float, cubin: Cubin) -> Work:
    arch, code = cubin.options.arch, decode(cubin.code(launch.entry), cubin.options.arch)
    ways = (each for each in paths(code) if not (each.repeats and is_detour(each, code)))
    found = [(each.repeats, _pass([code[index] for index in each.indices], arch)) for each in ways]
    once, loops = [each for repeats, each in found if not repeats], [each for repeats, each in found if repeats]
    loops = [each for each in loops if each.sum("mma")] or loops
    warps = least.ctas * least.warps
    passes = _passes(loops, least, left, warps)

    def total(of: Callable[[_Pass], float]) -> float:
        return warps * (sum(map(of, once)) + (passes - 1) * sum(map(of, loops)))

    multiplies = any(each.sum("mma") for each in (*once, *loops))
    return replace(
        least,
        mma=least.fma * _FMA_FLOPS / MMA_FLOPS if multiplies else 0.0,
        fma=total(lambda each: each.sum("fma")),
        paired=total(lambda each: each.sum("paired")),
        mufu=total(lambda each: each.sum("mufu")),
        alu=total(lambda each: each.sum(*_PLAIN)),
        smem_wavefronts=total(lambda each: each.wavefronts + each.sum("shared", "lanes")),
        l2_bytes=max(least.l2_bytes, total(lambda each: each.loaded + each.stored)),
        chain=passes,
        stages=max((each.stages for each in loops), default=1),
    )


def _pass(code: Sequence[Instruction], arch: str) -> _Pass:
    counts = mix_of((each.word for each in code), arch)
    accesses = [(name.partition(".")[0], _LANES * _bits(name) / 8, count) for name, count in counts.items()]
    loaded, stored = (sum(size * n for name, size, n in accesses if name in kind) for kind in (_LOADS, _STORES))
    wavefronts = sum(max(1.0, size / _WAVEFRONT) * n for name, size, n in accesses if name in _LOADS | _STORES)
    ahead = [copies_left(each.word) for each in code if each.mnemonic == "DEPBAR" and "LDGDEPBAR" in counts]
    return _Pass(work_mix(counts), loaded, stored, wavefronts, 2 + max(ahead) if ahead else 1)


def _bits(name: str) -> int:
    """Of a thread's access, such as LDG.128."""
    base, _, bits = name.partition(".")
    return int(bits) if base in _LOADS | _STORES and bits else 0


def _passes(loops: Sequence[_Pass], least: Work, left: float, warps: int) -> float:
    flops = least.fma * _FMA_FLOPS
    anchors = (
        (flops / MMA_FLOPS, sum(each.sum("mma") for each in loops)),
        (left, sum(each.stored for each in loops)),
        (flops / _FMA_FLOPS, sum(each.sum("fma") for each in loops)),
        (least.dram_bytes, sum(each.loaded for each in loops)),
    )
    return next((max(1.0, amount / each / warps) for amount, each in anchors if amount and each), 1.0)


def _left(operator: Operator[Any], problem: Any, plan: Plan) -> Iterator[float]:
    """Bytes that each launch leaves: results that it takes, and workspaces that no launch before it took."""
    results = {each.name: each.nbytes(problem) for each in operator.written}
    spaces = {each.name: each.nbytes for each in plan.workspaces}
    for launch in plan.launches:
        taken = (*results, *spaces) if launch.arguments is None else launch.arguments
        yield float(sum(results.get(name, 0) + spaces.pop(name, 0) for name in taken))
