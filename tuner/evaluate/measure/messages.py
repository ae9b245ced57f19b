"""Requests to the process that owns the device, and its answers, as plain values."""

from dataclasses import dataclass
from math import inf

from tuner.base.fields import Fields
from tuner.evaluate.measure.device import Code, Fault
from tuner.evaluate.measure.policy import MeasurementPolicy
from tuner.evaluate.measure.samples import Sample
from tuner.results.verdict import Verdict


@dataclass(frozen=True, slots=True)
class DescribeRequest:
    """Describe the device. With `ceilings`, also measure its peak rates."""

    ceilings: bool = False


@dataclass(frozen=True, slots=True)
class TimingRequest:
    """Check a config and, if it is correct and `timed`, time it as long as it may beat `best_us`.

    A config that is not `judged` has passed its check before.
    """

    code: Code
    policy: MeasurementPolicy
    best_us: float = inf
    timed: bool = True
    judged: bool = True


@dataclass(frozen=True, slots=True)
class RaceRequest:
    """Run rounds of a race: every contender once per round, in random order. Only the first may start after `limit_s`.

    With `own_clock`, each contender first runs alone until its clock settles; otherwise all share one clock.
    """

    codes: tuple[Code, ...]
    policy: MeasurementPolicy
    rounds: int
    seed: int
    limit_s: float = 60.0  # half of the process's time limit
    own_clock: bool = False


@dataclass(frozen=True, slots=True)
class DeviceFailure:
    """A config failed on the device. After a `fatal` fault the process must be restarted."""

    fault: Fault
    message: str
    fatal: bool = False
    culprit: int = 0  # index of the failing contender of a race

    @property
    def reason(self) -> str:
        return f"{self.fault.value}: {self.message}"


@dataclass(frozen=True, slots=True)
class DeviceDescription:
    """Properties of the device."""

    facts: Fields


@dataclass(frozen=True, slots=True)
class TimingResult:
    """The result of a request: valid samples, and a verdict if it was checked; or the failure."""

    verdict: Verdict | None
    samples: tuple[Sample, ...] = ()
    failure: DeviceFailure | None = None


@dataclass(frozen=True, slots=True)
class RaceResult:
    """The undisturbed rounds of a race, with one sample per contender; or the failure.

    `capped` is whether a contender draws so much power that it lowers its own clock. `floor_us` is the time of an empty
    kernel; 0 if unknown.
    """

    rounds: tuple[tuple[Sample, ...], ...] = ()
    failure: DeviceFailure | None = None
    capped: bool = False
    floor_us: float = 0.0

    @property
    def times_us(self) -> tuple[tuple[float, ...], ...]:
        """The times as [rounds, contenders] in microseconds."""
        return tuple(tuple(sample.time_us for sample in samples) for samples in self.rounds)


Question = DescribeRequest | TimingRequest | RaceRequest
Answer = DeviceDescription | TimingResult | RaceResult
