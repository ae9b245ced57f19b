"""A kernel in the form that the replay executes: each instruction with its timing, its operands and its action."""

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum, auto

from tuner.arch import GPU, PARTITIONS
from tuner.compiler.sass.cta.evaluate import Evaluate, evaluator
from tuner.compiler.sass.cta.needed import needed
from tuner.compiler.sass.cta.operands import Line, lines
from tuner.compiler.sass.decode import Instruction, successors
from tuner.compiler.sass.fields import bits, ends_group, groups_left, hgmma_columns, waits_for_groups
from tuner.compiler.sass.instruction_timing import Timing, timing_of


class Kind(IntEnum):
    """The action of an instruction beyond its timing."""

    PLAIN = auto()
    BRANCH = auto()
    EXIT = auto()
    DIVERGE = auto()  # BSSY
    CONVERGE = auto()  # BSYNC, WARPSYNC
    BARRIER = auto()  # BAR
    CLUSTER_BARRIER = auto()
    MBARRIER = auto()  # SYNCS
    LOAD_TILE = auto()  # UTMALDG
    STORE_TILE = auto()  # UTMASTG
    COMMIT_STORES = auto()
    PRODUCT = auto()  # HGMMA
    GATHER = auto()  # WARPGROUP.ARRIVE: all warps of a group
    SHARED = auto()  # loads and stores whose values are needed
    LOCAL = auto()
    TICKET = auto()  # atomic additions
    FENCE = auto()  # MEMBAR: earlier accesses to memory have been performed


_KINDS: Mapping[str, Kind] = {
    "BRA": Kind.BRANCH,
    "EXIT": Kind.EXIT,
    "BSSY": Kind.DIVERGE,
    "BSYNC": Kind.CONVERGE,
    "BAR": Kind.BARRIER,
    "UCGABAR_ARV": Kind.PLAIN,
    "UCGABAR_WAIT": Kind.CLUSTER_BARRIER,
    "SYNCS": Kind.MBARRIER,
    "UTMALDG": Kind.LOAD_TILE,
    "UTMASTG": Kind.STORE_TILE,
    "UTMACMDFLUSH": Kind.COMMIT_STORES,
    "HGMMA": Kind.PRODUCT,
    "ATOMG": Kind.TICKET,
    "MEMBAR": Kind.FENCE,
}
PIPES = ("", "fp32", "multiply", "exp", "double", "uniform", "integer", "memory", "tensor", "wgmma")
_UNREACHED = 1 << 30
_A_IN_REGISTERS = 6  # form of an HGMMA


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction."""

    line: Line
    kind: Kind
    evaluate: Evaluate | None  # None: its results are not needed
    timing: Timing
    pipe: int  # an index of PIPES
    columns: int = 0  # of an HGMMA
    depth: int = 0
    from_registers: bool = False  # A of an HGMMA
    groups: int = -1  # groups of HGMMA that WARPGROUP.DEPBAR leaves in flight
    wavefronts: int = 0  # of shared memory, for the four warps of a warpgroup


@dataclass(frozen=True, slots=True)
class Program:
    """The steps of one kernel, by position in its code."""

    name: str
    steps: tuple[Step, ...]
    distances: tuple[int, ...]  # fewest instructions from each one to the end of the kernel, and after the last one


def program(name: str, listing: str, code: Sequence[Instruction], gpu: GPU) -> Program:
    """Return a kernel's steps from its machine code and nvdisasm's listing."""
    kernel = lines(listing, code)
    evaluated = needed(kernel)
    steps = tuple(_step(line, index in evaluated, gpu) for index, line in enumerate(kernel))
    return Program(name, steps, _distances(code))


def _distances(code: Sequence[Instruction]) -> tuple[int, ...]:
    before = defaultdict[int, list[int]](list)
    for index in range(len(code)):
        for successor in successors(code, index):
            before[successor].append(index)
    distances = [_UNREACHED] * (len(code) + 1)
    pending = deque(index for index, instruction in enumerate(code) if instruction.mnemonic == "EXIT")
    for index in pending:
        distances[index] = 0
    while pending:
        index = pending.popleft()
        for previous in before[index]:
            if distances[previous] == _UNREACHED:
                distances[previous] = distances[index] + 1
                pending.append(previous)
    return tuple(distances)


def _step(line: Line, evaluated: bool, gpu: GPU) -> Step:
    instruction = line.instruction
    word, timing = instruction.word, timing_of(instruction, gpu)
    kind = _KINDS.get(line.name, Kind.PLAIN)
    if line.name in ("LDS", "STS") and evaluated:
        kind = Kind.SHARED
    elif line.name == "WARPSYNC" and line.has("ALL"):
        kind = Kind.CONVERGE
    elif line.name in ("LDL", "STL") and evaluated:
        kind = Kind.LOCAL
    groups = -1
    if line.name == "WARPGROUP":
        waits = waits_for_groups(word)
        kind, groups = (Kind.PLAIN, groups_left(word)) if waits else (Kind.GATHER, -1)
    evaluate = evaluator(line) if evaluated and kind is Kind.PLAIN else None
    if line.name == "STSM":
        timing = replace(timing, interval=float(_wavefronts(line)))
    pipe = PIPES.index(timing.pipe)
    if kind is Kind.PRODUCT:
        depth = 8 if bits(word, 77, 1) else 16
        return Step(
            line, kind, None, timing, pipe, hgmma_columns(word), depth, bits(word, 9, 3) == _A_IN_REGISTERS, groups
        )
    return Step(line, kind, evaluate, timing, pipe, groups=groups, wavefronts=_wavefronts(line))


def _wavefronts(line: Line) -> int:
    """Return the number of wavefronts without bank conflicts."""
    if line.name not in ("LDS", "STS", "LDSM", "STSM", "ATOMS"):
        return 0
    wide = {"128": 4, "4": 4, "64": 2, "2": 2}
    return PARTITIONS * max((wide[modifier] for modifier in line.modifiers if modifier in wide), default=1)


def ends(step: Step) -> bool:
    """Return whether an HGMMA is the last one of its group."""
    return ends_group(step.line.instruction.word)
