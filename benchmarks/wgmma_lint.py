"""How many configs of an attention's wgmma compile clean: the default and random ones, for every head_dim.

python benchmarks/wgmma_lint.py flash_attention --each 12
"""

import argparse
import random
from collections import Counter

from tuner import operators
from tuner.arch import ARCHES
from tuner.base.result import Failed
from tuner.compiler.lint import lint
from tuner.compiler.nvrtc import Compiler
from tuner.compiler.render import render
from tuner.compiler.toolkit import Options
from tuner.spec.instance import Instance

HEAD_DIMS = (16, 40, 64, 72, 80, 96, 112, 128, 160, 192, 256)
STATICS = {"flash_attention": {"causal": True}, "streaming_attention": {}, "paged_attention": {"seq_q": 512}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operator", choices=STATICS, nargs="?", default="flash_attention")
    parser.add_argument("--each", type=int, default=12, help="random configs a head_dim, besides the default")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    print("head_dim  default  overlap 0 clean/tried  overlap 1, 2 clean/tried  flaws of overlap 1, 2")
    with Compiler() as compiler:
        for D in HEAD_DIMS:
            print(row(compiler, given.operator, D, given.each, random.Random(f"{given.seed} {D}")), flush=True)


def row(compiler: Compiler, name: str, D: int, each: int, rng: random.Random) -> str:
    operator, wgmma = operators.load(name), operators.implementation(name, "wgmma")
    problem = operator.problem(head_dim=D, kv_heads=4, **STATICS[name])
    space = wgmma.space(problem, ARCHES["sm_90a"])
    configs = [wgmma.default(problem, ARCHES["sm_90a"])]
    configs += [space[index] for index in rng.sample(range(len(space)), min(each, len(space)))]
    jobs = [(render(Instance(operator, wgmma, problem, config)), Options("sm_90a")) for config in configs]
    flaws: dict[int, tuple[str, ...]] = {}
    for position, outcome in compiler.compile_many(jobs):
        assert not isinstance(outcome, Failed), outcome.log
        flaws[position] = lint(outcome, f"{name}_wgmma").failures
    alone = [flaws[i] for i, config in enumerate(configs) if config.overlap == 0]
    over = [flaws[i] for i, config in enumerate(configs) if config.overlap]
    kinds = Counter(kind(each) for found in over for each in found)
    spelled = ", ".join(f"{count} × {name}" for name, count in kinds.most_common())
    return f"{D:8d}  {'flawed' if flaws[0] else 'clean':7s}  {clean(alone):>21s}  {clean(over):>24s}  {spelled}"


def clean(found: list[tuple[str, ...]]) -> str:
    return f"{sum(not each for each in found)}/{len(found)}"


def kind(flaw: str) -> str:
    return next(name for name in ("spilled", "C75", "exponentials", "branch") if name in flaw)


if __name__ == "__main__":
    main()
