"""Portfolios: the smallest set of configs that contains a near-optimal one for each of many problems."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from math import comb

import numpy as np

from tuner.base.fields import Fields
from tuner.errors import UsageError
from tuner.results.attempt import Evidence
from tuner.spec.space import Array

_EXACT = 20_000  # number of sets that are enumerated; beyond it the set grows greedily


@dataclass(frozen=True)
class Terms:
    """Limits of a portfolio: at most `most` configs, and a regret of at most `within` if possible."""

    most: int = 4
    within: float = 0.05

    def __post_init__(self) -> None:
        if self.most < 1:
            raise UsageError(f"a portfolio of {self.most} configs serves nothing: give at least 1")


@dataclass(frozen=True)
class ServedProblem:
    """One problem in a portfolio. Regrets are relative to the best known value; None if unknown."""

    problem: Fields
    member: int | None  # index of the config that serves it
    regret: float | None
    nearest: Fields | None  # the other problem with the closest sizes
    unlisted_regret: float | None  # regret without a record, with the config of `nearest`


@dataclass(frozen=True)
class Family:
    """Problems that differ only in sizes, and the configs that serve them."""

    statics: Fields  # non-default static fields
    evidence: Evidence  # of all regrets
    terms: Terms
    members: tuple[tuple[str, Fields], ...]  # (implementation, config)
    places: tuple[ServedProblem, ...]

    def own(self, problem: Fields) -> Fields:
        """Return the fields in which the problems differ."""
        return {
            name: value
            for name, value in problem.items()
            if name in self._varying or (self.places and self.places[0].problem[name] != value)
        }

    @cached_property
    def _varying(self) -> frozenset[str]:
        """The names of the fields in which the problems of the family differ."""
        problems = [place.problem for place in self.places]
        return frozenset(name for problem in problems for name, value in problem.items() if value != problems[0][name])

    @property
    def worst(self) -> float | None:
        """The largest regret; None if it is unknown for some problem."""
        known = [place.regret for place in self.places if place.regret is not None]
        return max(known, default=0.0) if len(known) == len(self.places) else None


@dataclass(frozen=True, slots=True)
class Portfolio:
    """Configs by column, and the one that serves each problem.

    `regrets[i]` is the relative regret of problem i's config; inf if none serves it.
    """

    members: tuple[int, ...]
    serves: tuple[int, ...]  # column per problem; -1 if none works
    regrets: tuple[float, ...]


def choose(regrets: Array, terms: Terms) -> Portfolio:
    """Return the smallest portfolio within the limits or, if none satisfies them, the one with the lowest maximum and
    mean regret.

    `regrets` [problems, configs] is inf if a config does not work. Small numbers of sets are enumerated; otherwise the
    most useful config is added greedily. Problems without a working config are not served.
    """
    table = regrets[np.isfinite(regrets).any(axis=1)]
    columns: tuple[int, ...] = ()
    for size in range(1, min(terms.most, regrets.shape[1]) + 1):
        columns = _best_of_size(table, size, columns)
        if _loss(table, columns)[0] <= terms.within:
            break
    return _assigned(regrets, _used(table, columns))


def _best_of_size(table: Array, size: int, smaller: tuple[int, ...]) -> tuple[int, ...]:
    """Return the best set of `size` columns, or `smaller` plus the most useful column if there are too many sets."""
    count = table.shape[1]
    sets: Iterable[tuple[int, ...]] = combinations(range(count), size)
    if comb(count, size) > _EXACT:
        sets = ((*smaller, column) for column in range(count) if column not in smaller)
    return min(sets, key=lambda columns: (*_loss(table, columns), columns))


def _loss(table: Array, columns: Sequence[int]) -> tuple[float, float]:
    """Return (maximum, mean) regret of the problems, each served by the best of `columns`."""
    least = table[:, list(columns)].min(axis=1) if len(table) else np.zeros(1)
    return float(least.max()), float(np.minimum(least, 1e9).mean())


def _used(table: Array, columns: tuple[int, ...]) -> tuple[int, ...]:
    """Return the columns that are the best of the set for some problem."""
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
