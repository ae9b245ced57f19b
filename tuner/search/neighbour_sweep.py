"""The sweep after exploration: try the neighbours of the best, then reset unneeded parameters of the winner to
defaults.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from tuner.base.fields import Fields, Scalar
from tuner.results.ranking import rank, rank_candidates, ties
from tuner.search.active_search import BATCH, RunningSearch
from tuner.search.attempt_log import Tried
from tuner.search.explore import gained
from tuner.spec.instance import Instance
from tuner.spec.problem import to_fields

_BEST = 3  # number of configs whose neighbours are tried


@dataclass(frozen=True)
class Swept:
    """The tries of a sweep at neighbours and at resetting parameters, and the relative gain of both."""

    neighbours: int = 0
    resets: int = 0
    gain: float = 0.0

    def __str__(self) -> str:
        """Return a clause for "why it stopped"; empty if nothing was left to try."""
        if not self.neighbours + self.resets:
            return ""
        gain = f"better by {self.gain:.1%}" if self.gain > 0 else "nothing better"
        done = f"{self.neighbours} {'try' if self.neighbours == 1 else 'tries'} at neighbours of the best {_BEST}"
        return f"{done} and {self.resets} at resetting parameters to their default found {gain}"

    def plus(self, other: "Swept") -> "Swept":
        gain = 1 - (1 - self.gain) * (1 - other.gain)
        return Swept(self.neighbours + other.neighbours, self.resets + other.resets, gain)


def sweep(run: RunningSearch, share: int) -> Swept:
    """Use up to `share` tries on the neighbours of the best, half of them reserved for resetting parameters."""
    before, first = run.best_value, len(run.log.tried)
    while _try_new(run, first + share - share // 2, _neighbours(run)):
        pass
    middle = len(run.log.tried)
    reset_to_defaults(run, first + share)
    return Swept(middle - first, len(run.log.tried) - middle, max(0.0, gained(before, run.best_value)))


def reset_to_defaults(run: RunningSearch, limit: int) -> None:
    """Reset parameters of the winner to their default while it costs nothing: all neutral ones together, or else one.

    Ties are decided by the ranking, and by the final race if times were measured.
    """
    best = base = next(iter(rank_candidates(run.log.tried)), None)
    while best is not None and base is not None:
        steps = _steps(run, base)
        while _try_new(run, limit, steps.values()):
            pass
        resets = {name: run.log.find(instance) for name, instance in steps.items()}
        free = {name: tried for name, tried in resets.items() if tried is not None and ties(tried, best)}
        base = _all_at_once(run, base, best, tuple(free), limit) or next(iter(rank(list(free.values()))), None)


def _steps(run: RunningSearch, base: Tried) -> dict[str, Instance]:
    """Return, by parameter, `base` with that parameter reset to its default, if the space contains it."""
    default = _default(run, base)
    names = [name for name, value in default.items() if base.attempt.config[name] != value]
    changed = {name: _changed(run, base, {name: default[name]}) for name in names}
    return {name: instance for name, instance in changed.items() if instance is not None}


def _all_at_once(run: RunningSearch, base: Tried, best: Tried, names: tuple[str, ...], limit: int) -> Tried | None:
    """Return `base` with several parameters reset, if it ties with the best."""
    default = _default(run, base)
    together = _changed(run, base, {name: default[name] for name in names}) if len(names) > 1 else None
    if together is None:
        return None
    _try_new(run, limit, [together])
    tried = run.log.find(together)
    return tried if tried and ties(tried, best) else None


def _default(run: RunningSearch, tried: Tried) -> Fields:
    return to_fields(run.request.default(tried.instance.implementation).config)


def _changed(run: RunningSearch, base: Tried, values: Mapping[str, Scalar]) -> Instance | None:
    """Return `base` with other values, if the space contains it."""
    config: Any = base.instance.config
    typed = {name: type(getattr(config, name))(value) for name, value in values.items()}
    instance = base.instance.with_config(replace(config, **typed))
    return instance if run.bandit.knows(instance) else None


def _neighbours(run: RunningSearch) -> Iterator[Instance]:
    """Yield untried neighbours of the best configs, alternating between the most promising ones of each."""
    best = rank_candidates(run.log.tried)[:_BEST]
    for turn in zip_longest(*(run.bandit.neighbours(candidate.instance) for candidate in best)):
        yield from (instance for instance in turn if instance is not None)


def _try_new(run: RunningSearch, limit: int, wanted: Iterable[Instance]) -> bool:
    """Try a batch of new configs, up to `limit` tries of the whole search; return whether there were any."""
    room = min(limit, run.request.tries) - len(run.log.tried)
    if run.stopped() or run.out_of_time or room <= 0:
        return False
    batch: dict[object, Instance] = {}
    for instance in wanted:
        if len(batch) < min(BATCH, room) and not run.bandit.tried(instance):
            batch.setdefault(instance.key, instance)
    run.try_all(list(batch.values()), "sweep", run.most)
    return bool(batch)
