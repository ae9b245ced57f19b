"""The final race of a measured search: the contenders, and the time of each round."""

from dataclasses import dataclass

from tuner.base.fields import Fields
from tuner.results.record import TuningRecord


@dataclass(frozen=True, slots=True)
class Lap:
    """The result of one contender in one round, and the device state just after it; 0 if it could not be read."""

    time_us: float
    sm_mhz: int = 0
    throttle: int = 0
    temperature_c: int = 0
    late: float = 0.0


@dataclass(frozen=True, slots=True)
class Runner:
    """A contender in a final race."""

    implementation: str
    config: Fields
    source: str  # Source.digest of the rendered config


@dataclass(frozen=True, slots=True)
class FinalRace:
    """The race that decided a measured search: `rounds[n][i]` is contender i in round n, in order of execution."""

    operator: str
    problem: str  # canonical JSON of all fields
    gpu: str
    policy: str
    contenders: tuple[Runner, ...]
    winner: int
    rounds: tuple[tuple[Lap, ...], ...]
    own_clock: bool = False  # each contender ran until its own clock settled; else all shared one clock
    floor_us: float = 0.0  # time of an empty kernel; 0 if unknown
    voided: int = 0  # number of times the preceding search discarded samples because the device had changed

    def laps(self, contender: int) -> tuple[Lap, ...]:
        return tuple(laps[contender] for laps in self.rounds)

    def settled(self, record: "TuningRecord") -> bool:
        """Return whether this race decided the record."""
        key, winner = record.identity, self.contenders[self.winner]
        where = (self.operator, self.problem, self.gpu, self.policy) == (key.operator, key.problem, key.gpu, key.policy)
        return where and winner == Runner(key.implementation, record.config, key.source)
