"""Work of a kernel, counted by executing a few blocks: loop iterations, sectors, bank conflicts."""

from tuner.backends.ptx.counting.count import Budget, Counts, count
from tuner.backends.ptx.counting.loops import LoopCount
from tuner.backends.ptx.counting.memory_traffic import Access
from tuner.backends.ptx.counting.sparse_memory import Sketch

__all__ = ["Access", "Budget", "Counts", "LoopCount", "Sketch", "count"]
