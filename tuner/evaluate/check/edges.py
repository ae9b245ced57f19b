"""The edge cases of a problem: its code on small sizes that hit every edge, each with a kind of inputs."""

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
    """A small problem and the kind of inputs to run it on."""

    problem: Any
    kind: str

    def name(self, operator: Operator[Any]) -> str:
        """The sizes and the kind; a size of 0 belongs to an absent argument."""
        sizes = {name: getattr(self.problem, name) for name in sized(operator.problem)}
        return " ".join([*(f"{name}={size}" for name, size in sizes.items() if size), self.kind])


def edges(operator: Operator[Any], problem: Any, *, every: bool = False) -> tuple[Edge, ...]:
    """Each small problem once, the kinds of inputs in turns; with `every`, each with each."""
    kinds, tails = operator.input_kinds, operator.tails(problem)
    return tuple(
        Edge(tail, kind) for i, tail in enumerate(tails) for kind in (kinds if every else (kinds[i % len(kinds)],))
    )


def on_one_code(problem: Any, all_edges: Iterable[Edge]) -> tuple[Edge, ...]:
    """The same for a device, which runs one code: what is an edge by static sizes is the problem itself."""

    here = (edge if one_code(edge.problem, problem) else replace(edge, problem=problem) for edge in all_edges)
    return tuple(dict.fromkeys(here))


def one_code(some: Any, other: Any) -> bool:
    """Whether two problems of an operator have equal static fields."""
    return all(getattr(some, name) == getattr(other, name) for name in statics(other))


def too_large(instance: Instance) -> str:
    """Why the edges cannot be run on the CPU, and what to write; empty where they can."""
    for edge in served(instance):
        launches = instance.at(edge.problem).plan().launches
        threads = sum(
            launch.block_threads * (len(launch.sample) if launch.sample else prod(launch.grid)) for launch in launches
        )
        if threads > _MOST_THREADS:
            name = edge.name(instance.operator)
            return (
                f"the edge case {name} has {threads:,} threads, of which the CPU runs {_MOST_THREADS:,} in minutes: "
                "make its sizes extent(…), or static(…, size=True) where they are macros, or write tails with small "
                "ones; or say which blocks are run, Launch(…, sample=(0, 17, …))"
            )
    return ""


def served(instance: Instance) -> tuple[Edge, ...]:
    """Those whose sizes the implementation takes."""
    all_edges = edges(instance.operator, instance.problem)
    return tuple(edge for edge in all_edges if operators.serves(instance.implementation, edge.problem))
