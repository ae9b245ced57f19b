"""A search in progress: its remaining budget, and the evaluation and checking of configs."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tuner.compiler.render import forget
from tuner.errors import TemplateError
from tuner.evaluate.evaluator import Evaluator
from tuner.search.attempt_log import Log, Tried
from tuner.search.bandit import Bandit
from tuner.search.request import SearchRequest
from tuner.spec.instance import Instance

_POLL_S = 0.2  # interval of polling for another search's results
BATCH = 16  # configs that compile in parallel between two model updates


@dataclass(frozen=True)
class Progress:
    """The progress of a search, for displays."""

    phase: str  # "prove" (defaults on the device), "explore", "sweep", "share" (configs of other problems) or "check"
    done: int
    total: int
    failed: int
    best: Tried | None
    latest: Tried | None = None  # that this step is about


@dataclass(frozen=True)
class RunningSearch:
    """One search in progress."""

    request: SearchRequest
    evaluator: Evaluator
    bandit: Bandit
    log: Log
    observe: Callable[[Progress], None] = lambda _: None
    stopped: Callable[[], bool] = lambda: False
    started: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> int:
        """The remaining tries of the budget."""
        return max(0, self.request.tries - len(self.log.tried))

    @property
    def most(self) -> int:
        """The maximum number of tries: the budget, or the number of configs."""
        return min(self.request.tries, sum(len(arm.space) for arm in self.bandit.arms.values()))

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    @property
    def out_of_time(self) -> bool:
        return self.request.seconds is not None and self.seconds >= self.request.seconds

    @property
    def best_value(self) -> float | None:
        return self.log.best.attempt.value if self.log.best else None

    def try_all(self, batch: Sequence[Instance], phase: str, total: int) -> None:
        """Evaluate and store a batch; configs not finished when `stopped()` returns True are omitted.

        Configs that another search of the problem is evaluating are not evaluated again: its attempts are taken over.
        """
        missing = list(batch)
        while missing and not self.stopped():
            mine = self.log.claim(missing, self.evaluator)
            try:
                taken = self.log.take_from_others(missing, self.evaluator)
                self._evaluate([instance for instance in mine if not self.log.find(instance)], phase, total)
            finally:
                self.log.release(mine, self.evaluator)
            evaluated = {instance.key for instance in mine}  # only once, even if an evaluator omits a config
            missing = [
                instance for instance in missing if instance.key not in evaluated and not self.log.find(instance)
            ]
            if missing and not mine and not taken:
                time.sleep(_POLL_S)

    def _evaluate(self, batch: Sequence[Instance], phase: str, total: int) -> None:
        for position, attempt in self.evaluator.try_all(batch):
            self.log.add(batch[position], attempt)
            latest = self.log.find(batch[position])
            self.observe(Progress(phase, len(self.log.tried), total, self.log.failed, self.log.best, latest))
            if self.stopped():
                return

    def check(self, open_: Sequence[Tried]) -> None:
        """Check each config. Raises TemplateError if files were edited since it was tried."""
        self._refuse_changed(open_)
        wrong = 0
        for done, (position, verdict) in enumerate(
            self.evaluator.check([candidate.instance for candidate in open_]), 1
        ):
            self.log.add_verdict(open_[position], verdict)
            wrong += not verdict.ok
            self.observe(Progress("check", done, len(open_), wrong, self.log.best))

    def _refuse_changed(self, open_: Sequence[Tried]) -> None:
        """Raise TemplateError for changed sources, because a verdict on the current source does not apply to the
        attempt.
        """
        forget()
        for candidate in open_:
            identity = candidate.attempt.identity
            if self.evaluator.identity(candidate.instance) != identity:
                what = f"{identity.operator}/{identity.implementation}"
                raise TemplateError(
                    f"the source of {what} changed during the search: search again, from what it is now"
                )
