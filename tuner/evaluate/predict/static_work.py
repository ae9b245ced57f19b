"""Estimates undeclared work from machine code and the operator's cost, without executing anything.

Machine code shows what one pass of each loop does, but not the number of passes. All loops of a kernel, or only those
with matrix products if there are any, are assumed to have equal trip counts, which follow from the products of the
operator's cost, else from the bytes that the launch writes, else from the cost's arithmetic or bytes. Other loops count
as one pass.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tuner.arch import MMA_FLOPS
from tuner.compiler.cubin import Cubin
from tuner.compiler.sass.decode import Instruction, instruction_mix, work_mix
from tuner.compiler.sass.fields import copies_left
from tuner.compiler.sass.paths import frequent_paths
from tuner.spec.instance import Instance
from tuner.spec.operator import Work
from tuner.spec.plan import Launch

_FMA_FLOPS = 64  # FLOPs of a warp's FMA
_LANES = 32
_WAVEFRONT = 128  # bytes that an SM's shared memory or L1 transfers in a cycle
_LOADS, _STORES = frozenset({"LDG", "LD", "LDGSTS"}), frozenset({"STG", "ST"})
_PLAIN = ("alu", "uniform", "control", "const", "order", "other")  # they cost an issue slot and nothing else


def static_work(instance: Instance, least: Sequence[Work], cubin: Cubin) -> tuple[Work, ...]:
    """Work of each launch; `least` is its share of the operator's cost, which also bounds the bytes from DRAM."""
    launches = zip(instance.plan().launches, least, _written_bytes(instance), strict=True)
    return tuple(_launch_work(launch, work, written, cubin) for launch, work, written in launches)


@dataclass(frozen=True, slots=True)
class _Pass:
    """One pass of a warp through a path: instructions by class, and bytes of global memory."""

    mix: Mapping[str, float]
    loaded: float
    stored: float
    wavefronts: float  # wavefronts of global memory accesses
    stages: int  # stages of asynchronous copies: `cp_async_wait<N>` leaves N in flight

    def total(self, *classes: str) -> float:
        return sum(self.mix.get(name, 0.0) for name in classes)


def _launch_work(launch: Launch, least: Work, written: float, cubin: Cubin) -> Work:
    code = cubin.instructions(launch.entry)
    passes = [(path.repeats, _pass([code[index] for index in path.indices])) for path in frequent_paths(code)]
    once = [code_pass for repeats, code_pass in passes if not repeats]
    loops = [code_pass for repeats, code_pass in passes if repeats]
    loops = [code_pass for code_pass in loops if code_pass.total("mma")] or loops
    warps = least.ctas * least.warps
    trips = _trips(loops, least, written, warps)

    def total(amount: Callable[[_Pass], float]) -> float:
        return warps * (sum(map(amount, once)) + (trips - 1) * sum(map(amount, loops)))

    multiplies = any(code_pass.total("mma") for code_pass in (*once, *loops))
    return replace(
        least,
        mma=least.fma * _FMA_FLOPS / MMA_FLOPS if multiplies else 0.0,
        fma=total(lambda code_pass: code_pass.total("fma")),
        paired=total(lambda code_pass: code_pass.total("paired")),
        mufu=total(lambda code_pass: code_pass.total("mufu")),
        alu=total(lambda code_pass: code_pass.total(*_PLAIN)),
        smem_wavefronts=total(lambda code_pass: code_pass.wavefronts + code_pass.total("shared", "lanes")),
        l2_bytes=max(least.l2_bytes, total(lambda code_pass: code_pass.loaded + code_pass.stored)),
        chain=trips,
        stages=max((code_pass.stages for code_pass in loops), default=1),
    )


def _pass(code: Sequence[Instruction]) -> _Pass:
    counts = instruction_mix(code)
    accesses = [(name.partition(".")[0], _LANES * _thread_bits(name) / 8, count) for name, count in counts.items()]
    loaded, stored = (sum(size * n for name, size, n in accesses if name in kind) for kind in (_LOADS, _STORES))
    wavefronts = sum(max(1.0, size / _WAVEFRONT) * n for name, size, n in accesses if name in _LOADS | _STORES)
    waits = [copies_left(x.word) for x in code if x.mnemonic == "DEPBAR" and "LDGDEPBAR" in counts]
    return _Pass(work_mix(counts), loaded, stored, wavefronts, 2 + max(waits) if waits else 1)


def _thread_bits(name: str) -> int:
    """Bits per thread of an access such as LDG.128."""
    base, _, bits = name.partition(".")
    return int(bits) if base in _LOADS | _STORES and bits else 0


def _trips(loops: Sequence[_Pass], least: Work, written: float, warps: int) -> float:
    flops = least.fma * _FMA_FLOPS
    anchors = (
        (flops / MMA_FLOPS, sum(code_pass.total("mma") for code_pass in loops)),
        (written, sum(code_pass.stored for code_pass in loops)),
        (flops / _FMA_FLOPS, sum(code_pass.total("fma") for code_pass in loops)),
        (least.dram_bytes, sum(code_pass.loaded for code_pass in loops)),
    )
    return next((max(1.0, amount / per_pass / warps) for amount, per_pass in anchors if amount and per_pass), 1.0)


def _written_bytes(instance: Instance) -> Iterator[float]:
    """Bytes that each launch writes: results among its arguments, and workspaces that no earlier launch used."""
    plan = instance.plan()
    results = {argument.name: argument.nbytes(instance.problem) for argument in instance.operator.written}
    spaces = {space.name: space.nbytes for space in plan.workspaces}
    for launch in plan.launches:
        names = (*results, *spaces) if launch.arguments is None else launch.arguments
        yield float(sum(results.get(name, 0) + spaces.pop(name, 0) for name in names))
