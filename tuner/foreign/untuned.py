"""Facts that a call does not state, found by running the untuned kernel on the CPU: written arguments, correct
results.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import numpy as np

from tuner import operators
from tuner.arch import ARCHES
from tuner.backends import ptx
from tuner.errors import UsageError
from tuner.evaluate.check.job import Job
from tuner.evaluate.check.on_ptx import compiled
from tuner.foreign.call import Call
from tuner.foreign.folder import IMPLEMENTATION, Known, Learnt, write
from tuner.results.attempt import Failed
from tuner.spec.argument import Role
from tuner.spec.instance import Instance
from tuner.spec.plan import Launch, Plan
from tuner.spec.problem import Array, Arrays
from tuner.spec.space import Value

_SPREAD = 1  # blocks around each sampled one that are also run, because other configs have larger tiles
_NEIGHBOURS = 3  # values of a parameter that are tried in addition to the default
_DIFFERS = 0.01  # relative to the size of the results; larger than any rounding error
_SECONDS = 300.0  # CPU time limit of a run


def learn(call: Call, fixed: Mapping[str, Value], arch: str = "sm_80") -> Learnt:
    """Return all facts about the kernel. Raises UsageError if it does not compile or fails."""
    arrays = [argument for argument in call.arguments if not argument.scalar and not argument.constant]
    assumed = Learnt(dict.fromkeys((array.name for array in arrays), Role.UPDATED), fixed=fixed)
    with _loaded(call, assumed) as untuned:
        run = _Runs(untuned, arch)
        first = run.outputs(untuned, {})
        written = {name: array for name, array in first.items() if not np.ma.getmaskarray(array).all()}
        if not written:
            raise UsageError(f"{call.kernel} wrote to none of its arguments: is problem_size that of its grid?")
        selecting = {} if _all_answered(call, written) else _selecting(run, untuned, written, fixed)
    learnt = Learnt(dict.fromkeys(written, Role.UPDATED), fixed={**fixed, **selecting}, spread=_SPREAD)
    with _loaded(call, learnt) as untuned:  # with the result-selecting parameters fixed
        run = _Runs(untuned, arch)
        right = run.outputs(untuned, {})
        again = run.outputs(untuned, {name: _poison(right[name]) for name in written})
    roles = {name: Role.OUTPUT if _same(right[name], again[name]) else Role.UPDATED for name in written}
    roles |= dict.fromkeys(call.answers.keys() - roles.keys(), Role.OUTPUT)
    answers = {name: _known(right[name]) for name in written} | {n: Known(answer) for n, answer in call.answers.items()}
    return Learnt(roles, answers, learnt.fixed)


@dataclass(frozen=True)
class _Runs:
    """Runs of a kernel on the PTX interpreter."""

    untuned: Instance
    arch: str

    def outputs(self, instance: Instance, instead: Arrays) -> dict[str, Array]:
        """Return the written elements, masked elsewhere, with some arrays replaced. Raises UsageError for faults."""
        entries = compiled(Job(instance.fields(), arch=self.arch), ARCHES[self.arch])
        if isinstance(entries, Failed):
            raise UsageError(f"{instance.config} does not compile: {entries.reason}")
        arrays = instance.operator.inputs(instance.problem, np.random.default_rng(0), "normal")
        watched = _watching(instance)
        outputs, run = ptx.run(watched, entries, {**arrays, **instead}, most_seconds=_SECONDS, sampled=True)
        if run.fault:
            raise UsageError(f"{instance.config} fails on the PTX interpreter: {run.fault}")
        return outputs


def _watching(instance: Instance) -> Instance:
    """Return the instance with every block of a small launch sampled, so that unwritten elements are masked."""

    def plan(problem: Any, config: Any) -> Plan:
        plan_of_config = instance.implementation.plan(problem, config)
        return replace(plan_of_config, launches=tuple(map(_named, plan_of_config.launches)))

    return replace(instance, implementation=replace(instance.implementation, plan=plan))


def _named(launch: Launch) -> Launch:
    return launch if launch.sample else replace(launch, sample=tuple(range(prod(launch.grid))))


@contextmanager
def _loaded(call: Call, learnt: Learnt) -> Iterator[Instance]:
    """Yield the default config of a temporary folder."""
    name = f"untuned_{uuid4().hex}"
    with TemporaryDirectory(prefix="tuner-import-") as temporary:
        write(name, Path(temporary) / name, call, learnt)
        with operators.folder(Path(temporary)):
            operator, implementation = operators.load(name), operators.implementation(name, IMPLEMENTATION)
            yield Instance.default(operator, implementation, operator.problem(), ARCHES["sm_80"])


def _all_answered(call: Call, written: Mapping[str, Array]) -> bool:
    return written.keys() <= call.answers.keys()


def _selecting(
    run: _Runs, untuned: Instance, written: Mapping[str, Array], fixed: Mapping[str, Value]
) -> dict[str, Value]:
    """Return the parameters whose other values change the result, with their untuned values."""
    space = untuned.implementation.space(untuned.problem, ARCHES[run.arch])
    selecting = {}
    for name, values in space.choices.items():
        untuned_value = getattr(untuned.config, name)
        others = [value for value in values if value != untuned_value and name not in fixed]
        for value in sorted(others, key=lambda value: abs(values.index(value) - values.index(untuned_value)))[
            :_NEIGHBOURS
        ]:
            config = replace(untuned.config, **{name: value})
            if space.refusal(config) is None:
                if _other(run, untuned.with_config(config), written):
                    selecting[name] = untuned_value
                break
    return selecting


def _other(run: _Runs, instance: Instance, written: Mapping[str, Array]) -> bool:
    """Return whether a config computes another result on elements that both write; False for one that fails."""
    try:
        outputs = run.outputs(instance, {})
    except UsageError:
        return False
    return any(_apart(outputs[name], array) > _DIFFERS for name, array in written.items())


def _apart(one: Array, other: Array) -> float:
    both = ~(np.ma.getmaskarray(one) | np.ma.getmaskarray(other))
    a, b = (np.asarray(array)[both] for array in (one, other))
    if a.dtype.kind in "iu":
        return float((a != b).any())
    a, b = a.astype(np.float64), b.astype(np.float64)
    size = float(np.linalg.norm(b))
    return float(np.linalg.norm(a - b)) / size if size else float(np.abs(a).max(initial=0.0))


def _poison(output: Array) -> Array:
    """Return contents that reveal reads: NaN, or -1."""
    return np.full(output.size * output.itemsize, 0xFF, np.uint8).view(output.dtype)


def _same(one: Array, other: Array) -> bool:
    """Return whether the results are bitwise equal on elements that the first run wrote."""
    seen = ~np.ma.getmaskarray(one)
    a, b = (np.ascontiguousarray(np.asarray(array)[seen]).view(np.uint8) for array in (one, other))
    return bool(np.array_equal(a, b))


def _known(output: Array) -> Known:
    seen = ~np.ma.getmaskarray(output)
    values = np.asarray(output)
    return Known(values) if seen.all() else Known(values[seen], np.flatnonzero(seen))
