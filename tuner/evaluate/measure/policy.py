"""How kernels are timed, as data: part of what a measured result means."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import inf
from typing import Literal

from tuner.errors import UsageError
from tuner.results.ranking import SAME_TIME

Launch = Literal["eager", "graph"]
LAUNCHES: tuple[Launch, ...] = ("eager", "graph")
_VERSION = 2  # raised when the same fields would give other times


@dataclass(frozen=True, slots=True)
class MeasurementPolicy:
    """What the times of a search are. `l2` says what a launch finds in the L2 cache: nothing, or its own last run;
    `launch`, whether a plan's kernels are launched one by one or replayed from a CUDA graph, without the host's gaps.

    The other fields say how sure the times are, not what they are, so they are no part of `name`.
    """

    l2: Literal["cold", "warm"] = "cold"
    launch: Launch = "eager"
    warm_up_us: float = 20_000.0  # a kernel runs this long before its first sample: clocks rise meanwhile
    sample_us: float = 1_000.0  # kernel time of one sample, in launches of their own …
    most_launches: int = 32  # … but no more of them than this
    # (samples so far, stop when the lower confidence bound is above this × the best): repeats grow for survivors only.
    screening: tuple[tuple[int, float], ...] = ((3, 1.15), (6, 1.03), (12, inf))
    rounds: int = 30  # of the final race
    own_clock_us: float = 100_000.0  # a kernel runs this long before its clock is taken for its own …
    own_clock_rounds: int = 12  # … in each round of the second race, where power lowers clocks
    tie: float = SAME_TIME  # relative difference under which two kernels are equally fast
    drift: float = 0.05  # relative change of the reference kernel's time that voids the samples before it
    limit_s: float = 5.0  # a launch that takes longer hangs

    def __post_init__(self) -> None:
        if self.l2 not in ("cold", "warm"):
            raise UsageError(f"L2 {self.l2!r}: a kernel is timed with a cold or a warm one")
        if self.launch not in LAUNCHES:
            raise UsageError(f"launch {self.launch!r}: a plan is launched eager, or replayed from a graph")
        for setting in fields(self):
            value = getattr(self, setting.name)
            if isinstance(value, int | float) and not value > 0:
                raise UsageError(f"measurement policy: {setting.name} is {value}, it must be positive")

    @property
    def name(self) -> str:
        """What two times must have in common to be compared: "measured/2 cold L2 eager"."""
        return f"measured/{_VERSION} {self.l2} L2 {self.launch}"

    def on(self, facts: Mapping[str, object]) -> "MeasurementPolicy":
        """What is left of this policy on a device with these facts: one that captures no graph is timed eager."""
        return replace(self, launch="eager") if facts.get("no_graph") else self

    def launches(self, time_us: float) -> int:
        """How many launches of a kernel that takes `time_us` make a sample."""
        return max(1, min(self.most_launches, round(self.sample_us / time_us))) if time_us > 0 else self.most_launches


def is_of_times(name: str) -> bool:
    """Whether a policy's name says what times on a device are: no cost model, and no simulated device."""
    return name.startswith("measured/") and not name.endswith(" simulated")
