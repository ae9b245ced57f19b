"""One config that is timed again and again: while its time stays, what was timed in between can be compared."""

from tuner.evaluate.measure.device import Code
from tuner.evaluate.measure.messages import Heat
from tuner.evaluate.measure.policy import MeasurementPolicy
from tuner.evaluate.measure.samples import estimate
from tuner.evaluate.measure.worker import Worker

_ROUNDS = 3


class DriftMonitor:
    """The first right config of a session, timed after each that follows.

    `level_us` is its time as the device runs now: a drift that stays until the next look is the new level.
    """

    def __init__(self, worker: Worker, policy: MeasurementPolicy) -> None:
        self._worker, self._policy = worker, policy
        self._code: Code | None = None
        self.level_us = 0.0
        self.times_us: list[float] = []
        self.voided = 0  # how often samples were not confirmed

    def confirms(self, code: Code) -> bool:
        """Whether the samples that were drawn of `code` since the last look count."""
        self._code = self._code or code
        raced = self._worker.race(Heat((self._code,), self._policy, _ROUNDS, seed=0))
        if raced.fell is not None:  # it says nothing, and the next config starts in a new process
            return True
        good = bool(raced.times_us) and self._is_steady(estimate([each[0] for each in raced.times_us]).mid)
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

    def _near(self, one_us: float, other_us: float) -> bool:
        return abs(other_us / one_us - 1) <= self._policy.drift
