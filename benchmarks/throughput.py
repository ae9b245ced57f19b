"""Measure how many configs per minute are compiled and ranked, and how many are verified.

    python benchmarks/throughput.py [--configs 60] [--workers 2]

Starts from empty caches in a temporary folder. Reports wall time and CPU seconds of this process and its workers: on a
busy machine only the CPU seconds are meaningful, and `configs a minute on 2 idle cores` is derived from them.
"""

import argparse
import os
import random
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_CORES = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configs", type=int, default=60)
    parser.add_argument("--workers", type=int, default=_CORES)
    parser.add_argument("--head-dim", type=int, default=72)
    parser.add_argument("--gpu", default="sm_90a")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TUNER_CACHE_DIR"] = folder
        _run(options)


def _run(options: argparse.Namespace) -> None:
    from tuner import operators
    from tuner.arch import gpu
    from tuner.compiler.nvrtc import Compiler
    from tuner.evaluate.check.checker import Checker
    from tuner.evaluate.predictor import Predictor
    from tuner.spec.instance import Instance

    operator, target = operators.load("flash_attention"), gpu(options.gpu)
    implementation = operators.implementation("flash_attention", "mma_sync")
    problem = operator.problem(head_dim=options.head_dim, causal=True)
    space = implementation.space(problem, target.arch)
    indices = random.Random(0).sample(range(len(space)), options.configs)
    instances = [Instance(operator, implementation, problem, space[i]) for i in indices]
    with Compiler(options.workers) as compiler, Checker(options.workers) as checker:
        predictor = Predictor(target, compiler, checker)
        _report("compiled and ranked", len(instances), lambda: list(predictor.try_all(instances)))
        _warm(predictor, instances[:1])
        _report("verified", len(instances), lambda: _verify(predictor, instances))


def _warm(predictor: Any, instances: list[Any]) -> None:
    """Build the emulator's runtime, which happens once per machine."""
    list(predictor.check(instances))


def _verify(predictor: Any, instances: list[Any]) -> None:
    verdicts = [verdict for _, verdict in predictor.check(instances)]
    wrong = [verdict.reason for verdict in verdicts if not verdict.ok]
    print(f"  {len(wrong)} of {len(verdicts)} configs are wrong{': ' + wrong[0] if wrong else ''}")


def _report(what: str, count: int, work: Callable[[], object]) -> None:
    cpu, started = _cpu_seconds(), time.monotonic()
    work()
    wall = time.monotonic() - started
    used = _cpu_seconds() - cpu
    print(
        f"{what}: {count} configs in {wall:.1f} s, {60 * count / wall:.0f} a minute; {used / count:.3f} CPU s each: "
        f"{60 * count * _CORES / used:.0f} a minute on {_CORES} idle cores"
    )


def _cpu_seconds() -> float:
    """Return the user and system time of this process and of its workers, including running ones."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    living = sum(_stat(path) for path in Path("/proc").glob("[0-9]*/stat"))
    return usage.ru_utime + usage.ru_stime + children.ru_utime + children.ru_stime + living


def _stat(path: Path) -> float:
    """Return the CPU seconds of a running child, including its ended children; 0 for any other process."""
    try:
        fields = path.read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    if int(fields[1]) != os.getpid():
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
