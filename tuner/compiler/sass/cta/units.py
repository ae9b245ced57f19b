"""Units that the warps of an SM share: the bulk copy engine and its memories, tensor cores, instruction cache."""

from collections import deque

from tuner.compiler.sass.cta.launch import Box
from tuner.compiler.sass.cta.program import Step
from tuner.compiler.sass.cta.rates import Rates
from tuner.compiler.sass.cta.state import Missing, Tile
from tuner.compiler.sass.fields import BYTES

LINE = 128 // BYTES  # instructions per line of an instruction cache
_OPERAND_BYTES, _ROWS = 2, 64  # of an HGMMA
OUTSTANDING = 8  # maximum number of HGMMA: hopper_constants.tsv


class Instructions:
    """The instruction cache of an SM, initially cold, with a stream buffer that requests lines ahead."""

    def __init__(self, rates: Rates, count: int) -> None:
        self.present = [False] * (count // LINE + 1)
        self._rates = rates
        self._arrivals: dict[int, float] = {}

    def fetch(self, line: int, time: float) -> float:
        """Return when a missing line is present. It is requested now unless it was requested ahead."""
        for ahead in range(line, min(line + 1 + self._rates.fetch_ahead, len(self.present))):
            self._arrivals.setdefault(ahead, time + self._rates.fetch_latency)
        arrival = self._arrivals[line]
        self.present[line] = arrival <= time
        return arrival


class Copies:
    """Bulk copies in the order of their issue. The bytes of all SMs share L2 and DRAM evenly.

    `missing` is the fraction from DRAM; without it, DRAM has no limit.
    """

    def __init__(self, rates: Rates, missing: Missing | None) -> None:
        self.loaded: dict[str, float] = {}
        self.stored = 0.0  # when the last store has been read from shared memory
        self._rates, self._missing = rates, missing
        self._engine = self._ingest = self._dram = 0.0
        self._touched: set[Tile] = set()

    def load(self, time: float, box: Box, tile: Tile, turn: int, peers: int) -> float:
        """Return when all bytes have arrived: this SM's box, and those that `peers` - 1 others multicast to it."""
        rates = self._rates
        start = max(time, self._engine)
        self._engine = start + rates.copy_gap
        latency = rates.l2_latency if tile in self._touched else rates.dram_latency
        self._touched.add(tile)
        self.loaded[box.tensor] = self.loaded.get(box.tensor, 0.0) + box.nbytes
        cycles = max(box.nbytes * peers / rates.ingest_bytes, box.nbytes / rates.l2_share)
        self._ingest = max(self._ingest, start + latency) + cycles
        if self._missing is None:
            return self._ingest
        share = self._missing.get((turn, box.tensor), 0.0)
        self._dram = max(self._dram, start) + share * box.nbytes / rates.dram_share
        return max(self._ingest, self._dram + latency)

    def store(self, time: float, box: Box) -> None:
        """Read shared memory and write to DRAM."""
        start = max(time, self._engine, self.stored)
        self._engine = start + self._rates.copy_gap
        self.stored = start + box.nbytes / self._rates.ingest_bytes
        if self._missing is not None:
            self._dram = max(self._dram, start) + box.nbytes / self._rates.dram_share

    def writing(self, time: float) -> float:
        """Return the bytes per cycle that arrive in shared memory at a given time."""
        return self._rates.l2_share if self._ingest > time else 0.0


class TensorCores:
    """Products in the order of their issue, which share the bandwidth of shared memory with other accesses."""

    def __init__(self, rates: Rates) -> None:
        self.cycles = 0.0
        self._rates = rates
        self._free = self._shared = 0.0
        self._ends: deque[float] = deque(maxlen=OUTSTANDING)

    def admits(self, step: Step) -> float:
        """Return when the queue has room for an HGMMA."""
        rates = self._rates
        entries = rates.product_queue_from_registers if step.from_registers else rates.product_queue
        return self._ends[-entries] if len(self._ends) >= entries else 0.0

    def product(self, time: float, step: Step, writing: float) -> float:
        """Return when an HGMMA has its result; meanwhile `writing` bytes per cycle go to shared memory."""
        rates, timing = self._rates, step.timing
        rows = step.columns if step.from_registers else step.columns + _ROWS
        start = max(time, self._free)
        self._shared = max(self._shared, start) + _OPERAND_BYTES * step.depth * rows / (rates.shared_bytes - writing)
        self._free = max(start + timing.interval, self._shared)
        self.cycles += timing.interval
        self._ends.append(self._free)
        return self._free + (rates.product_tail_from_registers if step.from_registers else rates.product_tail)

    def access(self, time: float, cycles: float) -> None:
        """Account for another access to shared memory."""
        self._shared = max(self._shared, time) + cycles
