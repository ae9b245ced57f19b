"""Claims about a config in tests of several operators: it is correct, nothing spills, its work is as declared."""

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

# two thread orders with late copies, both with the race detector, so that a config is built once
BOTH_WAYS = (Mode(True, "reverse", "late"), CHECKED[0])

# arches with equal machine code: sm_89's is that of sm_86 for every default except two naive ones
DISTINCT_ARCHES = tuple(name for name in ARCHES if name != "sm_89")
_BEFORE, _SINCE = ("sm_80", "sm_86", "sm_90a", "sm_87"), ("sm_100a", "sm_120a", "sm_103a", "sm_121a", "sm_110a")


def dealt_arches(position: int) -> tuple[str, ...]:
    """Return one arch before sm_100a and one since, in turn; within each group a source needs nearly the same
    registers.

    `benchmarks/toolkits.py --all --options` compiles for all of them.
    """
    return _BEFORE[position % len(_BEFORE)], _SINCE[position % len(_SINCE)]


def example(operator: Operator[Any], implementation: Implementation[Any, Any]) -> Any:
    """Return a problem that the implementation serves."""
    return operator.problem() if implementation.example is None else implementation.example


def first_arch(implementation: Implementation[Any, Any], problem: Any) -> Arch:
    return next(arch for arch in ARCHES.values() if implementation.refusal(problem, arch) is None)


def drawn(operator: Operator[Any], problem: Any, kind: str) -> Arrays:
    """Return inputs of this kind and the scalars, which the reference takes from the arrays."""
    result = operator.inputs(problem, np.random.default_rng(0), kind)
    return {**result, **scalars(operator, problem, result)}


def compiled(source: Source, arch: str) -> Cubin:
    """Compile in this process, once for all tests."""
    cubin = compile(source, Options(arch), Cache.of("cubin"))
    assert not isinstance(cubin, Failed), cubin.log
    return cubin


def compiled_to_ptx(source: Source, arch: str) -> str:
    """Compile as far as ptxas's report."""
    text = ptx(source, Options(arch), Cache.of("ptx"))
    assert not isinstance(text, Failed), text.log
    return text


def assert_right(instance: Instance, arrays: Arrays, mode: Mode = PLAIN[0]) -> tuple[Arrays, Run]:
    """Check that outputs are within the tolerances of these arrays' exact results. Returns the outputs and the run."""
    outputs, done = emulator.run(instance, arrays, mode)
    assert not done.findings, done.findings[0]
    for error in errors(instance.operator, instance.problem, arrays, outputs):
        assert error.ok, f"{error}"
    return outputs, done


def assert_right_at_edges(instance: Instance, modes: tuple[Mode, ...] = PLAIN + CHECKED) -> None:
    """Check over the edge cases of its operator."""
    verdict = check(Job(instance.fields(), modes))
    assert verdict.ok, verdict.reason


def assert_right_on_tails(instance: Instance) -> None:
    """Check a config of the space for sm_90a over its operator's tails."""
    assert_on_hopper(instance)
    assert_right_at_edges(instance, BOTH_WAYS)


def assert_right_at(instance: Instance, *places: tuple[dict[str, int], str]) -> None:
    """Check a config of the space for sm_90a at these extents and inputs: correct in both modes, with equal bits."""
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
    """Return a config of the space for sm_90a."""
    assert instance.implementation.space(instance.problem, ARCHES["sm_90a"]).refusal(instance.config) is None


def assert_no_spills(
    operator: Operator[Any], implementation: Implementation[Any, Any], problem: Any, arch: str
) -> None:
    """Check the machine code of every kernel of the default config, including the kind of memory of each access."""
    cubin = compiled(render(Instance.default(operator, implementation, problem, ARCHES[arch])), arch)
    assert not any(usage.spills for usage in cubin.entries.values()), arch
    assert_memory_is_known(cubin)


def assert_memory_is_known(cubin: Cubin) -> None:
    """Check that no kernel has generic accesses, for which hardware must determine the address space at run time."""
    for entry in cubin.entries:
        results = [name for name in ("LD", "ST", "ATOM") if name in cubin.mnemonics(entry)]
        assert not results, f"{entry}: {', '.join(results)}"


def assert_declared(instance: Instance, gpu: GPU, kind: str) -> None:
    """Check that each launch declares the mma, bytes and barriers that the emulator counts, without bank conflicts."""
    _, done = emulator.run(instance, drawn(instance.operator, instance.problem, kind), CHECKED[0])
    assert declared(instance.work(gpu)) == counted(done, instance.plan())


def assert_apart(
    instance: Instance,
    arrays: Arrays,
    spoiled: Mapping[str, Any],
    elsewhere: Mapping[str, Sequence[Any]],
    rounding: float = 0.0,
) -> None:
    """Check that NaN in parts of the inputs changes independent parts of the outputs by no more than `rounding` of
    their maximum.
    """
    changed = {name: arrays[name].copy() for name in spoiled if arrays[name].size}
    for name in changed:
        changed[name][spoiled[name]] = np.nan
    (clean, _), (result, done) = (emulator.run(instance, inputs, CHECKED[0]) for inputs in (arrays, arrays | changed))
    assert not done.findings, done.findings[0]
    for name, places in elsewhere.items():
        for one, other in ((clean[name][place], result[name][place]) for place in places if clean[name].size):
            assert np.abs(one - other).max(initial=0) <= rounding * np.abs(one).max(initial=0), name
