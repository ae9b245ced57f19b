"""Run one config on the emulator over its operator's edge cases, and judge it against float64."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from types import TracebackType
from typing import Any

import numpy as np

from tuner import check_known, emulator, operators
from tuner.check_known import Known
from tuner.emulator import Mode
from tuner.operator import Arrays, Implementation, Operator, Plan, canonical, extents, from_fields, scalars
from tuner.result import Fields, OutputError, Verdict
from tuner.verify import Expected, expect, trespass

# What each round can see that the others cannot: numbers and faults; asynchronous copies that land late, warps in the
# other order; races, uninitialised reads and missing waits.
PLAIN = (Mode(False, "order", "early", 0), Mode(False, "reverse", "late", 0))
CHECKED = (Mode(True, "random", "late", 1), Mode(True, "random", "random", 2))


@dataclass(frozen=True)
class Job:
    """A config by name and data, so that it travels to a worker process. `thorough` runs every mode on every case."""

    operator: str
    implementation: str
    problem: Fields
    config: Fields
    modes: tuple[Mode, ...] = PLAIN + CHECKED
    thorough: bool = False


class Checker:
    """A pool of killable emulator processes. A crash or an endless loop in a kernel is a verdict.

    With `known`, what was found right before, under the same code, is not run again.
    """

    def __init__(self, workers: int | None = None, timeout_s: float = 120.0, *, known: Known | None = None) -> None:
        self._pool, self._known = emulator.Pool(workers, timeout_s), known

    def __enter__(self) -> "Checker":
        self._pool.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pool.__exit__(kind, error, at)

    def check_many(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Verdict]]:
        """(position, Verdict) as they finish; those that are known first."""
        found = {i: verdict for i, job in enumerate(jobs) if (verdict := self._recall(job))}
        yield from found.items()
        open_ = [i for i in range(len(jobs)) if i not in found]
        for place, answer in self._pool.map(_keyed, [jobs[i] for i in open_]):
            yield open_[place], self._kept(answer)

    def _recall(self, job: Job) -> Verdict | None:
        return self._known.find(key_of(job)) if self._known else None

    def _kept(self, answer: tuple[str, Verdict] | emulator.Finding) -> Verdict:
        if isinstance(answer, emulator.Finding):
            return Verdict((), (str(answer),))
        key, verdict = answer
        if self._known:
            self._known.keep(key, verdict)
        return verdict


def _keyed(job: Job) -> tuple[str, Verdict]:
    """A verdict with the key of what this process ran: the caller's files may have changed since it started."""
    return key_of(job), check(job)


def check(job: Job) -> Verdict:
    """The verdict on one config. Cases are dealt to the modes in turn unless `thorough`; the first finding ends it,
    but for other bits in another order, whose cause a checked run may name.
    """
    operator, implementation, problem, config = loaded(job)
    worst: dict[str, OutputError] = {}
    done: list[str] = []
    first: dict[Case, Arrays] = {}
    unsteady = ""
    # A second build for the plain rounds costs more than it saves them, but where accesses are nearly all that is done.
    instrumented = any(mode.checked for mode in job.modes)

    def verdict(*findings: str) -> Verdict:
        return Verdict(tuple(worst.values()), tuple(filter(None, (*findings, unsteady))), tuple(done))

    for case, mode in _rounds(operator, implementation, problem, job):
        arrays, expected = drawn(operator.name, canonical(case.problem), case.kind)
        outputs, run = emulator.run(
            operator, implementation, case.problem, config, arrays, mode, instrumented=instrumented
        )
        instrumented = instrumented and run.counters.mma > 0
        done.append(f"{case.name(operator)} {case.kind} {mode}")
        if run.findings:
            return verdict(*map(str, run.findings))
        if changed := trespass(operator, arrays, expected.exact, outputs):
            return verdict(changed)
        if held := _undeclared(implementation.plan(case.problem, config), run.counters):
            return verdict(held)
        keep_worst(worst, expected.errors(outputs))
        if other := _other_bits(first.setdefault(case, outputs), outputs):
            unsteady = f"{other}: other bits in another order of threads"
    return verdict()


def key_of(job: Job) -> str:
    """All that decides the verdict on a job; see `check_known.key`."""
    operator, implementation, problem, config = loaded(job)
    rounds = list(_rounds(operator, implementation, problem, job))
    problems = list(dict.fromkeys(case.problem for case, _ in rounds))
    spelled = (f"{problems.index(case.problem)} {case.kind} {mode}" for case, mode in rounds)
    return check_known.key(operator, implementation, config, problems, spelled)


def keep_worst(worst: dict[str, OutputError], errors: Iterable[OutputError]) -> None:
    """Put into `worst` what is worse for its output."""
    for error in errors:
        worst[error.name] = max(error, worst.get(error.name, error), key=OutputError.badness)


def loaded(job: Job) -> tuple[Operator[Any], Implementation[Any, Any], Any, Any]:
    """Operator, implementation, Problem and Config."""
    operator = operators.load(job.operator)
    implementation = operators.implementation(job.operator, job.implementation)
    problem = from_fields(operator.problem, job.problem)
    return operator, implementation, problem, from_fields(implementation.config, job.config)


@dataclass(frozen=True)
class Case:
    """A small problem and the kind of inputs to run it on."""

    problem: Any
    kind: str

    def name(self, operator: Operator[Any]) -> str:
        """The sizes; one of 0 is of what is not there."""
        sizes = {name: getattr(self.problem, name) for name in extents(operator.problem)}
        return " ".join(f"{name}={size}" for name, size in sizes.items() if size)


def cases(operator: Operator[Any], problem: Any) -> list[Case]:
    """The edge cases of a problem, each with one of the operator's kinds of inputs."""
    kinds = operator.input_kinds
    return [Case(tail, kinds[i % len(kinds)]) for i, tail in enumerate(operator.tails(problem))]


def served(operator: Operator[Any], implementation: Implementation[Any, Any], problem: Any) -> list[Case]:
    """Those of the edge cases whose sizes the implementation takes."""
    return [case for case in cases(operator, problem) if operators.serves(implementation, case.problem)]


def _rounds(
    operator: Operator[Any], implementation: Implementation[Any, Any], problem: Any, job: Job
) -> Iterator[tuple[Case, Mode]]:
    edges = served(operator, implementation, problem)
    if job.thorough:
        yield from ((case, mode) for mode in job.modes for case in edges)
        return
    # Every case in the first mode; the dearer modes take turns, so that each sees another edge.
    yield from ((case, job.modes[0]) for case in edges)
    for i, mode in enumerate(job.modes[1:]):
        yield edges[-1 - i % len(edges)], mode


@lru_cache(maxsize=64)
def drawn(operator: str, problem: str, kind: str) -> tuple[Arrays, Expected]:
    """Inputs and what is expected of them: once a process, for all modes of all configs."""
    described = operators.load(operator)
    value = from_fields(described.problem, json.loads(problem))
    inputs = described.inputs(value, np.random.default_rng(0), kind)
    arrays = {**inputs, **scalars(described, value, inputs)}
    return arrays, expect(described, value, arrays)


def _undeclared(plan: Plan, counters: emulator.Counters) -> str:
    """Tensor memory beyond what the launches say: fewer blocks would share an SM than is predicted. Empty for none."""
    allocated = counters.tensor_columns
    declared = sum(prod(launch.grid) * launch.tensor_columns for launch in plan.launches) if allocated else 0
    if allocated <= declared:
        return ""
    return f"blocks allocate {allocated} columns of tensor memory where launches declare {declared} (tensor_columns)"


def _other_bits(one: Arrays, other: Arrays) -> str:
    """The first output whose bits differ; empty for none. A winner must answer the same today and tomorrow."""
    views = (
        (name, one[name].reshape(-1).view(np.uint8), array.reshape(-1).view(np.uint8)) for name, array in other.items()
    )
    return next((name for name, a, b in views if not np.array_equal(a, b)), "")
