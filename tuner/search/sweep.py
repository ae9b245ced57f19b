"""The end of exploring: the neighbours of the best are tried, then what the winner does not need is set back."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from tuner.base.fields import Fields, Scalar
from tuner.results.ranking import rank, rank_candidates, ties
from tuner.search.explore import gained
from tuner.search.log import Tried
from tuner.search.running import BATCH, RunningSearch
from tuner.spec.instance import Instance
from tuner.spec.problem import to_fields

_BEST = 3  # configs whose neighbours are tried


@dataclass(frozen=True)
class Swept:
    """What a sweep did: tries at neighbours, tries at setting parameters back, and the relative gain of both."""

    neighbours: int = 0
    resets: int = 0
    gain: float = 0.0

    def __str__(self) -> str:
        """A clause for "why it stopped"; empty where nothing was left to try."""
        if not self.neighbours + self.resets:
            return ""
        gain = f"better by {self.gain:.1%}" if self.gain > 0 else "nothing better"
        done = f"{self.neighbours} {'try' if self.neighbours == 1 else 'tries'} at neighbours of the best {_BEST}"
        return f"{done} and {self.resets} at setting parameters back to their default found {gain}"

    def plus(self, other: "Swept") -> "Swept":
        gain = 1 - (1 - self.gain) * (1 - other.gain)
        return Swept(self.neighbours + other.neighbours, self.resets + other.resets, gain)


def sweep(run: RunningSearch, share: int) -> Swept:
    """Spend up to `share` tries on the neighbours of the best, half of them kept for setting parameters back."""
    before, first = run.best_value, len(run.log.tried)
    while _try_new(run, first + share - share // 2, _neighbours(run)):
        pass
    middle = len(run.log.tried)
    reset_to_defaults(run, first + share)
    return Swept(middle - first, len(run.log.tried) - middle, max(0.0, gained(before, run.best_value)))


def reset_to_defaults(run: RunningSearch, limit: int) -> None:
    """Set parameters of the winner to their default while that costs nothing: all that is free at once, else one.

    What ties is left to the contest, and to the final race where times were measured.
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
    """By parameter, `base` with that one set back to its default, where that is a config of the space."""
    default = _default(run, base)
    names = [name for name, value in default.items() if base.attempt.config[name] != value]
    changed = {name: _changed(run, base, {name: default[name]}) for name in names}
    return {name: instance for name, instance in changed.items() if instance is not None}


def _all_at_once(run: RunningSearch, base: Tried, best: Tried, names: tuple[str, ...], limit: int) -> Tried | None:
    """`base` with several parameters set back, where that ties with the best."""
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
    """`base` with other values, where that is a config of the space."""
    config: Any = base.instance.config
    typed = {name: type(getattr(config, name))(value) for name, value in values.items()}
    instance = base.instance.with_config(replace(config, **typed))
    return instance if run.bandit.knows(instance) else None


def _neighbours(run: RunningSearch) -> Iterator[Instance]:
    """Untried neighbours of the best configs, the most promising of each in turns."""
    best = rank_candidates(run.log.tried)[:_BEST]
    for turn in zip_longest(*(run.bandit.neighbours(candidate.instance) for candidate in best)):
        yield from (instance for instance in turn if instance is not None)


def _try_new(run: RunningSearch, limit: int, wanted: Iterable[Instance]) -> bool:
    """Try a batch of what is wanted and new, up to `limit` tries of the whole search; whether there was any."""
    room = min(limit, run.request.tries) - len(run.log.tried)
    if run.stopped() or run.out_of_time or room <= 0:
        return False
    batch: dict[object, Instance] = {}
    for instance in wanted:
        if len(batch) < min(BATCH, room) and not run.bandit.tried(instance):
            batch.setdefault(instance.key, instance)
    run.try_all(list(batch.values()), "sweep", run.most)
    return bool(batch)
