"""One block executed for what it does, and not for what it computes: passes of loops, sectors, bank conflicts."""

from tuner.machines.ptx.counting.count import Budget, Counts, count
from tuner.machines.ptx.counting.loops import LoopCount
from tuner.machines.ptx.counting.sketch import Sketch
from tuner.machines.ptx.counting.tally import Access

__all__ = ["Access", "Budget", "Counts", "LoopCount", "Sketch", "count"]
