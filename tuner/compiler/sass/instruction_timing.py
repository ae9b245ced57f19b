"""Timing of an instruction on one of an SM's four schedulers: its control bits, its pipe, and published latencies.

ptxas writes fixed latencies into the instructions as stall counts. The other constants name their source: [H] is Huerta
et al. (Dissecting and Modeling the Architecture of Modern GPU Cores, MICRO 2025, tables 1 and 2; an A6000), [S] is Sun
et al. (arXiv 2206.02874; an A100), [D] is a row of tests/evaluate/predict/data, [G] is a guess. Rates are those of
`tuner.arch` and of the CUDA C++ Programming Guide.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tuner.arch import GPU, MMA_FLOPS, PARTITIONS
from tuner.compiler.sass.decode import PACKED, Instruction
from tuner.compiler.sass.fields import (
    NEVER,
    access_bits,
    bits,
    copies_left,
    ends_group,
    groups_left,
    guard,
    hgmma_columns,
    hmma_shape,
    matrices,
    waits_for_groups,
)

QUEUE_ENTRIES = 5  # accesses that a scheduler issues before the first of them leaves [H]
BARRIER_LATENCY = 20.0  # [G]; published for H100: 15 to 30
_COUNTERS = 6
_REQUEST = 2  # cycles of an SM per access [H]
_BYTES_PER_CYCLE = 128  # shared memory and L1 of an SM: CUDA C++ Programming Guide
_LOAD_LATENCY = 250.0  # L2 hit, between 211 on A100 and 277 on L40 [D: pointer_chase.tsv]
_EXP_LATENCY = 18.0  # MUFU and conversions [G]; a chain of ex2 takes 18.9 on H100 [D: hopper_constants.tsv]
_LANES_LATENCY = 24.0  # shuffle [G], the same as a shared load
_WGMMA_LATENCY = 32.0  # behind the tensor cores' time [G]; published for H100: 64 to 66 [D: hopper_constants.tsv]
_SHARED_LATENCY = {32: 24.0, 64: 24.0, 128: 26.0}  # by bits per thread [H]
_MATRIX_LATENCY = {1: 23.0, 2: 25.0, 4: 29.0}  # LDSM, by number of matrices [S]
_SHARE = {"1688": 0.5, "16816": 1.0, "1684": 0.25, "16832": 2.0}  # work relative to an m16n8k16 in 16-bit types
_OTHER_LATENCY = {  # [G]
    **dict.fromkeys(("LDC", "LDCU", "ULDC"), 29.0),
    **dict.fromkeys(("S2R", "S2UR", "REDUX"), 25.0),
    "R2UR": 12.0,
}
_UNKNOWN_LATENCY = 20.0  # [G]


@dataclass(frozen=True, slots=True)
class Timing:
    """One instruction, in cycles of a scheduler."""

    stall: int  # until the warp may issue its next instruction
    waits: tuple[int, ...]  # counters that must be zero
    result: int | None  # the counter that it raises until its result is available
    read: int | None  # the counter that it raises until its operands are read
    cause: str  # name of a wait for it
    pipe: str = ""
    interval: float = 1.0  # until the pipe accepts the next instruction
    latency: float = _UNKNOWN_LATENCY
    read_latency: float = 9.0  # [H]
    queued: bool = False  # it waits for its pipe in a queue, and the warp continues
    copies: bool = False  # an asynchronous copy to shared memory
    commits: bool = False  # it commits the copies before it as a group
    barrier: bool = False
    at_most: tuple[int, int] | None = None  # a counter, and its largest allowed value
    groups: int | None = None  # groups of wgmma that may be unfinished
    ends_group: bool = False


def timing_of(instruction: Instruction, gpu: GPU) -> Timing:
    """Timing of an instruction on `gpu`. Accesses are assumed to be of whole lines, without bank conflicts, L2 hits."""
    word, name = instruction.word, instruction.mnemonic
    waits = tuple(index for index in range(_COUNTERS) if bits(word, 116 + index, 1))
    timing = Timing(max(1, bits(word, 105, 4)), waits, _counter(word, 110), _counter(word, 113), name)
    if guard(word) == NEVER:
        return timing
    if name == "HMMA":
        return replace(timing, cause="products", pipe="tensor", interval=_mma_cycles(word, gpu))
    if name in ("HGMMA", "WARPGROUP"):
        return _wgmma(timing, word, gpu) if name == "HGMMA" else _warpgroup(timing, word)
    if name in ("LDGDEPBAR", "DEPBAR"):
        waited = (bits(word, 44, 3), copies_left(word)) if name == "DEPBAR" else None
        return replace(timing, cause="copies", commits=name == "LDGDEPBAR", at_most=waited, latency=0.0)
    if name == "BAR":
        return replace(timing, cause="barriers", barrier=True)
    if name in _ACCESSES:
        return _access(timing, word, name)
    pipe = _PIPES.get(name, "")
    if bits(word, 0, 9) in _WIDE_CONVERSIONS and gpu.arch.double_lanes < gpu.arch.exp_lanes:
        pipe = "double"  # both have the rate of fp64 there
    cause = "exponentials" if name == "MUFU" else name
    latency = _EXP_LATENCY if pipe == "exp" else _OTHER_LATENCY.get(name, _UNKNOWN_LATENCY)
    interval = _interval(pipe, gpu) * (2 if name in PACKED else 1)
    return replace(timing, cause=cause, pipe=pipe, interval=interval, latency=latency)


_PIPES: Mapping[str, str] = {
    name: pipe
    for pipe, names in {
        "fp32": "FFMA FMUL FADD FFMA2 FADD2 FMUL2 HFMA2 HADD2 HMUL2",
        "multiply": "IMAD",
        "exp": "MUFU F2F F2I I2F FRND POPC FLO BREV FCHK",
        "double": "DFMA DMUL DADD DSETP",
        "uniform": "UMOV UIADD3 UIMAD ULEA ULOP3 USHF UISETP USEL UFLO",
        "integer": "FSEL FSETP F2FP FMNMX FMNMX3 HMNMX2 IADD3 IADD VIADD LEA LOP3 SHF PRMT SEL MOV CS2R IABS ISETP "
        "IMNMX VIMNMX VIMNMX3 VIADDMNMX PLOP3 P2R R2P I2FP VOTE",
    }.items()
    for name in names.split()
}
_WIDE_CONVERSIONS = range(0x110, 0x114)  # opcodes of F2F, F2I, I2F and FRND with a type of 64 bits
_ACCESSES: Mapping[str, str] = {  # name of a wait for each
    **dict.fromkeys(("LDS", "LDSM"), "shared loads"),
    **dict.fromkeys(("STS", "STSM", "STG", "ST", "STL", "RED", "ATOMS"), "stores"),
    **dict.fromkeys(("LDG", "ATOMG"), "global loads"),
    **dict.fromkeys(("LD", "ATOM"), "generic loads"),
    **dict.fromkeys(("SHFL", "MOVM"), "lanes"),
    "LDGSTS": "copies",
    "LDL": "spills",
}


def _interval(pipe: str, gpu: GPU) -> float:
    """Cycles that a pipe takes for the 32 lanes of a warp: the CUDA C++ Programming Guide, arithmetic throughput."""
    arch = gpu.arch
    lanes = {"fp32": arch.fp32_lanes, "exp": arch.exp_lanes, "double": arch.double_lanes, "": 32 * PARTITIONS}
    return 32 * PARTITIONS / lanes.get(pipe, 16 * PARTITIONS)


def _mma_cycles(word: int, gpu: GPU) -> float:
    """Cycles of a product: those of an m16n8k16 in 16-bit types, or a share; a k8 in tf32 takes as long as a k16."""
    share = 1.0 if bits(word, 83, 1) else _SHARE[hmma_shape(word)]
    return share * MMA_FLOPS * PARTITIONS / gpu.device.mma_flops


def _wgmma(timing: Timing, word: int, gpu: GPU) -> Timing:
    """The scheduler's warp computes 16 of the 64 rows; the unit is 8 columns by 32 bytes of k."""
    flops = hgmma_columns(word) * 16 * PARTITIONS * 16 * 2
    cycles = flops / (gpu.device.wgmma_flops or gpu.device.mma_flops)
    last = ends_group(word)
    return replace(
        timing, cause="wgmma", pipe="wgmma", interval=cycles, latency=_WGMMA_LATENCY, queued=True, ends_group=last
    )


def _warpgroup(timing: Timing, word: int) -> Timing:
    return replace(timing, cause="wgmma", groups=groups_left(word)) if waits_for_groups(word) else timing


def _access(timing: Timing, word: int, name: str) -> Timing:
    """The four schedulers share the SM's shared memory and L1, so that each has a quarter of the cycles."""
    width = access_bits(word)
    line = _BYTES_PER_CYCLE
    size = {"LDSM": line * matrices(word), "LDGSTS": 4 * line, "SHFL": line, "MOVM": line}.get(name, 4 * width)
    latency, read = _LANES_LATENCY, 9.0
    if name in ("LDS", "LDL"):
        latency = _SHARED_LATENCY[max(width, 32)]
    elif name == "LDSM":
        latency = _MATRIX_LATENCY[matrices(word)]
    elif name in ("LDG", "ATOMG", "LD", "ATOM", "LDGSTS"):
        latency, read = _LOAD_LATENCY, 13.0 if name == "LDGSTS" else 11.0  # [H]
    elif _ACCESSES[name] == "stores":
        read = 12.0 + {64: 2.0, 128: 6.0}.get(width, 0.0)  # [H]
    return replace(
        timing,
        cause=_ACCESSES[name],
        pipe="memory",
        interval=float(PARTITIONS * max(_REQUEST, size // _BYTES_PER_CYCLE)),
        latency=latency,
        read_latency=read,
        queued=True,
        copies=name == "LDGSTS",
    )


def _counter(word: int, at: int) -> int | None:
    value = bits(word, at, 3)
    return value if value < _COUNTERS else None
