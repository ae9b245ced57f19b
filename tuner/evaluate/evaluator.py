"""The interface between a search and its evidence: configs in; attempts, verdicts and the outcome of a race out.

A search needs nothing else of what evaluates. Arguments and results are frozen values, so an evaluator may run in
another process or on another machine behind the same methods.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tuner.evaluate.measure.race_timing import Standing
from tuner.results.attempt import Attempt, Evidence, Identity, Measurement
from tuner.results.final_race import Lap
from tuner.results.verdict import Verdict
from tuner.spec.instance import Instance


@dataclass(frozen=True, slots=True)
class Finalists:
    """Configs that race. `keys[i]` orders equally fast ones, lowest first; the winner may not be slower than `default`,
    a position.
    """

    configs: tuple[Instance, ...]
    keys: tuple[tuple[Any, ...], ...]
    default: int | None = None


@dataclass(frozen=True, slots=True)
class RaceOutcome:
    """The outcome of a race. `entrants` are the positions of the finalists that finished; the standing and the rounds
    are by position among the entrants.
    """

    entrants: tuple[int, ...]
    standing: Standing
    measurement: Measurement  # the winner's times in the race
    rounds: tuple[tuple[Lap, ...], ...]
    own_clock: bool
    floor_us: float
    voided: int  # how often samples were repeated during the search because the device had changed

    @property
    def margin(self) -> float:
        """The fraction by which the fastest other entrant is slower than the winner; 0 if there is none."""
        winner = self.standing.winner
        ratios = [contender.ratio.mid for i, contender in enumerate(self.standing.contenders) if i != winner]
        return min(ratios, default=1.0) - 1


class Evaluator(Protocol):
    """The operations that a search needs. Failures of configs are values; exceptions concern the machine or an
    operator.
    """

    evidence: Evidence
    policy: str
    drift: float  # relative error of a value that may go unnoticed; 0 for predictions
    device: str | None  # UUID of the timing GPU; empty for predictions; None: that of the GPU that timed last

    def identity(self, instance: Instance) -> Identity: ...

    def prior(self, instance: Instance) -> float:
        """Return a cost before compilation; lower is better, NaN without declared work."""

    def compiled_costs(self, sample: Sequence[Instance]) -> list[float]:
        """Return predicted costs of a compiled sample, used if `prior` is NaN; NaN for configs that do not compile."""

    def resume(self, best: Instance) -> None:
        """Register the best config of earlier sessions before anything is tried."""

    def is_current(self, attempt: Attempt) -> bool:
        """Return whether the attempt's value is comparable with values that are evaluated now."""

    def try_all(self, batch: Sequence[Instance]) -> Iterator[tuple[int, Attempt]]:
        """Yield (position in `batch`, Attempt) in order of completion."""

    def check(self, batch: Sequence[Instance]) -> Iterator[tuple[int, Verdict]]:
        """Yield (position in `batch`, Verdict) in order of completion."""

    def settle(self, finalists: Finalists, seed: int) -> RaceOutcome | None:
        """Race the finalists; None if the evidence is not a time, or if none of them finished."""
