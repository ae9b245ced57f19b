"""flash_attention_backward/wgmma_once: how long blocks wait for their turns, what compiles clean, what it costs.

A simulation: a tile is a step, a block takes one more to begin, and a block may add to a tile `--turn` steps after the
block before it. Printed is when the last SM is done, over the sum of all steps spread evenly.

python benchmarks/wgmma_once.py
python benchmarks/wgmma_once.py --lint --each 3     the default and random configs, for every head_dim
python benchmarks/wgmma_once.py --costs             predicted costs of defaults on an H200, over those of wgmma
"""

import argparse
import random
from collections import defaultdict
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import product
from typing import NamedTuple

from wgmma_lint import HEADINGS, Asked, drawn, flaws, line

from tuner import operators
from tuner.arch import ARCHES, gpu
from tuner.compiler.nvrtc import Compiler
from tuner.compiler.render import render
from tuner.compiler.toolkit import Options
from tuner.evaluate.predict.compiled import predict_launches
from tuner.evaluate.predict.cost import in_turn
from tuner.operators.flash_attention_backward.problem import Problem
from tuner.operators.flash_attention_backward.wgmma_once.work import key_steps, sections
from tuner.results.attempt import Failed
from tuner.spec.instance import Instance

OPERATOR = operators.load("flash_attention_backward")
ONCE = operators.implementation("flash_attention_backward", "wgmma_once")
HOPPER, H200 = ARCHES["sm_90a"], gpu("H200")
HEAD_DIMS = range(16, 129, 8)
SIZES = ((16, 64), (32, 32), (64, 16), (64, 64), (128, 16))  # blocks of keys of a head, heads: T = 2048 to 16384
BEGIN = 1.0  # steps


class Order(NamedTuple):
    """How blocks and tiles follow one another: with sections of heads or without; keys and tiles the other way."""

    name: str
    sections: bool = True
    last_keys_first: bool = False


ORDERS = (
    Order("as it is"),
    Order("head by head", sections=False),
    Order("last keys, first tiles", last_keys_first=True),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lint", action="store_true", help="compile configs instead")
    parser.add_argument("--costs", action="store_true", help="predict costs instead")
    parser.add_argument("--each", type=int, default=3, help="random configs a head_dim, besides the default")
    parser.add_argument("--packed", action="store_true", help="configs for packed sequences")
    parser.add_argument("--sms", type=int, default=132)
    parser.add_argument("--turn", type=float, default=0.5, help="steps from one block's sums to the next one's")
    given = parser.parse_args()
    if given.lint:
        compile_all(given.each, packed=given.packed)
    elif given.costs:
        predict_all()
    else:
        simulate_all(given.sms, given.turn)


def simulate_all(sms: int, turn: float) -> None:
    print(f"blocks  heads  causal{''.join(f'{order.name:>24s}' for order in ORDERS)}  waits, as it is")
    for (blocks, heads), causal in product(SIZES, (False, True)):
        problem = Problem(head_dim=128, head_dim_v=128, causal=causal, batch=1, heads=heads, seq_q=128 * blocks)
        found = [simulated(problem, order, sms, turn) for order in ORDERS]
        ends = "".join(f"{end:24.3f}" for end, _ in found)
        print(f"{blocks:6d}{heads:7d}{causal!s:>8s}{ends}{100 * found[0][1]:15.1f} %", flush=True)


def simulated(problem: Problem, order: Order, sms: int, turn: float) -> tuple[float, float]:
    """(the last end over that of steps spread evenly, steps that blocks wait over steps)."""
    steps = key_steps(problem).tolist()
    tiles, added = max(steps), defaultdict[tuple[int, int], float](float)
    free, waited = [0.0] * sms, 0.0
    heapify(free)
    for head, block in begun(problem, len(steps), order):
        first, last = tiles - steps[block], tiles - 1
        done = BEGIN + heappop(free)
        for tile in range(first, last + 1) if order.last_keys_first else range(last, first - 1, -1):
            done, ready = done + 1, added[head, tile]
            waited += max(0.0, ready - done)
            done = max(done, ready)
            added[head, tile] = done + turn
        heappush(free, done)
    whole = problem.heads * (sum(steps) + BEGIN * len(steps))
    return max(free) * sms / whole, waited / whole


def begun(problem: Problem, blocks: int, order: Order) -> Iterator[tuple[int, int]]:
    """(head, block of keys), one after another."""
    first = 0
    for width in sections(problem) if order.sections else [1] * problem.heads:
        for block in range(blocks)[:: -1 if order.last_keys_first else 1]:
            yield from ((head, block) for head in range(first, first + width))
        first += width


def compile_all(each: int, *, packed: bool) -> None:
    print(HEADINGS)
    clean = tried = 0
    with Compiler() as compiler:
        for D in HEAD_DIMS:
            problem = Problem(head_dim=D, head_dim_v=D, causal=True, use_cu_seqlens=packed, batch=1)
            if ONCE.refusal(problem, HOPPER):
                continue
            instances = drawn(OPERATOR, ONCE, problem, each, random.Random(D))
            found = flaws(compiler, [Asked(instance, ("flash_attention_backward_once",)) for instance in instances])
            clean, tried = clean + sum(not some for some in found), tried + len(found)
            print(line(D, found), flush=True)
    print(f"{clean} of {tried} are clean")


def predict_all() -> None:
    print("head_dim   T = S  heads  causal  wgmma_once  mma_sync")
    with Compiler() as compiler:
        for D, (T, heads), causal in product((64, 72, 80, 96, 128), ((2048, 64), (8192, 16)), (False, True)):
            problem = Problem(head_dim=D, head_dim_v=D, causal=causal, batch=1, heads=heads, seq_q=T)
            once, mma_sync, wgmma = (cost(compiler, problem, name) for name in ("wgmma_once", "mma_sync", "wgmma"))
            print(f"{D:8d}{T:8d}{heads:7d}{causal!s:>8s}{once / wgmma:12.2f}{mma_sync / wgmma:10.2f}", flush=True)


def cost(compiler: Compiler, problem: Problem, name: str) -> float:
    """Of an implementation's default."""
    instance = Instance.default(OPERATOR, operators.implementation(OPERATOR.name, name), problem, HOPPER)
    _, cubin = next(iter(compiler.compile_many([(render(instance), Options(HOPPER.name))])))
    assert not isinstance(cubin, Failed), cubin.log
    return in_turn([prediction for _, prediction in predict_launches(instance, H200, cubin)]).cost


if __name__ == "__main__":
    main()
