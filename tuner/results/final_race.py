"""The final race of a measured search: who ran, and the time of each round."""

from dataclasses import dataclass

from tuner.base.fields import Fields
from tuner.results.record import TuningRecord


@dataclass(frozen=True, slots=True)
class Lap:
    """One contender in one round of a final race, and the device just after it; 0 is what nobody could read."""

    time_us: float
    sm_mhz: int = 0
    throttle: int = 0
    temperature_c: int = 0
    late: float = 0.0


@dataclass(frozen=True, slots=True)
class Runner:
    """Who runs in a final race."""

    implementation: str
    config: Fields
    source: str  # Source.digest of the rendered config


@dataclass(frozen=True, slots=True)
class FinalRace:
    """The race that settled a measured search: `rounds[n][i]` is contender i in round n, in the order they were run."""

    operator: str
    problem: str  # canonical JSON of all its fields
    gpu: str
    policy: str
    contenders: tuple[Runner, ...]
    winner: int
    rounds: tuple[tuple[Lap, ...], ...]
    own_clock: bool = False  # each ran until the clock was its own; else all shared one
    floor_us: float = 0.0  # what a kernel takes that does nothing; 0 where it is not known
    voided: int = 0  # how often, in the search before it, samples were drawn again since the device had changed

    def laps(self, contender: int) -> tuple[Lap, ...]:
        return tuple(each[contender] for each in self.rounds)

    def settled(self, record: "TuningRecord") -> bool:
        """Whether it is of that record."""
        key, winner = record.identity, self.contenders[self.winner]
        where = (self.operator, self.problem, self.gpu, self.policy) == (key.operator, key.problem, key.gpu, key.policy)
        return where and winner == Runner(key.implementation, record.config, key.source)
