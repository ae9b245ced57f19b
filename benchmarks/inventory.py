"""Rank every implementation of every operator on a grid of problems and GPUs, and report where each one wins.

    python benchmarks/inventory.py [--operator kda …] [--gpu H200 …] [--seconds 1500] [--without kda/fused …]

Nothing is measured: costs are predicted. First they are predicted from declared work, over a sample of each space and
the neighbours of its best configs; then the best few configs of each competitive implementation are compiled, and also
predicted from their machine code. Unproven implementations compete as well; oracles are never compiled. Results are
appended to a file, and a later call resumes from it if the code behind the predictions is unchanged. The final table is
Markdown; --table prints it from the file alone, and --without shows it without some implementations.
"""

import argparse
import os
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from itertools import repeat, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from inventory_grid import GPUS, PROBLEMS
from inventory_line import Line, Standing, read, write
from inventory_table import table

from tuner import arch, operators
from tuner.compiler.cubin import Cubin
from tuner.compiler.nvrtc import Compiler, toolkit
from tuner.compiler.render import render
from tuner.compiler.toolkit import Options
from tuner.evaluate.predict.compiled import predict_launches, resources_of
from tuner.evaluate.predict.cost import MODEL, in_turn, uncompiled
from tuner.results.attempt import Failed
from tuner.spec.instance import Instance
from tuner.spec.operator import Implementation
from tuner.spec.problem import canonical, from_fields, to_fields

_DRAWN = 256  # number of ranked configs per space
_CLIMBED = 2  # the best configs, whose neighbours are ranked until none is better
_NEAR = 1.4  # × the best declared cost: implementations further behind are not compiled
_AT_ONCE = 16  # problems compiled together, so that they share the workers

AnyImplementation = Implementation[Any, Any]


@dataclass(frozen=True)
class Cell:
    """A problem on a GPU; `code` is a digest of the code that predicts it."""

    operator: str
    gpu: str
    problem: str
    code: str

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.operator, self.gpu, self.problem, self.code


def main() -> int:
    options = _options()
    ends = time.monotonic() + options.seconds
    cells, known = _cells(options), read(options.out)
    if not options.table:
        _rank([cell for cell in cells if cell.key not in known], options, ends)
        known = read(options.out)
        _compile([known[cell.key] for cell in cells if cell.key in known], options, ends)
        known = read(options.out)
    lines = [known[cell.key] for cell in cells if cell.key in known]
    finished = sum(line.done for line in lines)
    print(f"{len(lines)} of {len(cells)} problems on GPUs are ranked, {finished} of them completely\n")
    print("\n".join(table([line.without(options.without) for line in lines])))
    return 0 if finished == len(cells) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operator", nargs="+", default=list(PROBLEMS), choices=list(PROBLEMS))
    parser.add_argument("--gpu", nargs="+", default=list(GPUS), help="models, or architectures")
    parser.add_argument("--problem", nargs="+", default=[], help="names in the grid (default: all)")
    parser.add_argument("--seconds", type=float, default=1800.0, help="time limit; a later call continues")
    parser.add_argument("--tries", type=int, default=2, help="compiled configs per implementation")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=Path("reports/out/inventory.jsonl"))
    parser.add_argument("--without", nargs="+", default=[], metavar="OPERATOR/IMPLEMENTATION")
    parser.add_argument("--table", action="store_true", help="print the table of known results only")
    return parser.parse_args()


def _cells(options: argparse.Namespace) -> list[Cell]:
    """Return the requested cells, alternating between operators."""
    cells = [
        (at, Cell(operator, arch.gpu(gpu).name, problem, _code(operator, problem, options.tries)))
        for operator in options.operator
        for at, problem in enumerate(PROBLEMS[operator])
        for gpu in options.gpu
        if not options.problem or problem in options.problem
    ]
    return [cell for _, cell in sorted(cells, key=lambda pair: pair[0])]


def _code(operator: str, problem: str, tries: int) -> str:
    """Return a digest of the inputs of a prediction: all operators' folders, the problem, the compiler and the
    model.
    """
    sizes = canonical(_problem(operator, problem))
    settings = f"{MODEL} {toolkit()} {_DRAWN} {_CLIMBED} {_NEAR} {tries}"
    return sha256(f"{_folders()} {sizes} {settings}".encode()).hexdigest()[:16]


@cache
def _folders() -> str:
    digest = sha256()
    for root in sorted({operators.load(name).folder.parent for name in PROBLEMS}):
        for path in sorted(root.rglob("*")):
            if path.suffix in (".py", ".cuh", ".jinja"):
                digest.update(path.read_bytes())
    return digest.hexdigest()


def _rank(cells: Sequence[Cell], options: argparse.Namespace, ends: float) -> None:
    """Write a line for each cell until the time is over."""
    with ProcessPoolExecutor(options.workers) as pool:
        waiting = (cells[at : at + 64] for at in range(0, len(cells), 64))
        for batch in waiting:
            if time.monotonic() > ends:
                return
            for line in pool.map(_ranked, batch, repeat(options.tries), chunksize=2):
                write(options.out, line)


def _ranked(cell: Cell, tries: int) -> Line:
    """Rank by declared work alone. A cell without close competitors is done."""
    target, problem = arch.gpu(cell.gpu), _problem(cell.operator, cell.problem)
    serving = [
        implementation
        for implementation in operators.implementations(cell.operator)
        if implementation.refusal(problem, target.arch) is None
    ]
    line = Line(*cell.key, tuple(_standing(implementation, problem, target, tries) for implementation in serving))
    return replace(line, done=len(_near(line)) < 2)


def _problem(operator: str, name: str) -> Any:
    return operators.load(operator).problem(**PROBLEMS[operator][name])


def _standing(implementation: AnyImplementation, problem: Any, target: arch.GPU, tries: int) -> Standing:
    """Return the standing before compiling: the best of a sample, of the neighbours of its best, and the default."""
    space, cost = implementation.space(problem, target.arch), _declared(implementation, problem, target)
    default = implementation.default(problem, target.arch)
    drawn = space.draw(_DRAWN, np.random.default_rng(0))
    costs = {int(at): cost(space[int(at)]) for at in (*drawn, space.index(default))}
    best: list[int] = []
    while (leading := sorted(costs, key=costs.__getitem__)[:_CLIMBED]) != best:
        best = leading
        near = {int(at) for index in best for at in space.neighbours(index)}
        costs |= {at: cost(space[at]) for at in near - costs.keys()}
    order = sorted(costs, key=costs.__getitem__)
    worth = dict.fromkeys([space[order[0]], default, *(space[at] for at in order[1:tries])])
    configs = tuple(to_fields(candidate) for candidate in worth)[:tries]
    return Standing(implementation.name, costs[order[0]], configs, oracle=implementation.oracle)


def _declared(implementation: AnyImplementation, problem: Any, target: arch.GPU) -> Any:
    def cost(config: Any) -> float:
        plan, work = implementation.plan(problem, config), implementation.work(problem, config, target)
        return uncompiled(plan, work, target).cost

    return cost


def _near(line: Line) -> tuple[Standing, ...]:
    """Return the uncompiled implementations that may win: those near the best, or ahead of the best compiled one."""
    racing = [standing for standing in line.standings if not standing.oracle]
    limit = _NEAR * min((standing.declared for standing in racing), default=0.0)
    best = min((standing.compiled for standing in racing if standing.compiled), default=0.0)
    return tuple(standing for standing in racing if standing.compiled is None and standing.declared <= max(limit, best))


def _compile(lines: Sequence[Line], options: argparse.Namespace, ends: float) -> None:
    """Write each line again with compiled costs, the closest races first, until the time is over."""
    waiting = _open(lines)
    with Compiler(options.workers) as compiler:
        for at in range(0, len(waiting), _AT_ONCE):
            if time.monotonic() > ends:
                return
            batch = list(waiting[at : at + _AT_ONCE])
            while any(map(_near, batch)):
                batch = _compiled(batch, compiler)
            for line in batch:
                write(options.out, replace(line, done=True))
            print(f"{min(at + _AT_ONCE, len(waiting))} of {len(waiting)} races are decided", flush=True)


def _open(lines: Sequence[Line]) -> list[Line]:
    """Return the lines that compiling may decide, alternating between operators.

    Lines with an implementation that rarely wins clearly come first, then those with small gaps.
    """
    clear = Counter((line.operator, near[0].implementation) for line in lines if len(near := _near(line)) == 1)

    def order(line: Line) -> tuple[int, float]:
        return min(clear[line.operator, standing.implementation] for standing in _near(line)), _gap(line)

    waiting = sorted((line for line in lines if not line.done), key=order)
    turns = [[line for line in waiting if line.operator == name] for name in PROBLEMS]
    return [line for turn in zip_longest(*turns) for line in turn if line]


def _gap(line: Line) -> float:
    """Return the ratio of the second-best competitor to the best."""
    first, second, *_ = sorted(standing.declared for standing in _near(line))
    return second / first


def _compiled(lines: Sequence[Line], compiler: Compiler) -> list[Line]:
    """Return the lines with their competitive implementations compiled."""
    jobs = [(line, standing, config) for line in lines for standing in _near(line) for config in standing.configs]
    sources = ((render(_instance(*job)), Options(arch.gpu(job[0].gpu).arch.name)) for job in jobs)
    costs: dict[tuple[int, str], list[tuple[bool, float, Any]]] = {}
    for position, outcome in compiler.compile_many(sources):
        line, standing, config = jobs[position]
        flawed, cost = _cost(_instance(line, standing, config), arch.gpu(line.gpu), outcome)
        costs.setdefault((id(line), standing.implementation), []).append((flawed, cost, config))

    def filled(line: Line) -> Line:
        standings = (_with(standing, costs.get((id(line), standing.implementation))) for standing in line.standings)
        return replace(line, standings=tuple(standings))

    return [filled(line) for line in lines]


def _instance(line: Line, standing: Standing, config: Any) -> Instance:
    implementation = operators.implementation(line.operator, standing.implementation)
    problem = _problem(line.operator, line.problem)
    return Instance(operators.load(line.operator), implementation, problem, from_fields(implementation.config, config))


def _cost(instance: Instance, target: arch.GPU, outcome: Cubin | Failed) -> tuple[bool, float]:
    """Return (flawed, cost); the cost is infinite if the config does not compile or cannot be launched."""
    if isinstance(outcome, Failed):
        return True, float("inf")
    used = resources_of(outcome, instance.plan(), target)
    if used.ctas_per_sm == 0:
        return True, float("inf")
    cost = in_turn([prediction for _, prediction in predict_launches(instance, target, outcome)]).cost
    return bool(used.lint and used.lint.failures), cost


def _with(standing: Standing, costs: list[tuple[bool, float, Any]] | None) -> Standing:
    """Return the standing with the best compiled config; a flawed one only if all are flawed."""
    if costs is None:
        return standing
    flawed, cost, config = min(costs, key=lambda cost: cost[:2])
    return replace(standing, compiled=cost, config=config, flawed=flawed)


if __name__ == "__main__":
    raise SystemExit(main())
