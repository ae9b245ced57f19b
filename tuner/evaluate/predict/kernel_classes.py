"""Classes of kernels that public measurements cover: what a launch has to do to belong to one.

A residual says something about another kernel only if that one is bound by the same things. So the classes are told
apart by what a block executes, never by the name of a kernel.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tuner.evaluate.predict.counted import CountedLaunch

STREAMING, SHARING, LOOPS = "streaming", "sharing", "loops"
_FROM_DRAM = 0.5  # minimum fraction of the L2 traffic that comes from DRAM: a choice, most of it


def class_of(launches: "Sequence[CountedLaunch | None]") -> str:
    """The class of a config by its launches (None: one that is not counted); empty where they have none in common."""
    classes = {_of_launch(launch) for launch in launches}
    (common,) = classes if len(classes) == 1 else ("",)
    return common if common != STREAMING or len(launches) == 1 else ""  # gaps between launches are not streamed


def _of_launch(launch: "CountedLaunch | None") -> str:
    """STREAMING: no loop, nothing shared, most bytes from or to DRAM. SHARING: most bytes from or to DRAM, and threads
    of a block exchange values, as in reductions. LOOPS: loops that read most of their bytes from L2, L1 or shared
    memory.
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
