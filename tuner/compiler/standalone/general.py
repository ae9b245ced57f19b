"""A plan as a function of sizes: grids, workspaces and shapes as expressions, with the conditions for their validity.

The plan is computed once with symbolic sizes (`sizes`). The expressions are compared with the plan itself at random
sizes. A size is fixed if the plan depends on it in a way that cannot be traced.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np

from tuner.arch import Arch
from tuner.compiler.standalone.sizes import Named, Operand, Size, Term, term_of, value
from tuner.errors import TunerError, UsageError
from tuner.spec.instance import Instance
from tuner.spec.operator import Operator
from tuner.spec.parameters import parameters, scalars
from tuner.spec.plan import Plan
from tuner.spec.problem import extents

_DRAWS, _WAYS = 300, 16
_SIZES = (1, 2, 3, 4, 5, 7, 8, 16, 31, 64, 100, 128, 257, 1000, 4096, 20000)
_MOST_BLOCKS = (2**31 - 1, 65535, 65535)  # maximum number of blocks of a grid along x, y and z
Sizes = Mapping[str, int]
Way = tuple[Term, ...]
"""Conditions that must all hold."""


@dataclass(frozen=True)
class General:
    """A problem and its plan with symbolic sizes; valid if all conditions of one of `ways` hold."""

    problem: Any
    plan: Plan
    scalars: Mapping[str, float]  # default values of scalar arguments
    facts: tuple[Any, ...]  # the problem's and plan's values as terms
    ways: tuple[Way, ...]

    def holds(self, sizes: Sizes) -> bool:
        """Return whether these sizes are supported."""
        return any(all(value(condition, sizes) for condition in way) for way in self.ways)


def general(instance: Instance, arch: Arch) -> General:
    """Return the plan for as many sizes as can be traced, at least those of the instance."""
    return _Family(instance, arch).general()


@dataclass(frozen=True)
class _Family:
    """A config on one problem, and on problems with other sizes."""

    instance: Instance
    arch: Arch

    def general(self) -> General:
        problem = self.instance.problem
        # A size of 0 is absent from the problem.
        sizes_here = {name: size for name in extents(problem) if (size := getattr(problem, name))}
        drawn = [(sizes, self._told(sizes)) for sizes in _drawn(sizes_here)]
        fixed: dict[str, int] = {}
        while True:
            general = self._joined(sizes_here, fixed, [sizes for sizes, facts in drawn if facts])
            wrong = [sizes for sizes, facts in drawn if general.holds(sizes) and facts != _at(general.facts, sizes)]
            if not wrong:
                return general
            fixed |= {name: sizes_here[name] for name in _culprits(sizes_here, wrong)}

    def _joined(self, sizes_here: Sizes, fixed: Sizes, others: list[dict[str, int]]) -> General:
        """Return the traced plan with every set of conditions under which the plans of `others` agree with it."""
        general = self._followed(sizes_here, fixed)
        for sizes in others:
            if len(general.ways) < _WAYS and not general.holds(sizes) and fixed.items() <= sizes.items():
                other = self._followed(sizes, fixed)
                if other.facts == general.facts:
                    general = replace(general, ways=(*general.ways, *other.ways))
        return general

    def _followed(self, sizes: Sizes, fixed: Sizes) -> General:
        """Trace the plan. Raises TunerError for unsupported sizes."""
        conditions = {Term("==", (Named(name), size)): None for name, size in fixed.items()}
        remembering = {name: Size.named(name, size, conditions) for name, size in sizes.items() if name not in fixed}
        operator, implementation = self.instance.operator, self.instance.implementation
        if reason := implementation.refusal(replace(self.instance.problem, **sizes), self.arch):
            raise UsageError(reason)
        problem = replace(self.instance.problem, **{**sizes, **remembering})
        plan = self.instance.at(problem).plan()
        if any(size > most for launch in plan.launches for size, most in zip(launch.grid, _MOST_BLOCKS, strict=True)):
            raise UsageError("more blocks than a grid can have")
        passed = scalars(operator, problem)
        facts = _terms((plan, passed, _shapes(operator, problem, plan)))
        return General(problem, plan, passed, facts, (_essential(conditions),))

    def _told(self, sizes: Sizes) -> tuple[Any, ...] | None:
        """Return the plan's values as plain numbers; None if the config does not support the sizes."""
        try:
            return self._followed(sizes, sizes).facts
        except TunerError:
            return None


def _shapes(operator: Operator[Any], problem: Any, plan: Plan) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all arguments of the launches."""
    passed = {
        parameter.argument for launch in plan.launches for parameter in parameters(operator, problem, plan, launch)
    }
    return {argument.name: argument.shape(problem) for argument in operator.arguments if argument.name in passed}


def _essential(conditions: Collection[Term]) -> Way:
    """Return the conditions without implied ones; divisibility conditions come after the nonzero conditions
    they need.
    """
    positive = {
        condition.operands[0]
        for condition in conditions
        if condition.operation == ">=" and condition.operands[1:] == (1,)
    }
    implied = {Term(word, (term, 0)) for term in positive for word in ("!=", ">", ">=")}
    return tuple(sorted((condition for condition in conditions if condition not in implied), key=_divides))


def _divides(term: Operand) -> bool:
    return isinstance(term, Term) and (term.operation in ("/", "%", "ceil") or any(map(_divides, term.operands)))


def _drawn(problem_sizes: Sizes) -> Iterator[dict[str, int]]:
    """Yield sizes like the problem's, first with one of them changed, then with many."""
    for name in problem_sizes:
        yield from ({**problem_sizes, name: size} for size in _SIZES)
    rng = np.random.default_rng(0)
    for _ in range(_DRAWS):
        yield {name: size if rng.random() < 0.4 else int(rng.choice(_SIZES)) for name, size in problem_sizes.items()}


def _culprits(problem_sizes: Sizes, wrong: list[dict[str, int]]) -> list[str]:
    """Return the sizes that differ in the wrong case with the fewest differences."""
    changed = [[name for name in problem_sizes if sizes[name] != problem_sizes[name]] for sizes in wrong]
    return min(changed, key=len)


def _terms(facts: Any) -> Any:
    """Return all numbers of nested values, with symbolic ones as terms."""
    if isinstance(facts, int | np.integer) and not isinstance(facts, bool):
        return term_of(facts)
    if isinstance(facts, Mapping):
        return tuple((name, _terms(fact)) for name, fact in facts.items())
    if is_dataclass(facts):
        return tuple(_terms(getattr(facts, field.name)) for field in fields(facts))
    return tuple(map(_terms, facts)) if isinstance(facts, tuple) else facts


def _at(facts: Any, sizes: Sizes) -> Any:
    """Return the values at other sizes as plain numbers."""
    if isinstance(facts, Term | Named):
        return value(facts, sizes)
    return tuple(_at(fact, sizes) for fact in facts) if isinstance(facts, tuple) else facts
