"""Measure the emulator in CPU seconds: a build, a plain run and a checked run of flash attention.

    python benchmarks/emulator.py [--configs 12] [--repeats 5]

The problem is head_dim 72, batch 1, 2 heads, 256 tokens, causal, bf16, on mma_sync. Builds start from an empty cache in
a temporary folder. Runs are CPU time of this thread: the best of `repeats`, with the best and the median over configs.
"""

import argparse
import os
import random
import resource
import tempfile
from collections.abc import Sequence
from statistics import median
from typing import Any

_CORES = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configs", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TUNER_CACHE_DIR"] = folder
        _run(options.configs, options.repeats)


def _run(configs: int, repeats: int) -> None:
    from tuner import operators
    from tuner.arch import gpu
    from tuner.backends.emulator import Mode
    from tuner.spec.instance import Instance

    operator = operators.load("flash_attention")
    implementation = operators.implementation("flash_attention", "mma_sync")
    problem = operator.problem(head_dim=72, causal=True, batch=1, heads=2, seq_q=256)
    space = implementation.space(problem, gpu("sm_80").arch)
    default = implementation.default(problem, gpu("sm_80").arch)
    drawn = [default, *(space[i] for i in random.Random(0).sample(range(len(space)), configs - 1))]
    instances = [Instance(operator, implementation, problem, config) for config in drawn]
    modes = {"plain": Mode(), "checked": Mode(True, "random", "late", 1)}
    cost: dict[str, float] = {}
    for name, mode in modes.items():
        builds = _builds(instances, mode)
        runs = [_best(instance, mode, repeats) for instance in instances]
        cost[f"{name} build"], cost[f"{name} run"] = median(builds), median(runs)
        print(f"{name:8} build {_spread(builds, 's')}   run {_spread([1e3 * run for run in runs], 'ms')}")
        print(f"{'':8} default config: run {1e3 * runs[0]:.1f} ms")
    plain = cost["plain build"] + 2 * cost["plain run"]
    both = plain + cost["checked build"] + 2 * cost["checked run"]
    print(f"on {_CORES} idle cores: {_CORES * 60 / plain:.0f} configs a minute plain (a build, 2 runs), ", end="")
    print(f"{_CORES * 60 / both:.0f} checked (and a checked build, 2 runs)")


def _builds(instances: Sequence[Any], mode: Any) -> list[float]:
    """Return the CPU seconds of g++ for each config, with the runtime and the precompiled headers already built."""
    from tuner.backends import emulator
    from tuner.compiler.render import render

    other = instances[0].operator.problem(head_dim=64, causal=False, batch=1, heads=1, seq_q=64)
    emulator.build(render(instances[0].at(other), "host"), checked=mode.checked)
    builds = []
    for instance in instances:
        before = _children()
        emulator.build(render(instance, "host"), checked=mode.checked)
        builds.append(_children() - before)
    return builds


def _best(instance: Any, mode: Any, repeats: int) -> float:
    import numpy as np

    from tuner.backends import emulator

    operator = instance.operator
    arrays = operator.inputs(instance.problem, np.random.default_rng(0), operator.input_kinds[0])
    runs = [emulator.run(instance, arrays, mode)[1] for _ in range(repeats)]
    assert not any(run.findings for run in runs)
    return min(run.cpu_seconds for run in runs)


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _spread(values: Sequence[float], unit: str) -> str:
    return f"{median(values):.3g} {unit} ({min(values):.3g} to {max(values):.3g})"


if __name__ == "__main__":
    main()
