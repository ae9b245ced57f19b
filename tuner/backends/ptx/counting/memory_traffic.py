"""Counts per instruction: executions, lanes, sectors, L1 misses, wavefronts."""

import math
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from tuner.backends.ptx.counting.bank_conflicts import BANK, distinct_pairs, shared_wavefronts
from tuner.backends.ptx.instructions.access import addresses, space_of
from tuner.backends.ptx.state.machine import Step
from tuner.backends.ptx.state.values import Array, Mask
from tuner.backends.ptx.state.wave import WARP, Wave
from tuner.backends.ptx.text.parse import BYTES, Instruction

SECTOR, LINE = 32, 128  # bytes per L2 sector and per L1 tag
_HASH = 0x9E3779B97F4A7C15
_LINES_PER_CYCLE = 4
_LOCAL = 1 << 52  # above all tensor addresses
_MEMORIZED = 64  # access patterns that are cached per instruction


class Metric(IntEnum):
    """A row of a tally."""

    WARPS = 0  # warps that executed the instruction
    LANES = 1  # their active lanes
    TAKEN = 2  # warps that took the branch
    REQUESTS = 3  # accesses by warps with an active lane
    DISTINCT = 4  # distinct addresses of these requests
    SECTORS = 5
    MISSES = 6  # sectors that missed in L1
    WAVEFRONTS = 7  # cycles of L1 or of shared memory


@dataclass(frozen=True, slots=True)
class Access:
    """One instruction that accesses memory. Counts are per block."""

    line: int  # line of the PTX
    text: str
    space: str  # global, shared, local or const
    kind: str  # load, store or atomic
    nbytes: int  # per lane
    requests: float
    lanes: float
    distinct: float
    sectors: float
    misses: float
    wavefronts: float


class L1Cache:
    """The L1 cache of a block: direct-mapped by a hash of the sector; a new sector evicts the one in its slot."""

    def __init__(self, nbytes: int) -> None:
        self._tags, self._aged = np.full(max(1, nbytes // SECTOR), -1, np.int64), 0

    def clear(self) -> None:
        self._tags[...] = -1
        self._aged = 0

    def age(self, misses: float) -> None:
        """Evict as `misses` sectors at unknown addresses would: each evicts a random slot."""
        self._aged += 1
        lost = 1 - math.exp(-misses / len(self._tags))
        self._tags[np.random.default_rng(self._aged).random(len(self._tags)) < lost] = -1

    def misses(self, sectors: Array) -> int:
        """Return how many of the distinct sectors miss, and insert them."""
        hashed = sectors.astype(np.uint64) * np.uint64(_HASH) >> np.uint64(20)
        slots = (hashed % np.uint64(len(self._tags))).astype(np.int64)
        misses = int(np.count_nonzero(self._tags[slots] != sectors))
        self._tags[slots] = sectors
        return misses


def kind_of(instruction: Instruction) -> str:
    return {"ld": "load", "ldu": "load", "st": "store", "cp": "load"}.get(instruction.opcode[0], "atomic")


def width_of(instruction: Instruction) -> int:
    """Return the bytes per lane."""
    if instruction.opcode[0] == "cp":
        return int(instruction.word(2), 0)
    if instruction.opcode[0] in ("ldmatrix", "stmatrix"):
        return 16
    values = 1 if instruction.opcode[0] in ("st", "red") else 0
    return BYTES[instruction.type] * len(instruction.words(values))


def counted(wave: Wave, instruction: Instruction, at: int, tally: Array, cache: L1Cache, real: Step | None) -> Step:
    """Return a step that counts an access to global, shared or local memory, and performs it if `real` is given."""
    space, width, kind = space_of(instruction), width_of(instruction), kind_of(instruction)
    where = next(i for i, operand in enumerate(instruction.operands) if not isinstance(operand, str | tuple))
    if instruction.opcode[0] == "cp":
        space, where = "global", 1
    if instruction.opcode[0] in ("ldmatrix", "stmatrix"):
        space = "shared"
    locate = addresses(wave, instruction.address(where), space)
    banked = space == "shared" or instruction.opcode[0] in ("ldmatrix", "stmatrix")
    fed = WARP if not banked or "matrix" not in instruction.opcode[0] else 8 * _matrices(instruction)
    held = kind == "load" and not instruction.has("cg", "volatile", "cv", "relaxed", "acquire", "cs")
    counts: dict[bytes, tuple[tuple[float, ...], Array]] = {}

    def step(mask: Mask) -> Mask:
        addresses = locate(wave.index(mask)).astype(np.int64)
        lanes = wave.numbers(mask)
        if fed < WARP:
            addresses, lanes = addresses[lanes % WARP < fed], lanes[lanes % WARP < fed]
        if space == "local":
            addresses, lanes = _interleaved(addresses, lanes, width)
        base = int(addresses[0]) & -LINE
        near = addresses - base
        key = near.tobytes() + lanes.tobytes()
        if key not in counts:
            if len(counts) >= _MEMORIZED:
                counts.clear()
            bytes_per_lane = BANK if space == "local" else width
            counts[key] = shared_wavefronts(near, lanes, width) if banked else _lines(near, lanes, bytes_per_lane)
        (requests, distinct, sectors, wavefronts), touched = counts[key]
        misses: float = 0
        if space in ("global", "generic", "local"):
            misses = cache.misses(touched + (base >> 5)) if held or space == "local" else sectors
        tally[Metric.REQUESTS : Metric.WAVEFRONTS + 1, at] += (requests, distinct, sectors, misses, wavefronts)
        return real(mask) if real else None

    return step


def _matrices(instruction: Instruction) -> int:
    return next((int(part[1:]) for part in instruction.opcode if part in ("x1", "x2", "x4")), 1)


def _interleaved(offsets: Array, lanes: Array, width: int) -> tuple[Array, Array]:
    """Return the addresses and lanes of the words of a local access: L1 stores one word of all lanes of a warp in a
    line.
    """
    words = offsets[:, None] // BANK + np.arange(max(1, width // BANK))
    lanes = np.repeat(lanes, words.shape[1])
    return _LOCAL + (lanes // WARP << 24) + (words.ravel() * WARP + lanes % WARP) * BANK, lanes


def _lines(at: Array, lanes: Array, width: int) -> tuple[tuple[float, ...], Array]:
    """Return ((requests, distinct addresses, sectors, wavefronts), all sectors).

    L1 looks up one line in the first cycle and four in each further one, and its banks behave like those of shared
    memory: measured on an A100 by stride (github.com/te42kyfo/gpu-benches, gpu-strides).
    """
    warps = lanes // WARP
    requests = len(np.unique(warps))
    addresses, sectors, lines = (distinct_pairs(warps, unit) for unit in (at, at // SECTOR, at // LINE))
    wavefronts = max(shared_wavefronts(at, lanes, width)[0][3], requests + (lines - requests) / _LINES_PER_CYCLE)
    return (requests, addresses, sectors, wavefronts), np.unique(at // SECTOR)
