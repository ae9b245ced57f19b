"""The edge cases of a problem: its code on small sizes that hit every edge, each with a kind of inputs."""

from dataclasses import dataclass
from typing import Any

from tuner import operators
from tuner.spec.instance import Instance
from tuner.spec.operator import Operator
from tuner.spec.problem import extents


@dataclass(frozen=True)
class Edge:
    """A small problem and the kind of inputs to run it on."""

    problem: Any
    kind: str

    def name(self, operator: Operator[Any]) -> str:
        """The sizes and the kind; a size of 0 is of what is not there."""
        sizes = {name: getattr(self.problem, name) for name in extents(operator.problem)}
        return " ".join([*(f"{name}={size}" for name, size in sizes.items() if size), self.kind])


def edges(operator: Operator[Any], problem: Any, *, every: bool = False) -> tuple[Edge, ...]:
    """Each small problem once, the kinds of inputs in turns; with `every`, each with each."""
    kinds, tails = operator.input_kinds, operator.tails(problem)
    return tuple(
        Edge(tail, kind) for i, tail in enumerate(tails) for kind in (kinds if every else (kinds[i % len(kinds)],))
    )


def served(instance: Instance) -> tuple[Edge, ...]:
    """Those whose sizes the implementation takes."""
    found = edges(instance.operator, instance.problem)
    return tuple(edge for edge in found if operators.serves(instance.implementation, edge.problem))
