"""Classes of kernels that public measurements cover, by what a launch does.

A residual applies to another kernel only if the same resources bind both. Classes are therefore determined by the
instructions that a block executes, never by the name of a kernel.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tuner.evaluate.predict.counted import CountedLaunch

STREAMING, SHARING, LOOPS = "streaming", "sharing", "loops"
_FROM_DRAM = 0.5  # minimum fraction of the L2 traffic that comes from DRAM; a choice meaning "most"


def class_of(launches: "Sequence[CountedLaunch | None]") -> str:
    """Return the class of a config from its launches (None: a launch without counts); empty if they have no common
    class.
    """
    classes = {_of_launch(launch) for launch in launches}
    (common,) = classes if len(classes) == 1 else ("",)
    return common if common != STREAMING or len(launches) == 1 else ""  # gaps between launches are not streamed


def _of_launch(launch: "CountedLaunch | None") -> str:
    """STREAMING: no loop, no shared memory, and most bytes from or to DRAM. SHARING: most bytes from or to DRAM, and
    the threads of a block exchange values, as in reductions. LOOPS: loops that read most of their bytes from L2, L1 or
    shared memory.
    """
    if launch is None or launch.counts.unsure:
        return ""
    work, counts = launch.work, launch.counts
    from_dram = work.dram_bytes >= _FROM_DRAM * work.l2_bytes
    if work.barriers or any(access.space == "shared" for access in counts.accesses):
        return SHARING if from_dram else LOOPS if counts.loops else ""
    if counts.loops:
        return LOOPS
    return STREAMING if from_dram and all(access.space == "global" for access in counts.accesses) else ""
