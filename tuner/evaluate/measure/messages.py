"""What is asked of the process that owns the device, and what it answers. Plain values that travel."""

from dataclasses import dataclass
from math import inf

from tuner.base.fields import Fields
from tuner.evaluate.measure.device import Code, Fault
from tuner.evaluate.measure.policy import MeasurementPolicy
from tuner.evaluate.measure.samples import Sample
from tuner.results.verdict import Verdict


@dataclass(frozen=True, slots=True)
class DescribeRequest:
    """What is the device? With `ceilings`, measure what it can do at best."""

    ceilings: bool = False


@dataclass(frozen=True, slots=True)
class TimingRequest:
    """Check a config and, where it is right and `timed`, time it for as long as it may beat `best_us`.

    One that is not to be `judged` was right before.
    """

    code: Code
    policy: MeasurementPolicy
    best_us: float = inf
    timed: bool = True
    judged: bool = True


@dataclass(frozen=True, slots=True)
class RaceRequest:
    """Rounds of a race: every contender once a round, in random order. None begins after `limit_s`, but the first.

    With `own_clock` each runs alone, until the clock is its own, before its turn; else all share one.
    """

    codes: tuple[Code, ...]
    policy: MeasurementPolicy
    rounds: int
    seed: int
    limit_s: float = 60.0  # half of what the process has before it is thought to hang
    own_clock: bool = False


@dataclass(frozen=True, slots=True)
class DeviceFailure:
    """A config failed on the device. After a `fatal` fault the process must be restarted."""

    fault: Fault
    message: str
    fatal: bool = False
    culprit: int = 0  # which contender of a heat

    @property
    def reason(self) -> str:
        return f"{self.fault.value}: {self.message}"


@dataclass(frozen=True, slots=True)
class DeviceDescription:
    """Facts about the device."""

    facts: Fields


@dataclass(frozen=True, slots=True)
class TimingResult:
    """What became of a task: samples that count, with a verdict that is ok if it was judged; or what went wrong."""

    verdict: Verdict | None
    samples: tuple[Sample, ...] = ()
    failure: DeviceFailure | None = None


@dataclass(frozen=True, slots=True)
class RaceResult:
    """The undisturbed rounds of a heat, a sample of each contender; or who fell.

    `capped` is whether a contender draws so much power that it lowers its own clock. `floor_us` is what a kernel takes
    there that does nothing; 0 where nobody can say.
    """

    rounds: tuple[tuple[Sample, ...], ...] = ()
    failure: DeviceFailure | None = None
    capped: bool = False
    floor_us: float = 0.0

    @property
    def times_us(self) -> tuple[tuple[float, ...], ...]:
        """[rounds, contenders] in microseconds."""
        return tuple(tuple(sample.time_us for sample in samples) for samples in self.rounds)


Question = DescribeRequest | TimingRequest | RaceRequest
Answer = DeviceDescription | TimingResult | RaceResult
