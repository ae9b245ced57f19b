"""How many configs of flash_attention_backward/wgmma compile clean: the default and random ones, for every head_dim.

python benchmarks/wgmma_backward_lint.py --each 12
python benchmarks/wgmma_backward_lint.py --limits     the largest tiles that the registers hold, and one step beyond
python benchmarks/wgmma_backward_lint.py --values     of values of another width than keys
"""

import argparse
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from wgmma_lint import HEADINGS, Asked, drawn, flaws, line

from tuner import operators
from tuner.compiler.nvrtc import Compiler
from tuner.operators.flash_attention_backward.problem import Problem
from tuner.operators.flash_attention_backward.wgmma.config import (
    Config,
    kv_register_estimate,
    q_register_estimate,
    registers,
)
from tuner.spec.instance import Instance

ALIKE = tuple((D, D) for D in (16, 40, 64, 72, 80, 96, 112, 128, 160, 192, 256))
OF_VALUES = ((192, 128), (128, 64), (64, 128), (72, 40), (40, 72), (256, 64), (64, 256))  # head_dim, head_dim_v
Widths = Sequence[tuple[int, int]]
OPERATOR = operators.load("flash_attention_backward")
WGMMA = operators.implementation("flash_attention_backward", "wgmma")
LEAST = Config(16, 2, 2, False, False, 16, 2, 2, 16)
DKV, DQ = "flash_attention_backward_dkv", "flash_attention_backward_dq"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=12, help="random configs a head_dim, besides the default")
    parser.add_argument("--limits", action="store_true", help="only the sizes around the register rules")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--softcap", action="store_true", help="of kernels that cap scores")
    parser.add_argument("--packed", action="store_true", help="of kernels for packed sequences")
    parser.add_argument("--values", action="store_true", help="of values of another width than keys")
    given = parser.parse_args()
    widths = OF_VALUES if given.values else ALIKE
    of = Problem(causal=True, use_softcap=given.softcap, use_cu_seqlens=given.packed, batch=1)
    with Compiler() as compiler:
        if given.limits:
            limits(compiler, widths, of)
        else:
            sample(compiler, widths, given.each, given.seed, of)


def sample(compiler: Compiler, widths: Widths, each: int, seed: int, of: Problem) -> None:
    print(HEADINGS)
    for D, DV in widths:
        name = f"{D}" if D == DV else f"{D}/{DV}"
        problem, rng = replace(of, head_dim=D, head_dim_v=DV), random.Random(f"{seed} {name}")
        asked = [Asked(instance, (DKV, DQ)) for instance in drawn(OPERATOR, WGMMA, problem, each, rng)]
        print(line(name, flaws(compiler, asked)), flush=True)


def limits(compiler: Compiler, widths: Widths, of: Problem) -> None:
    problems = [replace(of, head_dim=D, head_dim_v=DV) for D, DV in widths]
    tried = [each for problem in problems for each in (*edges_of_keys(problem), *edges_of_queries(problem))]
    for name, some in (("that fit", tried[::2]), ("a step of 16 rows beyond", tried[1::2])):
        print(f"{sum(not each for each in flaws(compiler, some))} of {len(some)} tiles {name} are clean", flush=True)


def edges_of_keys(problem: Problem) -> Iterator[Asked]:
    makes = [replace(LEAST, kv_warpgroups=w, kv_chained=chained) for w in (1, 2, 3) for chained in (False, True)]
    for make in (*makes, replace(LEAST, kv_split=True)):
        estimate = partial(kv_register_estimate, problem.head_dim, problem.head_dim_v, capped=problem.use_softcap)
        widest = max(problem.head_dim, problem.head_dim_v)
        yield from edge(problem, make, "BM_kv", estimate, make.kv_warpgroups, DKV, widest)


def edges_of_queries(problem: Problem) -> Iterator[Asked]:
    for warpgroups in (1, 2, 3):
        estimate, make = partial(q_register_estimate, problem.head_dim), replace(LEAST, q_warpgroups=warpgroups)
        yield from edge(problem, make, "BN_q", estimate, warpgroups, DQ, problem.head_dim)


def edge(
    problem: Problem,
    make: Config,
    name: str,
    estimate: Callable[[Any], Any],
    warpgroups: int,
    entry: str,
    widest: int,
) -> Iterator[Asked]:
    """The largest tile up to 192 that the registers hold, and the next, where a wgmma may be as wide as `widest`."""
    if widest > 192 and warpgroups != 2:
        return
    tiles = [replace(make, **{name: rows}) for rows in range(16, 209, 16)]
    fit = sum(bool(estimate(each) <= registers(warpgroups, packed=problem.use_cu_seqlens)) for each in tiles)
    if 0 < fit < len(tiles):
        kept = (Instance(OPERATOR, WGMMA, problem, each) for each in tiles[fit - 1 : fit + 1])
        yield from (Asked(instance, (entry,)) for instance in kept)


if __name__ == "__main__":
    main()
