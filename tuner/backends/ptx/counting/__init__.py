"""Work of a kernel, counted by executing a few blocks: loop iterations, sectors, bank conflicts."""

from tuner.backends.ptx.counting.count import Budget, Counts, count
from tuner.backends.ptx.counting.loops import LoopCount
from tuner.backends.ptx.counting.sketch import Sketch
from tuner.backends.ptx.counting.tally import Access

__all__ = ["Access", "Budget", "Counts", "LoopCount", "Sketch", "count"]
