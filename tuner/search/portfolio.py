"""A few configs that serve many problems: the smallest set of which each problem has one near its best."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np

from tuner.base.fields import Fields
from tuner.errors import UsageError
from tuner.results.attempt import Evidence
from tuner.spec.space import Array

_EXACT = 20_000  # sets that are all looked at; beyond, the set grows greedily


@dataclass(frozen=True)
class Terms:
    """What a portfolio may be: at most `most` configs, and none over `within` behind a problem's best if possible."""

    most: int = 4
    within: float = 0.05

    def __post_init__(self) -> None:
        if self.most < 1:
            raise UsageError(f"a portfolio of {self.most} configs serves nothing: give at least 1")


@dataclass(frozen=True)
class ServedProblem:
    """One problem under a portfolio. Regrets are relative to the best known for it; None where that is unknown."""

    problem: Fields
    member: int | None  # that serves it
    regret: float | None
    nearest: Fields | None  # of the other problems, by its sizes
    unlisted_regret: float | None  # had it no record, and ran the config of `nearest`


@dataclass(frozen=True)
class Family:
    """Problems that differ in sizes only, and the few configs that serve them all."""

    statics: Fields  # that are not the default
    evidence: Evidence  # of all regrets
    terms: Terms
    members: tuple[tuple[str, Fields], ...]  # (implementation, config)
    places: tuple[ServedProblem, ...]

    def own(self, problem: Fields) -> Fields:
        """The fields of a problem in which the problems differ."""
        return {n: v for n, v in problem.items() if any(place.problem[n] != v for place in self.places)}

    @property
    def worst(self) -> float | None:
        """The largest regret; None where a problem has none."""
        known = [place.regret for place in self.places if place.regret is not None]
        return max(known, default=0.0) if len(known) == len(self.places) else None


@dataclass(frozen=True, slots=True)
class Portfolio:
    """Configs, by their column, and which of them serves each problem.

    `regrets[i]` is how far problem i's config is behind the best one known for it, relative; inf where none serves it.
    """

    members: tuple[int, ...]
    serves: tuple[int, ...]  # by problem: a column; -1 where none works
    regrets: tuple[float, ...]


def choose(regrets: Array, terms: Terms) -> Portfolio:
    """The smallest portfolio that keeps to the terms; where the most configs are too few, the one with the least
    largest regret, then the least mean.

    `regrets` [problems, configs] is inf where a config does not work. Sets are compared exhaustively while there are
    few of them; beyond, the config is added that helps most. Problems that nothing works for are served by none.
    """
    table = regrets[np.isfinite(regrets).any(axis=1)]
    columns: tuple[int, ...] = ()
    for size in range(1, min(terms.most, regrets.shape[1]) + 1):
        columns = _best_of_size(table, size, columns)
        if _loss(table, columns)[0] <= terms.within:
            break
    return _assigned(regrets, _used(table, columns))


def _best_of_size(table: Array, size: int, smaller: tuple[int, ...]) -> tuple[int, ...]:
    """The best set of `size` columns, or `smaller` and the column that helps it most where there are too many sets."""
    count = table.shape[1]
    sets: Iterable[tuple[int, ...]] = combinations(range(count), size)
    if comb(count, size) > _EXACT:
        sets = ((*smaller, column) for column in range(count) if column not in smaller)
    return min(sets, key=lambda columns: (*_loss(table, columns), columns))


def _loss(table: Array, columns: Sequence[int]) -> tuple[float, float]:
    """(largest, mean) regret of the problems, each served by the best of `columns`."""
    least = table[:, list(columns)].min(axis=1) if len(table) else np.zeros(1)
    return float(least.max()), float(np.minimum(least, 1e9).mean())


def _used(table: Array, columns: tuple[int, ...]) -> tuple[int, ...]:
    """The columns that are some problem's best of the set."""
    best = {columns[position] for position in table[:, list(columns)].argmin(axis=1)} if columns else set()
    return tuple(column for column in columns if column in best)


def _assigned(regrets: Array, members: tuple[int, ...]) -> Portfolio:
    serves, lost = [], []
    for row in regrets:
        best = min(members, key=lambda column: float(row[column]), default=-1)
        works = best >= 0 and bool(np.isfinite(row[best]))
        serves.append(best if works else -1)
        lost.append(float(row[best]) if works else float("inf"))
    return Portfolio(members, tuple(serves), tuple(lost))
