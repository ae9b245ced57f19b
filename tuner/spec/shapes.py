"""Inference of the Problem, and of its empty dims, from tensor shapes."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from tuner.spec.argument import Argument
from tuner.spec.operator import Operator
from tuner.spec.problem import extents, parse_fields

_EMPTY = {"boundaries": 1}  # N + 1 entries delimit N sequences, so this dim is empty at 1; every other dim at 0


@dataclass(frozen=True, slots=True)
class InferredProblem:
    """The Problem of a call.

    A Problem accepts no size of 0. For empty dims, `problem` has size 1 and `enlarged` size
    2, so that sizes which depend on them are extrapolated linearly to 0.
    """

    problem: Any
    enlarged: Any
    empty_dims: Mapping[str, int]  # Problem field → size, for the dims that are empty

    def size(self, dim: str) -> int:
        """Return the size of a dim of any tensor."""
        size: int = getattr(self.problem, dim)
        return max(2 * size - getattr(self.enlarged, dim), 0) if self.empty_dims else size

    def shape(self, argument: Argument) -> tuple[int, ...]:
        return tuple(map(self.size, argument.dims))


def infer_problem(operator: Operator[Any], sizes: Mapping[str, int], others: Mapping[str, Any]) -> InferredProblem:
    """Return the problem with these dim sizes and other fields. Raises UsageError if it is not valid."""
    shown = {field.name: sizes[field.name] for field in fields(operator.problem) if field.name in sizes}
    empty = {name: shown[name] for name in extents(operator.problem) if name in shown and _is_empty(name, shown[name])}
    others = parse_fields(operator.problem, others)

    def with_empty_at(size: int) -> Any:
        # Sizes come from shapes and may be symbolic integers of a framework; other fields are parsed.
        return operator.problem(**{**shown, **{name: empty[name] + size for name in empty}, **others})

    problem = with_empty_at(1)
    return InferredProblem(problem, with_empty_at(2) if empty else problem, empty)


def _is_empty(dim: str, size: int) -> bool:
    return size <= _EMPTY.get(dim, 0)
