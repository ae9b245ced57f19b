"""Comparisons or forecasts as tables: one for all sizes of a sweep, or one a problem."""

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.base.fields import Fields
from tuner.bench.comparison import Comparison, spelled
from tuner.bench.forecast import Forecast

_WORDS = frozenset({"contender", "state", "note", "config of", "bound by"})

Found = Sequence[Comparison | Forecast]  # all of one kind


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def numbers(self) -> tuple[str, ...]:
        """The columns that are not words."""
        return tuple(each for each in self.columns if each not in _WORDS)


def tables(found: Found) -> tuple[Table, ...]:
    """In a sweep the first column is the size."""
    size = varying([each.problem for each in found])
    if not size:
        return tuple(Table(each.title, each.COLUMNS, tuple(each.table())) for each in found)
    rows = tuple((str(each.problem[size]), *row) for each in found for row in each.table())
    return (Table(shared(found), (size, *found[0].COLUMNS), rows),)


def shared(found: Found) -> str:
    """What all problems have in common."""
    first, *others = [each.problem for each in found]
    names = {name for name, value in first.items() if all(each[name] == value for each in others)}
    return spelled(found[0].operator, first, names)


def varying(problems: Sequence[Fields]) -> str:
    """The first size in which all problems differ; empty where there is none."""
    for name in problems[0]:
        values = [problem[name] for problem in problems]
        numbers = all(isinstance(value, int | float) and value > 0 for value in values)
        if numbers and len(set(values)) == len(values) > 1:
            return name
    return ""
