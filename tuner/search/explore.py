"""The exploration phase: evaluate configs that the samplers suggest, until the budget or the model ends it."""

from dataclasses import dataclass

from tuner.search.active_search import BATCH, RunningSearch

SMALL_GAIN = 0.01  # relative improvement below which the search is not worth continuing
_LOOKS = 3  # consecutive batches that must expect and find less than SMALL_GAIN
_LEAST = 24  # tries before the model may end the exploration


@dataclass(frozen=True)
class Patience:
    """The number of consecutive batches with a small expected and a small actual gain."""

    looks: int = 0
    gain: float = 1.0  # last expected gain

    def after(self, gain: float | None, gained: float) -> "Patience":
        """Return the state after a batch with the expected `gain` (None: no model) and the actual `gained`, both
        relative.
        """
        if gain is None or gain >= SMALL_GAIN or gained >= SMALL_GAIN:
            return Patience()
        return Patience(self.looks + 1, gain)

    @property
    def over(self) -> bool:
        return self.looks >= _LOOKS

    def __str__(self) -> str:
        return (
            f"the expected improvement was under {SMALL_GAIN:.0%} {self.looks} batches in a row (last {self.gain:.1%})"
        )


@dataclass(frozen=True)
class Stop:
    """Why the exploration ended. `early`: the budget was not used up, but the model expects no improvement."""

    why: str
    early: bool = False
    final: bool = False  # no further tries are possible


def explore(run: RunningSearch, limit: int) -> Stop:
    """Try suggested configs until the search has made `limit` tries, or another condition ends it."""
    patience = Patience()
    while True:
        if stop := _reason_to_stop(run, limit, patience):
            return stop
        batch = run.bandit.ask(min(BATCH, limit - len(run.log.tried)))
        if not batch:
            return Stop(f"every config of {_spaces(run)} was tried", final=True)
        before = run.best_value
        run.try_all(batch, "explore", run.most)
        patience = patience.after(run.bandit.expected_improvement(), gained(before, run.best_value))
        run.bandit.drop_bad_arms()


def _spaces(run: RunningSearch) -> str:
    given_up = any(arm.tries < len(arm.space) for arm in run.bandit.arms.values())
    return "the implementations that were not dropped" if given_up else "the space"


def gained(before: float | None, after: float | None) -> float:
    """Return the fraction by which a value fell; 1 if there was none before."""
    if after is None:
        return 0.0
    return 1.0 if before is None else 1 - after / before


def _reason_to_stop(run: RunningSearch, limit: int, patience: Patience) -> Stop | None:
    request, tried = run.request, len(run.log.tried)
    if run.stopped():
        return Stop("interrupted", final=True)
    if tried >= limit:
        return Stop(f"the budget of {request.tries} {'try' if request.tries == 1 else 'tries'} is used up")
    if request.exploring_s is not None and run.seconds >= request.exploring_s:
        return Stop(f"the budget of {request.seconds:g} s is used up", early=True)
    if patience.over and tried >= max(_LEAST, request.tries // 2):
        return Stop(str(patience), early=True)
    return None
