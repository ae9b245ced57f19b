"""One config that is timed again and again: while its time stays, what was timed in between can be compared."""

from collections.abc import Sequence
from statistics import median

from tuner.evaluate.measure.device import Code
from tuner.evaluate.measure.messages import RaceRequest
from tuner.evaluate.measure.policy import MeasurementPolicy
from tuner.evaluate.measure.samples import Sample
from tuner.evaluate.measure.worker import Worker

_ROUNDS = 3


class DriftMonitor:
    """The first right config of a session, timed after each that follows, and that one again beside it.

    `level_us` is its time as the device runs now: a drift that stays until the next look is the new level.
    """

    def __init__(self, worker: Worker, policy: MeasurementPolicy) -> None:
        self._worker, self._policy = worker, policy
        self._code: Code | None = None
        self.level_us = 0.0
        self.times_us: list[float] = []
        self.voided = 0  # how often samples were not confirmed

    def confirms(self, code: Code, samples: Sequence[Sample]) -> bool:
        """Whether the samples that were just drawn of `code` count.

        They do not where the device changed its pace since the last look, nor where the config takes another time in a
        second one: samples that follow each other may all fall into one bad moment.
        """
        self._code = self._code or code
        codes = (self._code,) if code == self._code else (self._code, code)
        raced = self._worker.race(RaceRequest(codes, self._policy, _ROUNDS, seed=0))
        if raced.failure is not None:  # it says nothing, and the next config starts in a new process
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
        """Where power is short, a kernel runs at another clock beside another kernel: then its cycles stay the same."""
        return self._near(_middle(samples), _middle(again)) or self._near(*map(_cycles, (samples, again)))

    def _near(self, one_us: float, other_us: float) -> bool:
        return one_us > 0 and abs(other_us / one_us - 1) <= self._policy.drift


def _middle(samples: Sequence[Sample]) -> float:
    return median(sample.time_us for sample in samples)


def _cycles(samples: Sequence[Sample]) -> float:
    """0 where nobody could read the clock."""
    return median(sample.time_us * sample.state.sm_mhz for sample in samples)
