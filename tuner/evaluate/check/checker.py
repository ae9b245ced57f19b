"""Run a config over its operator's edge cases on the emulator or the PTX interpreter, and compare it with float64."""

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from tuner import operators
from tuner.arch import ARCHES
from tuner.backends import emulator
from tuner.backends.emulator import Mode
from tuner.backends.emulator.pool import PATIENCE_S
from tuner.backends.tensor_cores import of_mma_sync
from tuner.base.self_closing import Closing
from tuner.evaluate.check import verdict_cache
from tuner.evaluate.check.edges import Edge, served, too_large
from tuner.evaluate.check.job import CHECKED as CHECKED
from tuner.evaluate.check.job import PLAIN as PLAIN
from tuner.evaluate.check.job import Job as Job
from tuner.evaluate.check.job import drawn as drawn
from tuner.evaluate.check.job import most_seconds
from tuner.evaluate.check.on_ptx import check_ptx, key_on_ptx, where_checked
from tuner.evaluate.check.verdict_builder import CaseResult, verdict_of
from tuner.evaluate.check.verdict_cache import VerdictCache
from tuner.results.verdict import Verdict
from tuner.spec.instance import Instance
from tuner.spec.plan import Plan
from tuner.spec.problem import Arrays, canonical


class Checker(Closing):
    """A pool of killable processes. A kernel that crashes its process or hangs affects only its own verdict.

    With `known`, configs that passed before with the same code are not run again.
    """

    def __init__(
        self, workers: int | None = None, timeout_s: float = PATIENCE_S, *, known: VerdictCache | None = None
    ) -> None:
        self._pool, self._known = emulator.Pool(workers, timeout_s), known

    def close(self) -> None:
        self._pool.close()

    def check_many(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Verdict]]:
        """Yield (position, Verdict) in order of completion, cached verdicts first."""
        recalled = {i: verdict for i, job in enumerate(jobs) if (verdict := self._recall(job))}
        yield from recalled.items()
        open_ = [i for i in range(len(jobs)) if i not in recalled]
        for i, answer in self._pool.map(_keyed, [jobs[i] for i in open_]):
            yield open_[i], self._kept(jobs[open_[i]], answer)

    def _recall(self, job: Job) -> Verdict | None:
        return self._known.find(key_of(job)) if self._known else None

    def _kept(self, job: Job, answer: tuple[str, Verdict] | emulator.Finding) -> Verdict:
        if isinstance(answer, emulator.Finding):
            on_ptx = operators.instance(job.instance).implementation.checked_on == "ptx"
            return Verdict((), (str(answer),), where=where_checked(ARCHES[job.arch]) if on_ptx else "emulator")
        key, verdict = answer
        if self._known:
            self._known.keep(key, verdict)
        return verdict


def _keyed(job: Job) -> tuple[str, Verdict]:
    """Return a verdict with the key of the code that this process ran, since the caller's files may have changed."""
    return key_of(job), check(job)


def check(job: Job) -> Verdict:
    """Check one config. Unless `thorough`, the cases are distributed over the modes. The first finding ends the check.

    The exception is a result that depends on the thread order, whose cause a checked run may identify.
    """
    instance = operators.instance(job.instance)
    on_ptx = instance.implementation.checked_on == "ptx"
    if reason := too_large(instance):
        return Verdict((), (reason,), where=where_checked(ARCHES[job.arch]) if on_ptx else "emulator")
    if on_ptx:
        return check_ptx(job, ARCHES[job.arch])
    return verdict_of(instance.operator, _runs(instance, job))


def _runs(instance: Instance, job: Job) -> Iterator[CaseResult]:
    """Yield the result of every round on the emulator."""
    operator, first = instance.operator, dict[Edge, Arrays]()
    # A second build for the plain rounds takes longer than it saves, unless nearly all work is memory accesses.
    instrumented = any(mode.checked for mode in job.modes)
    for edge, mode in _rounds(instance, job):
        at, (arrays, expected) = instance.at(edge.problem), drawn(operator.name, canonical(edge.problem), edge.kind)
        outputs, run = emulator.run(
            at, arrays, mode, arch=job.arch, instrumented=instrumented, most_seconds=most_seconds(at)
        )
        instrumented = instrumented and run.counters.mma > 0
        findings = map(str, run.findings) if run.findings else (_undeclared(at.plan(), run.counters),)
        other = _other_bits(first.setdefault(edge, outputs), outputs)
        doubt = f"{other}: the result depends on the order of threads" if other else ""
        yield CaseResult(
            f"{edge.name(operator)} {mode}", arrays, expected, outputs, tuple(filter(None, findings)), doubt
        )


def key_of(job: Job) -> str:
    """Return the key of everything that decides the verdict on a job; see `verdict_cache.key`."""
    instance = operators.instance(job.instance)
    if instance.implementation.checked_on == "ptx":
        return key_on_ptx(job)
    rounds = list(_rounds(instance, job))
    problems = list(dict.fromkeys(edge.problem for edge, _ in rounds))
    rounds_text = (f"{problems.index(edge.problem)} {edge.kind} {mode}" for edge, mode in rounds)
    return verdict_cache.key(instance, problems, (*rounds_text, str(of_mma_sync(job.arch, 2))))


def _rounds(instance: Instance, job: Job) -> Iterator[tuple[Edge, Mode]]:
    edges = served(instance)
    if job.thorough:
        yield from ((edge, mode) for mode in job.modes for edge in edges)
        return
    # The first mode runs every case; the more expensive modes alternate, so that each sees different cases.
    yield from ((edge, job.modes[0]) for edge in edges)
    for i, mode in enumerate(job.modes[1:]):
        yield edges[-1 - i % len(edges)], mode


def _undeclared(plan: Plan, counters: emulator.Counters) -> str:
    """Return an error if blocks allocate more tensor memory than declared, so that fewer fit an SM; empty otherwise."""
    allocated = counters.tensor_columns
    declared = sum(prod(launch.grid) * launch.tensor_columns for launch in plan.launches) if allocated else 0
    if allocated <= declared:
        return ""
    return f"blocks allocate {allocated} columns of tensor memory where launches declare {declared} (tensor_columns)"


def _other_bits(one: Arrays, other: Arrays) -> str:
    """Return the first output whose bits differ, or an empty string. Results must be reproducible."""
    views = (
        (name, one[name].reshape(-1).view(np.uint8), array.reshape(-1).view(np.uint8)) for name, array in other.items()
    )
    return next((name for name, a, b in views if not np.array_equal(a, b)), "")
