"""Comparisons or forecasts as tables: one for all sizes of a sweep, or one per problem."""

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.base.fields import Fields
from tuner.bench.comparison import Comparison, formatted_problem
from tuner.bench.forecast import Forecast

_WORDS = frozenset({"contender", "state", "note", "config of", "bound by"})

Found = Sequence[Comparison | Forecast]  # all of one type


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def numbers(self) -> tuple[str, ...]:
        """The numeric columns."""
        return tuple(column for column in self.columns if column not in _WORDS)


def tables(results: Found) -> tuple[Table, ...]:
    """Return the tables; in a sweep the first column is the size."""
    size = varying([result.problem for result in results])
    if not size:
        return tuple(Table(result.title, result.COLUMNS, tuple(result.table())) for result in results)
    rows = tuple((str(result.problem[size]), *row) for result in results for row in result.table())
    return (Table(shared(results), (size, *results[0].COLUMNS), rows),)


def shared(results: Found) -> str:
    """Return the fields that all problems share."""
    first, *others = [result.problem for result in results]
    names = {name for name, value in first.items() if all(other[name] == value for other in others)}
    return formatted_problem(results[0].operator, first, names)


def varying(problems: Sequence[Fields]) -> str:
    """Return the first size in which all problems differ; empty if there is none."""
    for name in problems[0]:
        values = [problem[name] for problem in problems]
        numbers = all(isinstance(value, int | float) and value > 0 for value in values)
        if numbers and len(set(values)) == len(values) > 1:
            return name
    return ""
