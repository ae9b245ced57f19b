"""A reference config that is timed repeatedly: while its time is stable, times in between are comparable."""

from collections.abc import Sequence
from statistics import median

from tuner.evaluate.measure.device import Code
from tuner.evaluate.measure.messages import RaceRequest
from tuner.evaluate.measure.policy import MeasurementPolicy
from tuner.evaluate.measure.samples import Sample
from tuner.evaluate.measure.worker import Worker

_ROUNDS = 3


class DriftMonitor:
    """Times the first correct config of a session after each later one, and repeats the later one next to it.

    `level_us` is its current time: a drift that persists until the next check becomes the new level.
    """

    def __init__(self, worker: Worker, policy: MeasurementPolicy) -> None:
        self._worker, self._policy = worker, policy
        self._code: Code | None = None
        self.level_us = 0.0
        self.times_us: list[float] = []
        self.voided = 0  # number of times that samples were not confirmed

    def confirms(self, code: Code, samples: Sequence[Sample]) -> bool:
        """Return whether the new samples of `code` are valid.

        They are invalid if the device's speed changed since the last check, or if a second measurement differs:
        consecutive samples may all fall into one disturbance.
        """
        self._code = self._code or code
        codes = (self._code,) if code == self._code else (self._code, code)
        raced = self._worker.race(RaceRequest(codes, self._policy, _ROUNDS, seed=0))
        if raced.failure is not None:  # the race gives no information, and the next config starts in a new process
            return True
        good = False
        if raced.rounds:
            level, again = ([laps[i] for laps in raced.rounds] for i in (0, -1))
            good = self._is_steady(_middle(level)) and self._repeats(samples, again)
        self.voided += not good
        return good

    def _is_steady(self, time_us: float) -> bool:
        last_us = self.times_us[-1] if self.times_us else time_us
        self.times_us.append(time_us)
        if self.level_us and self._near(self.level_us, time_us):
            return True
        if not self._near(last_us, time_us):
            return False
        self.level_us = time_us
        return True

    def _repeats(self, samples: Sequence[Sample], again: Sequence[Sample]) -> bool:
        """Compare two measurements. At the power limit a kernel's clock depends on its neighbours, so equal cycles
        suffice.
        """
        return self._near(_middle(samples), _middle(again)) or self._near(*map(_cycles, (samples, again)))

    def _near(self, one_us: float, other_us: float) -> bool:
        return one_us > 0 and abs(other_us / one_us - 1) <= self._policy.drift


def _middle(samples: Sequence[Sample]) -> float:
    return median(sample.time_us for sample in samples)


def _cycles(samples: Sequence[Sample]) -> float:
    """0 if the clock is unknown"""
    return median(sample.time_us * sample.state.sm_mhz for sample in samples)
