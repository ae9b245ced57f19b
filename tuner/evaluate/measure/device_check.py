"""Correctness checks on the device: every edge case, poisoned outputs, guard zones, and bitwise equal repetitions."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from zlib import crc32

import numpy as np

from tuner import operators
from tuner.base.canonical_json import decode, encode
from tuner.base.fields import Fields
from tuner.evaluate.check.compare import Expected, compare, expect, keep_worst
from tuner.evaluate.check.edges import Edge, edges, on_one_code
from tuner.evaluate.check.verdict_builder import CaseResult, VerdictBuilder
from tuner.evaluate.measure.device import Code, Device, Fault
from tuner.evaluate.measure.device_arguments import Arena
from tuner.results.verdict import Verdict
from tuner.spec.operator import Operator
from tuner.spec.parameters import scalars
from tuner.spec.problem import Array, canonical, from_fields
from tuner.spec.tolerance import Tolerance

_AGREEMENT = 1 << 18  # elements of an output that are compared with another kernel's on the timed problem
_EDGE_LIMIT_S = 2.0  # an edge case takes microseconds, and a kernel that hangs usually does so on the first one …
_CROWDED_LIMIT_S = 10.0  # … but with other processes on the GPU, the exit of one may stall all of them for seconds
_BETWEEN_TWO = 2.0  # × the limit: the maximum difference of two outputs that both satisfy the limit
_TIMED = "the timed problem"
_UNSTEADY = "a second run with the same inputs gave different bits"


@dataclass(frozen=True, slots=True)
class Case:
    """An edge case with its inputs and expected outputs."""

    name: str
    problem: Any
    arrays: Mapping[str, Any]
    scalars: Mapping[str, float]
    expected: Expected


class DeviceCheck:
    """Checks one config case by case and collects the results. Device faults are raised."""

    def __init__(self, device: Device, code: Code, limit_s: float) -> None:
        self._device, self._limit_s = device, limit_s
        self._instance = operators.instance(code.instance)
        self._program = device.load(code, self._instance.plan())
        self._verdict = VerdictBuilder(self._instance.operator)
        self.fault = Fault.WRONG

    @property
    def right(self) -> bool:
        return self._verdict.right

    def run(self, case: Case, *, twice: bool) -> None:
        """Check one small problem."""
        with Arena(self._device, self._instance.operator, case.problem, case.arrays) as arena:
            limit_s = _CROWDED_LIMIT_S if self._device.others() else min(self._limit_s, _EDGE_LIMIT_S)
            outputs, findings = self._outputs(arena, limit_s, twice=twice, inputs=True)
        self._verdict.add(CaseResult(case.name, case.arrays, case.expected, outputs, findings))

    def compare_timed(self, arena: Arena, agreed: Mapping[str, Array]) -> dict[str, Array]:
        """Run the timed problem, which is too large for a reference, and compare it with another kernel's outputs.

        Returns sampled elements of the outputs; `agreed` holds those of an earlier kernel, or is empty. The two may
        differ by the limits of the edge cases, except for limits of cases with cancelling terms, which apply only to
        such results.
        """
        trial, (whole, findings) = self._verdict, self._outputs(arena, self._limit_s, twice=True, inputs=False)
        trial.cases.append(_TIMED)
        missed = (name for name, array in whole.items() if _unwritten(array))
        unwritten = tuple(f"{name}: unwritten elements on {_TIMED}" for name in missed)
        trial.findings = trial.findings or findings or unwritten[:1]
        outputs = {name: _thinned(array) for name, array in whole.items()}
        for name, array in outputs.items():
            if name in agreed and name in trial.allowed:  # an output without elements was never compared
                limit = Tolerance(_BETWEEN_TWO * trial.allowed[name])
                keep_worst(trial.worst, (compare(name, array, agreed[name], agreed[name], limit, _TIMED),))
        return outputs

    def verdict(self, where: str) -> Verdict:
        return self._verdict.verdict(where)

    def _outputs(
        self, arena: Arena, limit_s: float, *, twice: bool, inputs: bool
    ) -> tuple[dict[str, Array], tuple[str, ...]]:
        """Return the outputs of the first run, and the errors of all runs."""
        call = arena.call(self._instance.at(arena.problem).plan())
        outputs = []
        for _ in range(2 if twice else 1):
            arena.poison()
            self._device.run(self._program, call, limit_s)
            outputs.append(arena.outputs())
        damage = arena.damage(inputs=inputs)
        arena.release()
        if damage:
            self.fault = Fault.ILLEGAL
            return outputs[0], (damage,)
        if not all(_same_bits(outputs[0][name], outputs[-1][name]) for name in outputs[0]):
            self.fault = Fault.UNSTEADY
            return outputs[0], (_UNSTEADY,)
        return outputs[0], ()


def cases(operator: Operator[Any], problem: Fields, *, every: bool) -> tuple[Case, ...]:
    """Return the edge cases of a problem; see `edges.edges`."""
    return _cases(operator.name, encode(problem), every)


@lru_cache(maxsize=4)
def _cases(name: str, problem: str, every: bool) -> tuple[Case, ...]:
    operator = operators.load(name)
    timed = from_fields(operator.problem, decode(problem))
    cases = on_one_code(timed, edges(operator, timed, every=every))
    return tuple(_case(operator, edge) for edge in cases)


def _case(operator: Operator[Any], edge: Edge) -> Case:
    problem, rng = edge.problem, np.random.default_rng(crc32((canonical(edge.problem) + edge.kind).encode()))
    drawn, name = operator.inputs(problem, rng, edge.kind), edge.name(operator)
    given = scalars(operator, problem, drawn)
    arrays = {**drawn, **given}  # a reference also reads scalars with default values
    return Case(name, problem, arrays, given, expect(operator, problem, arrays, name))


def _thinned(array: Array) -> Array:
    """Return elements at equal distances; the step is odd, so that it covers every column."""
    flat = array.reshape(-1)
    return flat[:: (len(flat) // _AGREEMENT) | 1].copy()


def _unwritten(array: Array) -> bool:
    """Return whether an element still holds the poison; False for small integers, for which -1 may be an index."""
    words = array.reshape(-1).view(f"u{array.itemsize}")
    return array.dtype.kind not in "iu" and bool((words == np.iinfo(words.dtype).max).any())


def _same_bits(one: Array, other: Array) -> bool:
    return bool(np.array_equal(one.reshape(-1).view(np.uint8), other.reshape(-1).view(np.uint8)))
