"""The measurement policy: how kernels are timed, which is part of a result's identity."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import inf
from typing import Literal

from tuner.errors import UsageError
from tuner.results.ranking import SAME_TIME

Launch = Literal["eager", "graph"]
LAUNCHES: tuple[Launch, ...] = ("eager", "graph")
_VERSION = 2  # incremented when the same fields would give different times


@dataclass(frozen=True, slots=True)
class MeasurementPolicy:
    """The conditions of timing. `l2` is the state of the L2 cache at a launch: cold, or warm from its own last run.
    `launch` is whether a plan's kernels are launched one by one, or replayed from a CUDA graph without gaps.

    The other fields determine the precision of the times, not their meaning, so they are not part of `name`.
    """

    l2: Literal["cold", "warm"] = "cold"
    launch: Launch = "eager"
    warm_up_us: float = 20_000.0  # warm-up time before the first sample, in which clocks rise
    sample_us: float = 1_000.0  # kernel time of one sample …
    most_launches: int = 32  # … but at most this number of launches
    # (samples so far, stop if the lower confidence bound exceeds this × the best): only survivors get more samples.
    screening: tuple[tuple[int, float], ...] = ((3, 1.15), (6, 1.03), (12, inf))
    rounds: int = 30  # rounds of the final race
    own_clock_us: float = 100_000.0  # running time after which a kernel's clock is considered its own …
    own_clock_rounds: int = 12  # … in each round of the second race, at the power limit
    tie: float = SAME_TIME  # relative difference below which two kernels are equally fast
    drift: float = 0.05  # relative change of the reference kernel's time that invalidates earlier samples
    limit_s: float = 5.0  # a longer launch is considered to hang

    def __post_init__(self) -> None:
        if self.l2 not in ("cold", "warm"):
            raise UsageError(f"L2 {self.l2!r}: must be cold or warm")
        if self.launch not in LAUNCHES:
            raise UsageError(f"launch {self.launch!r}: must be eager or graph")
        for setting in fields(self):
            value = getattr(self, setting.name)
            if isinstance(value, int | float) and not value > 0:
                raise UsageError(f"measurement policy: {setting.name} is {value}, it must be positive")

    @property
    def name(self) -> str:
        """The conditions that comparable times share, e.g. "measured/2 cold L2 eager"."""
        return f"measured/{_VERSION} {self.l2} L2 {self.launch}"

    def on(self, facts: Mapping[str, object]) -> "MeasurementPolicy":
        """Return the policy for a device with these facts: without CUDA graphs, the launch mode is eager."""
        return replace(self, launch="eager") if facts.get("no_graph") else self

    def launches(self, time_us: float) -> int:
        """Return the number of launches per sample for a kernel that takes `time_us`."""
        return max(1, min(self.most_launches, round(self.sample_us / time_us))) if time_us > 0 else self.most_launches


def is_of_times(name: str) -> bool:
    """Return whether a policy's name denotes times on a real device."""
    return name.startswith("measured/") and not name.endswith(" simulated")
