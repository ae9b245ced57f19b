"""How many configs of an attention's wgmma compile clean: the default and random ones, for every head_dim.

python benchmarks/wgmma_lint.py flash_attention --each 12
"""

import argparse
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from tuner import operators
from tuner.arch import ARCHES
from tuner.compiler.lint import lint
from tuner.compiler.nvrtc import Compiler
from tuner.compiler.render import render
from tuner.compiler.toolkit import Options
from tuner.results.attempt import Failed
from tuner.spec.instance import Instance

HEAD_DIMS = (16, 40, 64, 72, 80, 96, 112, 128, 160, 192, 256)
HEADINGS = "head_dim  default  clean/tried  flaws"  # of `line`
STATICS = {"flash_attention": {"causal": True}, "streaming_attention": {}, "paged_attention": {"seq_q": 512}}


class Asked(NamedTuple):
    """An instance whose kernels `entries` are to be clean."""

    instance: Instance
    entries: tuple[str, ...]


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
    tried = drawn(operator, wgmma, operator.problem(head_dim=D, kv_heads=4, **STATICS[name]), each, rng)
    found = flaws(compiler, [Asked(instance, (f"{name}_wgmma",)) for instance in tried])
    alone = [some for instance, some in zip(tried, found, strict=True) if instance.config.overlap == 0]
    over = [some for instance, some in zip(tried, found, strict=True) if instance.config.overlap]
    kinds = Counter(kind(each) for some in over for each in some)
    spelled = ", ".join(f"{count} × {name}" for name, count in kinds.most_common())
    return f"{D:8d}  {'flawed' if found[0] else 'clean':7s}  {clean(alone):>21s}  {clean(over):>24s}  {spelled}"


def drawn(operator: Any, kernel: Any, problem: Any, each: int, rng: random.Random) -> list[Instance]:
    """The default config and so many random ones."""
    arch = ARCHES["sm_90a"]
    space = kernel.space(problem, arch)
    configs = [space[index] for index in rng.sample(range(len(space)), min(each, len(space)))]
    return [Instance(operator, kernel, problem, config) for config in (kernel.default(problem, arch), *configs)]


def flaws(compiler: Compiler, asked: Sequence[Asked]) -> list[tuple[str, ...]]:
    jobs = [(render(each.instance), Options("sm_90a")) for each in asked]
    found: dict[int, tuple[str, ...]] = {}
    for position, outcome in compiler.compile_many(jobs):
        assert not isinstance(outcome, Failed), outcome.log
        each = [lint(outcome, entry).failures for entry in asked[position].entries]
        found[position] = tuple(flaw for some in each for flaw in some)
    return [found[position] for position in range(len(asked))]


def clean(found: Sequence[tuple[str, ...]]) -> str:
    return f"{sum(not each for each in found)}/{len(found)}"


def line(name: object, found: Sequence[tuple[str, ...]]) -> str:
    """Of a table: of the default, which comes first, of all, and every flaw once."""
    spelled = "; ".join(sorted({one for some in found for one in some}))
    return f"{name:>8}  {'flawed' if found[0] else 'clean':7s}  {clean(found):>11s}  {spelled}"


def kind(flaw: str) -> str:
    return next(name for name in ("spilled", "C75", "exponentials", "branch") if name in flaw)


if __name__ == "__main__":
    main()
