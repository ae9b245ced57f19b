"""Claims about a config that tests of several operators make: it is right, nothing spills, it does what it declares."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tests.support.counted import counted, declared
from tuner.arch import ARCHES, GPU, Arch
from tuner.backends import emulator
from tuner.backends.emulator import Mode, Run
from tuner.base.cache import Cache
from tuner.compiler.cubin import Cubin
from tuner.compiler.nvrtc import compile, ptx
from tuner.compiler.render import render
from tuner.compiler.source import Source
from tuner.compiler.toolkit import Options
from tuner.evaluate.check.checker import CHECKED, PLAIN, Job, check
from tuner.evaluate.check.checker import drawn as drawn_once
from tuner.evaluate.check.compare import errors, unexpected_write
from tuner.results.attempt import Failed
from tuner.spec.instance import Instance
from tuner.spec.operator import Implementation, Operator
from tuner.spec.parameters import scalars
from tuner.spec.problem import Arrays, canonical

# Two orders of threads, with copies that come late: both with the race detector, so that a config is built once.
BOTH_WAYS = (Mode(True, "reverse", "late"), CHECKED[0])

# Of arches with one machine code: sm_89 has that of sm_86, in every default but two naive ones.
DISTINCT_ARCHES = tuple(name for name in ARCHES if name != "sm_89")
_BEFORE, _SINCE = ("sm_80", "sm_86", "sm_90a", "sm_87"), ("sm_100a", "sm_120a", "sm_103a", "sm_121a", "sm_110a")


def dealt_arches(position: int) -> tuple[str, ...]:
    """One arch before sm_100a and one since, in turn: on those of either kind a text has nearly the same registers.

    `benchmarks/toolkits.py --all --options` asks all of them.
    """
    return _BEFORE[position % len(_BEFORE)], _SINCE[position % len(_SINCE)]


def example(operator: Operator[Any], implementation: Implementation[Any, Any]) -> Any:
    """A problem that the implementation serves."""
    return operator.problem() if implementation.example is None else implementation.example


def first_arch(implementation: Implementation[Any, Any], problem: Any) -> Arch:
    return next(arch for arch in ARCHES.values() if implementation.refusal(problem, arch) is None)


def drawn(operator: Operator[Any], problem: Any, kind: str) -> Arrays:
    """Inputs of this kind and the scalars, which the reference takes from the arrays."""
    result = operator.inputs(problem, np.random.default_rng(0), kind)
    return {**result, **scalars(operator, problem, result)}


def compiled(source: Source, arch: str) -> Cubin:
    """In this process, and once for all tests."""
    cubin = compile(source, Options(arch), Cache.of("cubin"))
    assert not isinstance(cubin, Failed), cubin.log
    return cubin


def compiled_to_ptx(source: Source, arch: str) -> str:
    """The same, up to what ptxas takes."""
    text = ptx(source, Options(arch), Cache.of("ptx"))
    assert not isinstance(text, Failed), text.log
    return text


def assert_right(instance: Instance, arrays: Arrays, mode: Mode = PLAIN[0]) -> tuple[Arrays, Run]:
    """Within the tolerances of these arrays' exact results. Returns what the run wrote, and the run."""
    outputs, done = emulator.run(instance, arrays, mode)
    assert not done.findings, done.findings[0]
    for error in errors(instance.operator, instance.problem, arrays, outputs):
        assert error.ok, f"{error}"
    return outputs, done


def assert_right_at_edges(instance: Instance, modes: tuple[Mode, ...] = PLAIN + CHECKED) -> None:
    """Over the edge cases of its operator."""
    verdict = check(Job(instance.fields(), modes))
    assert verdict.ok, verdict.reason


def assert_right_on_tails(instance: Instance) -> None:
    """A config of the space on sm_90a, over its operator's tails."""
    assert_on_hopper(instance)
    assert_right_at_edges(instance, BOTH_WAYS)


def assert_right_at(instance: Instance, *places: tuple[dict[str, int], str]) -> None:
    """A config of the space on sm_90a, at these extents with these inputs: right both ways, to the same bits."""
    assert_on_hopper(instance)
    for extents, kind in places:
        at = instance.at(replace(instance.problem, **extents))
        arrays, expected = drawn_once(at.operator.name, canonical(at.problem), kind)
        results = []
        for mode in BOTH_WAYS:
            outputs, done = emulator.run(at, arrays, mode)
            assert not done.findings, f"{done.findings[0]}"
            assert not unexpected_write(at.operator, arrays, expected.exact, outputs)
            for error in expected.errors(outputs):
                assert error.ok, f"{error}"
            results.append({name: output.tobytes() for name, output in outputs.items()})
        assert results[0] == results[1]


def assert_on_hopper(instance: Instance) -> None:
    """A config of the space on sm_90a."""
    assert instance.implementation.space(instance.problem, ARCHES["sm_90a"]).refusal(instance.config) is None


def assert_no_spills(
    operator: Operator[Any], implementation: Implementation[Any, Any], problem: Any, arch: str
) -> None:
    """Of the default config in any of its kernels, which know besides what memory they access."""
    cubin = compiled(render(Instance.default(operator, implementation, problem, ARCHES[arch])), arch)
    assert not any(usage.spills for usage in cubin.entries.values()), arch
    assert_memory_is_known(cubin)


def assert_memory_is_known(cubin: Cubin) -> None:
    """No kernel has generic accesses: for each, hardware finds out whether it is of global or of shared memory."""
    for entry in cubin.entries:
        results = [name for name in ("LD", "ST", "ATOM") if name in cubin.mnemonics(entry)]
        assert not results, f"{entry}: {', '.join(results)}"


def assert_declared(instance: Instance, gpu: GPU, kind: str) -> None:
    """Each launch's mma, bytes and barriers are those that the emulator counts, which finds no bank conflict."""
    _, done = emulator.run(instance, drawn(instance.operator, instance.problem, kind), CHECKED[0])
    assert declared(instance.work(gpu)) == counted(done, instance.plan())


def assert_apart(
    instance: Instance,
    arrays: Arrays,
    spoiled: Mapping[str, Any],
    elsewhere: Mapping[str, Sequence[Any]],
    rounding: float = 0.0,
) -> None:
    """NaN in places of inputs changes nothing in places of outputs that have nothing to do with them, or no more than
    `rounding` of what is largest there."""
    changed = {name: arrays[name].copy() for name in spoiled if arrays[name].size}
    for name in changed:
        changed[name][spoiled[name]] = np.nan
    (clean, _), (result, done) = (emulator.run(instance, inputs, CHECKED[0]) for inputs in (arrays, arrays | changed))
    assert not done.findings, done.findings[0]
    for name, places in elsewhere.items():
        for one, other in ((clean[name][place], result[name][place]) for place in places if clean[name].size):
            assert np.abs(one - other).max(initial=0) <= rounding * np.abs(one).max(initial=0), name
