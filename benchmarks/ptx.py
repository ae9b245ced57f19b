"""Execute the PTX of every implementation's default on the CPU, and compare it with float64.

    python benchmarks/ptx.py [--arch sm_80 sm_90a] [--operator kda …] [--cases 4] [--configs 3]

Prints a table in Markdown. `--configs` adds random configs of each space; `--cases 0` runs every edge case, which takes
minutes for some naive kernels. Only the interpreter itself is timed.
"""

import argparse
import random
import time
from collections.abc import Iterator
from dataclasses import replace

from tuner import operators
from tuner.arch import ARCHES, Arch
from tuner.evaluate.check.checker import Job
from tuner.evaluate.check.on_ptx import compiled, executed
from tuner.evaluate.check.verdict_builder import verdict_of
from tuner.results.attempt import Failed
from tuner.spec.instance import Instance
from tuner.spec.operator import Implementation, Operator
from tuner.spec.problem import to_fields


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", nargs="+", default=["sm_80", "sm_90a"], choices=ARCHES)
    parser.add_argument("--operator", nargs="+", default=list(operators.names()))
    parser.add_argument("--cases", type=int, default=4, help="edge cases per implementation; 0: all")
    parser.add_argument(
        "--configs", type=int, default=0, help="random configs per implementation, in addition to the default"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print("| operator | implementation | arch | configs | cases | instructions of warps | seconds | result |")
    print("|---|---|---|---|---|---|---|---|")
    rng = random.Random(options.seed)
    for arch in options.arch:
        for name in options.operator:
            for implementation in operators.implementations(name):
                jobs = list(jobs_of(operators.load(name), implementation, ARCHES[arch], options.configs, rng))
                if jobs:
                    print(row(jobs, ARCHES[arch], options.cases or None), flush=True)


def jobs_of(
    operator: Operator, implementation: Implementation, arch: Arch, configs: int, rng: random.Random
) -> Iterator[Job]:
    """Yield the default config, then random ones; none if the implementation refuses the problem."""
    problem = implementation.example or operator.problem()
    if implementation.refusal(problem, arch):
        return
    job = Job(Instance.default(operator, implementation, problem, arch).fields())
    yield job
    space = implementation.space(problem, arch)
    for _ in range(configs):
        yield replace(job, config=to_fields(space[rng.randrange(len(space))]))


def row(jobs: list[Job], arch: Arch, most: int | None) -> str:
    started, instructions, cases, wrong = time.perf_counter(), 0, 0, ""
    for job in jobs:
        entries = compiled(job, arch)
        if isinstance(entries, Failed):
            wrong = wrong or f"{job.instance.config}: {entries.reason}"
            continue
        for case in executed(job, entries, most):
            instructions, cases = instructions + case.instructions, cases + 1
            verdict = verdict_of(operators.load(job.instance.operator), [case])
            if not verdict.ok:
                wrong = wrong or f"WRONG {job.instance.config} on {case.case}: {verdict.reason}"
            if verdict.findings:
                break
    seconds = time.perf_counter() - started
    name = f"| {jobs[0].operator} | {jobs[0].implementation} | {arch.name} | {len(jobs)} | {cases} "
    return f"{name}| {instructions:,} | {seconds:.1f} | {wrong or 'right'} |"


if __name__ == "__main__":
    main()
