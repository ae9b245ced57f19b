"""Run a config's PTX over its operator's edge cases, and compare it with float64, like a run on the emulator."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from tuner import operators
from tuner.arch import ARCHES, Arch
from tuner.backends import ptx
from tuner.backends.ptx import ORDERS, Entry, Order
from tuner.base.cache import Cache
from tuner.compiler import nvrtc
from tuner.compiler.render import render
from tuner.compiler.source import Source
from tuner.compiler.toolkit import Options
from tuner.errors import UsageError
from tuner.evaluate.check import verdict_cache
from tuner.evaluate.check.edges import Edge, one_code, served
from tuner.evaluate.check.job import Job, drawn, most_seconds
from tuner.evaluate.check.verdict_builder import CaseResult, verdict_of
from tuner.results.attempt import Failed, Stage
from tuner.results.verdict import Verdict
from tuner.spec.instance import Instance
from tuner.spec.plan import Plan
from tuner.spec.problem import canonical


@dataclass(frozen=True)
class Executed(CaseResult):
    """The result of an edge case, and the number of executed warp instructions."""

    instructions: int = 0


_QUICK = 25_000  # instructions: with one warp at a time, they take a second


def check_ptx(job: Job, arch: Arch, most: int | None = None, orders: Sequence[Order] = ORDERS) -> Verdict:
    """Check a config's PTX for `arch` on the first `most` edge cases (None: all).

    Cases with few instructions run in every one of `orders`, others in the first. The first finding ends the check.
    Raises MachineError without NVRTC.
    """
    entries = compiled(job, arch)
    if isinstance(entries, Failed):
        return Verdict((), (entries.reason,), where=where_checked(arch))
    try:
        return verdict_of(
            operators.load(job.instance.operator), executed(job, entries, most, orders), where_checked(arch)
        )
    except _RefusedError as refused:
        return Verdict((), (str(refused),), where=where_checked(arch))


def _blocks(plan: Plan) -> str:
    """Return how many blocks were sampled, unless all of them ran."""
    sampled = (f"{len(launch.sample)} of {prod(launch.grid):,} blocks, " for launch in plan.launches if launch.sample)
    return next(sampled, "")


class _RefusedError(Exception):
    """The code of an edge case does not compile."""


def where_checked(arch: Arch) -> str:
    """Return where a verdict comes from."""
    return f"PTX for {arch.name}"


def key_on_ptx(job: Job) -> str:
    """Return the key of everything that decides the verdict on a job; see `verdict_cache.key_on_ptx`."""
    instance = operators.instance(job.instance)
    edges = served(instance)
    problems = list(dict.fromkeys(edge.problem for edge in edges))
    rounds_text = (f"{problems.index(edge.problem)} {edge.kind}" for edge in edges)
    return verdict_cache.key_on_ptx(instance, problems, (*rounds_text, job.arch))


def compiled(job: Job, arch: Arch) -> dict[str, Entry] | Failed:
    """Return the parsed PTX of a config's kernels, by name."""
    return _compiled(render(operators.instance(job.instance)), arch)


def _compiled(source: Source, arch: Arch) -> dict[str, Entry] | Failed:
    text = nvrtc.ptx(source, Options(arch.name), Cache.of("ptx"))
    if isinstance(text, Failed):
        return text
    try:
        return ptx.parse(text)
    except UsageError as error:  # for unsupported PTX, such as recursion
        return Failed(Stage.EMULATE, str(error))


def executed(
    job: Job, entries: dict[str, Entry], most: int | None = None, orders: Sequence[Order] = ORDERS
) -> Iterator[Executed]:
    """Yield the result of each edge case."""
    instance = operators.instance(job.instance)
    for edge in served(instance)[:most]:
        own = entries if one_code(edge.problem, instance.problem) else _entries_of(instance.at(edge.problem), job.arch)
        for order in orders:
            yield (result := _executed(instance, own, edge, order))
            if order == orders[0] and result.instructions > _QUICK:
                break


def _entries_of(edge: Instance, arch: str) -> dict[str, Entry]:
    """Return the kernels of an edge case whose sizes are compiled in."""
    if isinstance(compiled_edge := _compiled(render(edge), ARCHES[arch]), Failed):
        raise _RefusedError(f"{canonical(edge.problem)}: {compiled_edge.reason}")
    return compiled_edge


def _executed(instance: Instance, entries: dict[str, Entry], edge: Edge, order: Order) -> Executed:
    operator = instance.operator
    arrays, expected = drawn(operator.name, canonical(edge.problem), edge.kind)
    races = instance.implementation.checked_on == "ptx"  # otherwise the emulator checks for them, in more detail
    at = instance.at(edge.problem)
    outputs, run = ptx.run(at, entries, arrays, order=order, races=races, most_seconds=most_seconds(at), sampled=True)
    case = f"{edge.name(operator)} {order}: {_blocks(at.plan())}{run.instructions} instructions of warps"
    findings = (run.fault,) if run.fault else ()
    return Executed(case, arrays, expected, outputs, findings, instructions=run.instructions)
