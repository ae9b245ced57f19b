"""The Problem that the sizes of tensors spell, and what follows from it: where there is nothing to compute, too."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from tuner.spec.argument import Argument
from tuner.spec.operator import Operator
from tuner.spec.problem import extents, parse_fields

_NOTHING = {"boundaries": 1}  # N + 1 stand around N sequences; of any other dim 0 is nothing


@dataclass(frozen=True, slots=True)
class Outline:
    """A Problem takes no size of 0, so `problem` has 1 where a call has 0, and `wider` 2: sizes that follow from these
    grow by as much from one to the other as they did before."""

    problem: Any
    wider: Any
    hollow: Mapping[str, int]  # sizes of the Problem's fields that are nothing, empty where there is something to do

    def size(self, dim: str) -> int:
        """Of a dim of any tensor."""
        found: int = getattr(self.problem, dim)
        return max(2 * found - getattr(self.wider, dim), 0) if self.hollow else found

    def shape(self, argument: Argument) -> tuple[int, ...]:
        return tuple(map(self.size, argument.dims))


def outline(operator: Operator[Any], sizes: Mapping[str, int], told: Mapping[str, Any]) -> Outline:
    """From the sizes of tensors' dims, and the Problem's other fields. Raises UsageError for what is no problem."""
    given = {each.name: sizes[each.name] for each in fields(operator.problem) if each.name in sizes}
    hollow = {name: given[name] for name in extents(operator.problem) if name in given and _nothing(name, given[name])}

    others = parse_fields(operator.problem, told)

    def with_more(more: int) -> Any:
        # Sizes come from shapes and may be symbolic integers of a framework; the other fields are parsed.
        return operator.problem(**{**given, **{name: hollow[name] + more for name in hollow}, **others})

    problem = with_more(1)
    return Outline(problem, with_more(2) if hollow else problem, hollow)


def _nothing(dim: str, size: int) -> bool:
    return size <= _NOTHING.get(dim, 0)
