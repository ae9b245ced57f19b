"""The interface between a search and its evidence: configs in; attempts, verdicts and the outcome of a race out.

A search needs nothing else of what evaluates. Arguments and results are frozen values, so an evaluator may run in
another process or on another machine behind the same methods.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tuner.evaluate.measure.final import Standing
from tuner.results.attempt import Attempt, Evidence, Identity, Measurement
from tuner.results.final_race import Lap
from tuner.results.verdict import Verdict
from tuner.spec.instance import Instance


@dataclass(frozen=True, slots=True)
class Finalists:
    """Configs that are to race. `keys[i]` orders those that turn out equally fast, least first; the winner may not be
    slower than `default`, a position.
    """

    configs: tuple[Instance, ...]
    keys: tuple[tuple[Any, ...], ...]
    default: int | None = None


@dataclass(frozen=True, slots=True)
class RaceOutcome:
    """How a race ended. `entrants` are positions among the finalists of those that came through; the standing
    and each round are by position among the entrants.
    """

    entrants: tuple[int, ...]
    standing: Standing
    measurement: Measurement  # of the winner, in the race
    rounds: tuple[tuple[Lap, ...], ...]
    own_clock: bool
    floor_us: float
    voided: int  # how often samples were drawn again during the search, because the device had changed

    @property
    def margin(self) -> float:
        """By what share the fastest other entrant is slower than the winner; 0 where there is none."""
        winner = self.standing.winner
        ratios = [contender.ratio.mid for i, contender in enumerate(self.standing.contenders) if i != winner]
        return min(ratios, default=1.0) - 1


class Evaluator(Protocol):
    """What a search asks about configs. Failures of configs are values; exceptions mean the machine or an operator."""

    evidence: Evidence
    policy: str
    drift: float  # relative error of a value that goes unnoticed; 0 for predictions
    device: str | None  # the UUID of the GPU that times; empty for predictions; None: of whichever GPU timed last

    def identity(self, instance: Instance) -> Identity: ...

    def prior(self, instance: Instance) -> float:
        """A cost before anything is compiled; lower is better, NaN where nothing is declared."""

    def compiled_costs(self, sample: Sequence[Instance]) -> list[float]:
        """Predicted costs of a sample once compiled, for where `prior` is NaN; NaN where a config does not compile."""

    def resume(self, best: Instance) -> None:
        """Take note of the best config of earlier sessions, before anything is tried."""

    def is_current(self, attempt: Attempt) -> bool:
        """Whether the attempt's value compares with those that are evaluated now."""

    def try_all(self, batch: Sequence[Instance]) -> Iterator[tuple[int, Attempt]]:
        """(position in `batch`, Attempt) as they finish."""

    def check(self, batch: Sequence[Instance]) -> Iterator[tuple[int, Verdict]]:
        """(position in `batch`, Verdict) as they finish."""

    def settle(self, finalists: Finalists, seed: int) -> RaceOutcome | None:
        """Race the finalists; None where the evidence is no time, or none of them came through."""
