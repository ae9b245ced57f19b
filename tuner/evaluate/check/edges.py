"""The edge cases of a problem: small sizes with the same code, each with a kind of inputs."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from tuner import operators
from tuner.spec.instance import Instance
from tuner.spec.operator import Operator
from tuner.spec.problem import sizes as sized
from tuner.spec.problem import statics

_MOST_THREADS = 1 << 22


@dataclass(frozen=True)
class Edge:
    """A small problem and a kind of inputs."""

    problem: Any
    kind: str

    def name(self, operator: Operator[Any]) -> str:
        """Return the sizes and the kind; sizes of 0, which belong to absent arguments, are omitted."""
        sizes = {name: getattr(self.problem, name) for name in sized(operator.problem)}
        return " ".join([*(f"{name}={size}" for name, size in sizes.items() if size), self.kind])


def edges(operator: Operator[Any], problem: Any, *, every: bool = False) -> tuple[Edge, ...]:
    """Return each small problem once, with alternating kinds of inputs; with `every`, all combinations."""
    kinds, tails = operator.input_kinds, operator.tails(problem)
    return tuple(
        Edge(tail, kind) for i, tail in enumerate(tails) for kind in (kinds if every else (kinds[i % len(kinds)],))
    )


def on_one_code(problem: Any, all_edges: Iterable[Edge]) -> tuple[Edge, ...]:
    """Return the edge cases for one compiled kernel: cases with other static sizes are replaced by the problem
    itself.
    """

    here = (edge if one_code(edge.problem, problem) else replace(edge, problem=problem) for edge in all_edges)
    return tuple(dict.fromkeys(here))


def one_code(some: Any, other: Any) -> bool:
    """Return whether two problems of an operator have equal static fields."""
    return all(getattr(some, name) == getattr(other, name) for name in statics(other))


def too_large(instance: Instance) -> str:
    """Return why the edge cases cannot run on the CPU, with a remedy; empty if they can."""
    for edge in served(instance):
        launches = instance.at(edge.problem).plan().launches
        threads = sum(
            launch.block_threads * (len(launch.sample) if launch.sample else prod(launch.grid)) for launch in launches
        )
        if threads > _MOST_THREADS:
            name = edge.name(instance.operator)
            return (
                f"the edge case {name} has {threads:,} threads, but the CPU takes minutes for {_MOST_THREADS:,}: "
                "make its sizes extent(…), or static(…, size=True) where they are macros, or write tails with small "
                "ones; or say which blocks are run, Launch(…, sample=(0, 17, …))"
            )
    return ""


def served(instance: Instance) -> tuple[Edge, ...]:
    """Return the edge cases whose sizes the implementation accepts."""
    all_edges = edges(instance.operator, instance.problem)
    return tuple(edge for edge in all_edges if operators.serves(instance.implementation, edge.problem))
