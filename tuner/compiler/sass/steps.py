"""What an instruction asks of one of an SM's four schedulers: its control bits, its pipe, and what others measured.

Fixed latencies need no table, ptxas wrote them as stall counts. Those of shared memory, what the queue to memory takes
and when operands are read are tables 1 and 2 of Huerta et al. (Dissecting and Modeling the Architecture of Modern GPU
Cores, MICRO 2025; an A6000), those of LDSM are of Sun et al. (arXiv 2206.02874; an A100), that of loads from L2 is
between 211, 266 and 277 on A100, H100 PCIe and L40 (github.com/te42kyfo/gpu-benches). Rates are those of `tuner.arch`
and of the CUDA C++ Programming Guide. Other latencies are guesses near those: of MUFU and of conversions 18, of lanes
24, of a wgmma behind the tensor cores' time 32, of a barrier 20.
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

QUEUE = 5  # accesses that a scheduler takes before one of them is on its way (table 1)
BARRIER = 20.0
_COUNTERS = 6
_REQUEST = 2  # clocks of an SM for any access (table 1)
_LINE = 128  # bytes a clock of its shared memory, and of L1
_LOAD = 250.0
_CONVERSION = 18.0
_LANES = 24.0
_WGMMA = 32.0
_SHARED = {32: 24.0, 64: 24.0, 128: 26.0}  # by bits a thread
_MATRICES = {1: 23.0, 2: 25.0, 4: 29.0}
_SHARE = {"1688": 0.5, "16816": 1.0, "1684": 0.25, "16832": 2.0}  # of an m16n8k16 in 16-bit types
_OTHERS = {"LDC": 29.0, "LDCU": 29.0, "ULDC": 29.0, "S2R": 25.0, "S2UR": 25.0, "R2UR": 12.0, "REDUX": 25.0}
_UNKNOWN = 20.0


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction of a replay, in clocks of a scheduler."""

    stall: int  # until the warp may issue its next
    waits: tuple[int, ...]  # counters that must be zero
    result: int | None  # the counter that it raises until its result is there
    read: int | None  # likewise, until its operands are read
    cause: str  # what a wait for it is called
    pipe: str = ""
    interval: float = 1.0  # until the pipe takes the next
    latency: float = _UNKNOWN
    read_latency: float = 9.0
    queued: bool = False  # it waits for its pipe in a queue, the warp goes on
    copies: bool = False  # to shared memory, until a group of copies is told to be complete
    commits: bool = False  # tells so
    barrier: bool = False
    at_most: tuple[int, int] | None = None  # a counter, and how many it may hold
    groups: int | None = None  # of wgmma that may be unfinished
    ends_group: bool = False


def step_of(each: Instruction, gpu: GPU) -> Step:
    """What `each` asks of a scheduler of `gpu`. Accesses are without bank conflicts, in whole lines, and hit L2."""
    word, name = each.word, each.mnemonic
    waits = tuple(index for index in range(_COUNTERS) if word >> 116 + index & 1)
    step = Step(max(1, bits(word, 105, 4)), waits, _counter(word, 110), _counter(word, 113), name)
    if guard(word) == NEVER:
        return step
    if name == "HMMA":
        return replace(step, cause="products", pipe="tensor", interval=_mma_clocks(word, gpu))
    if name in ("HGMMA", "WARPGROUP"):
        return _wgmma(step, word, gpu) if name == "HGMMA" else _warpgroup(step, word)
    if name in ("LDGDEPBAR", "DEPBAR"):
        waited = (bits(word, 44, 3), copies_left(word)) if name == "DEPBAR" else None
        return replace(step, cause="copies", commits=name == "LDGDEPBAR", at_most=waited, latency=0.0)
    if name == "BAR":
        return replace(step, cause="barriers", barrier=True)
    if name in _ACCESSES:
        return _access(step, word, name)
    pipe = _PIPES.get(name, "")
    cause = "exponentials" if name == "MUFU" else name
    latency = _CONVERSION if pipe == "exp" else _OTHERS.get(name, _UNKNOWN)
    interval = _interval(pipe, gpu) * (2 if name in PACKED else 1)
    return replace(step, cause=cause, pipe=pipe, interval=interval, latency=latency)


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
_ACCESSES: Mapping[str, str] = {  # what a wait for them is called
    **dict.fromkeys(("LDS", "LDSM"), "shared loads"),
    **dict.fromkeys(("STS", "STSM", "STG", "ST", "STL", "RED", "ATOMS"), "stores"),
    **dict.fromkeys(("LDG", "ATOMG"), "global loads"),
    **dict.fromkeys(("LD", "ATOM"), "generic loads"),
    **dict.fromkeys(("SHFL", "MOVM"), "lanes"),
    "LDGSTS": "copies",
    "LDL": "spills",
}


def _interval(pipe: str, gpu: GPU) -> float:
    """Clocks that a pipe takes for the 32 lanes of a warp."""
    lanes = {"fp32": gpu.arch.fp32_lanes // PARTITIONS, "exp": gpu.arch.exp_lanes // PARTITIONS, "double": 8, "": 32}
    return 32 / lanes.get(pipe, 16)


def _mma_clocks(word: int, gpu: GPU) -> float:
    """Of an m16n8k16 in 16-bit types, or its share; a k8 in tf32 takes as long as a k16."""
    share = 1.0 if bits(word, 83, 1) else _SHARE[hmma_shape(word)]
    return share * MMA_FLOPS * PARTITIONS / gpu.device.mma_flops


def _wgmma(step: Step, word: int, gpu: GPU) -> Step:
    """The scheduler's warp takes 16 of the 64 rows; 8 columns and 16 or 32 bytes of k are the unit."""
    flops = hgmma_columns(word) * 16 * PARTITIONS * 16 * 2
    clocks = flops / (gpu.device.wgmma_flops or gpu.device.mma_flops)
    last = ends_group(word)
    return replace(step, cause="wgmma", pipe="wgmma", interval=clocks, latency=_WGMMA, queued=True, ends_group=last)


def _warpgroup(step: Step, word: int) -> Step:
    return replace(step, cause="wgmma", groups=groups_left(word)) if waits_for_groups(word) else step


def _access(step: Step, word: int, name: str) -> Step:
    """The schedulers take turns at the SM's shared memory and L1, so that one has every fourth clock of them."""
    width = access_bits(word)
    size = {"LDSM": _LINE * matrices(word), "LDGSTS": 4 * _LINE, "SHFL": _LINE, "MOVM": _LINE}.get(name, 4 * width)
    latency, read = _LANES, 9.0
    if name in ("LDS", "LDL"):
        latency = _SHARED[max(width, 32)]
    elif name == "LDSM":
        latency = _MATRICES[matrices(word)]
    elif name in ("LDG", "ATOMG", "LD", "ATOM", "LDGSTS"):
        latency, read = _LOAD, 13.0 if name == "LDGSTS" else 11.0
    elif _ACCESSES[name] == "stores":
        read = 12.0 + {64: 2.0, 128: 6.0}.get(width, 0.0)
    return replace(
        step,
        cause=_ACCESSES[name],
        pipe="memory",
        interval=float(PARTITIONS * max(_REQUEST, size // _LINE)),
        latency=latency,
        read_latency=read,
        queued=True,
        copies=name == "LDGSTS",
    )


def _counter(word: int, at: int) -> int | None:
    value = bits(word, at, 3)
    return value if value < _COUNTERS else None
