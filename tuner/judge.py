"""Is a config right on the device? Every edge case, poisoned outputs, guard zones, and the same bits twice."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from zlib import crc32

import numpy as np

from tuner import operators
from tuner.arena import Arena
from tuner.canonical import encode
from tuner.device import Code, Device, Fault
from tuner.operator import Array, Operator, Tolerance, canonical, extents, from_fields, scalars
from tuner.result import Fields, OutputError, Verdict
from tuner.verify import compare, trespass

_AGREEMENT = 1 << 18  # elements of an output that are compared with another kernel's on the timed problem
_EDGE_LIMIT_S = 2.0  # for an edge case, which takes microseconds: a kernel that hangs mostly does so on the first one
_BETWEEN_TWO = 2.0  # × the limit: what two outputs may differ by when each keeps the limit
_UNSTEADY = "the same inputs gave other bits in a second run"


@dataclass(frozen=True, slots=True)
class Case:
    """A small problem, one kind of inputs, and what is right: per output exact, as rounded, and the tolerance."""

    name: str
    problem: Any
    arrays: Mapping[str, Any]
    scalars: Mapping[str, float]
    right: Mapping[str, tuple[Array, Array, Tolerance]]


class Judge:
    """Runs one config case by case and keeps what it found. Faults of the device are raised."""

    def __init__(self, device: Device, code: Code, limit_s: float) -> None:
        self._device, self._limit_s = device, limit_s
        self._operator = operators.load(code.operator)
        self._implementation = operators.implementation(code.operator, code.implementation)
        self._config = from_fields(self._implementation.config, code.config)
        timed = from_fields(self._operator.problem, code.problem)
        self._program = device.load(code, self._implementation.plan(timed, self._config))
        self._worst: dict[str, OutputError] = {}
        self._done: list[str] = []
        self.finding = ""
        self.fault = Fault.WRONG

    @property
    def right(self) -> bool:
        return not self.finding and all(error.ok for error in self._worst.values())

    def run(self, case: Case, *, twice: bool) -> None:
        """Judge one small problem."""
        with Arena(self._device, self._operator, case.problem, case.arrays) as arena:
            limit_s = min(self._limit_s, _EDGE_LIMIT_S)
            outputs = self._outputs(arena, limit_s, twice=twice, inputs=True)
        self._done.append(case.name)
        right = {name: exact for name, (exact, _, _) in case.right.items()}
        self.finding = self.finding or trespass(self._operator, case.arrays, right, outputs)
        for name, (exact, rounded, tolerance) in case.right.items():
            error = compare(name, outputs[name], exact, rounded, tolerance)
            self._worst[name] = max(error, self._worst.get(name, error), key=OutputError.badness)

    def compare_timed(self, arena: Arena, agreed: Mapping[str, Array]) -> dict[str, Array]:
        """Run the timed problem, which is too large for a reference, and compare with what another kernel made of it.

        Returns a thinned copy of the outputs; `agreed` is an earlier one, or empty.
        """
        whole = self._outputs(arena, self._limit_s, twice=True, inputs=False)
        self._done.append("the timed problem")
        if missed := [name for name, array in whole.items() if _unwritten(array)]:
            self.finding = self.finding or f"{missed[0]}: elements that nobody wrote, on the timed problem"
        outputs = {name: _thinned(array) for name, array in whole.items()}
        for name, array in outputs.items():
            if name in agreed and name in self._worst:  # an output without elements was never compared
                limit = Tolerance(_BETWEEN_TWO * self._worst[name].limit)
                error = compare(name, array, agreed[name], agreed[name], limit)
                self._worst[name] = max(error, self._worst[name], key=OutputError.badness)
        return outputs

    def verdict(self, where: str) -> Verdict:
        findings = (self.finding,) if self.finding else ()
        return Verdict(tuple(self._worst.values()), findings, tuple(self._done), where)

    def _outputs(self, arena: Arena, limit_s: float, *, twice: bool, inputs: bool) -> dict[str, Array]:
        call = arena.call(self._implementation.plan(arena.problem, self._config))
        found = []
        for _ in range(2 if twice else 1):
            arena.poison()
            self._device.run(self._program, call, limit_s)
            found.append(arena.outputs())
        damage = arena.damage(inputs=inputs)
        arena.release()
        if damage:
            self.finding, self.fault = damage, Fault.ILLEGAL
        elif not all(_same_bits(found[0][name], found[-1][name]) for name in found[0]):
            self.finding, self.fault = _UNSTEADY, Fault.UNSTEADY
        return found[0]


def cases(operator: Operator[Any], problem: Fields, *, every: bool) -> tuple[Case, ...]:
    """The edge cases of a problem: each tail with each kind of inputs if `every`, else each tail once."""
    return _cases(operator.name, encode(problem), every)


@lru_cache(maxsize=4)
def _cases(name: str, problem: str, every: bool) -> tuple[Case, ...]:
    operator = operators.load(name)
    tails = operator.tails(from_fields(operator.problem, json.loads(problem)))
    return tuple(_case(operator, tail, kind) for tail, kind in _pairs(operator, tails, every=every))


def _pairs(operator: Operator[Any], tails: tuple[Any, ...], *, every: bool) -> Iterator[tuple[Any, str]]:
    kinds = operator.input_kinds
    for i, tail in enumerate(tails):
        yield from ((tail, kind) for kind in (kinds if every else (kinds[i % len(kinds)],)))


def _case(operator: Operator[Any], problem: Any, kind: str) -> Case:
    rng = np.random.default_rng(crc32((canonical(problem) + kind).encode()))
    arrays = operator.inputs(problem, rng, kind)
    exact, rounded = operator.reference(problem, arrays), operator.rounded(problem, arrays)
    tolerances = operator.tolerance(problem)
    names = [argument.name for argument in operator.written if np.size(exact[argument.name])]
    sizes = " ".join(f"{name}={getattr(problem, name)}" for name in extents(operator.problem))
    right = {n: (exact[n], rounded[n], tolerances[n]) for n in names}
    return Case(f"{sizes} {kind}", problem, arrays, scalars(operator, problem, arrays), right)


def _thinned(array: Array) -> Array:
    """Elements spread evenly over an output; the step is odd, so that it visits every column."""
    flat = array.reshape(-1)
    return flat[:: (len(flat) // _AGREEMENT) | 1].copy()


def _unwritten(array: Array) -> bool:
    """Whether an element still holds the poison. Small integers are no poison: -1 may be an index."""
    words = array.reshape(-1).view(f"u{array.itemsize}")
    return array.dtype.kind not in "iu" and bool((words == np.iinfo(words.dtype).max).any())


def _same_bits(one: Array, other: Array) -> bool:
    return bool(np.array_equal(one.reshape(-1).view(np.uint8), other.reshape(-1).view(np.uint8)))
