"""Comparisons or forecasts as tables: one for all sizes of a sweep, or one per problem."""

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.base.fields import Fields
from tuner.bench.comparison import Comparison, formatted_problem
from tuner.bench.forecast import Forecast

OVER_SWEEP = "over the sweep"  # a column
_WORDS = frozenset({"contender", "state", "note", "config of", "bound by"})

COLUMN_MEANINGS = {
    "GFLOP": "the arithmetic of the tensor-core instructions that the kernel issues, as declared",
    "/ needed": "GFLOP divided by the arithmetic of the mathematics alone",
    "MB": "the traffic between DRAM and L2, as declared",
    "/ least": "MB divided by the bytes of the inputs and outputs",
    "predicted cost": "in multiples of the first row's, of the same problem",
    OVER_SWEEP: "the predicted cost in multiples of the first row of this table, as plotted",
    "bound by": "the pipe or effect with the largest predicted term",
    "eager": "median time of single launches, with its interval",
    "graph": "median time of launches in a CUDA graph, with its interval",
}

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
    title, columns = shared(results), (size, *results[0].COLUMNS)
    rows = [(str(result.problem[size]), *row) for result in results for row in result.table()]
    if isinstance(results[0], Comparison):
        return (Table(title, columns, tuple(rows)),)
    costs = [row.cost for result in results if isinstance(result, Forecast) for row in result.rows]
    over = tuple((*row, f"{cost / costs[0]:.4g} ×") for row, cost in zip(rows, costs, strict=True))
    return (Table(title, (*columns, OVER_SWEEP), over),)


def unit_cost(results: Sequence[Comparison | Forecast]) -> float:
    """Return the predicted cost in multiples of which a sweep is plotted: that of our kernel at the first size."""
    first = results[0]
    assert isinstance(first, Forecast)
    return first.rows[0].cost


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
