"""Measure the number of tries that a search needs when predictions have known errors.

    python benchmarks/search_draws.py [--operators kda,mla_decode] [--cases fair,wrong] [--seeds 4] [--budget 160]

Nothing is compiled or measured. The time of a config is its prediction before compiling, times random effects of its
implementation, of each value, of each pair of adjacent parameters and of the config itself; a try observes it with
noise of 0.5 %. The optimum of every draw is therefore known, and the whole search runs as on a device: tries are
distributed over the implementations, samplers propose configs, the last tries sweep. Cases: the prediction has small
errors ("good"), typical errors ("fair"), or is useless ("wrong": assigned to other configs); "history" is fair, with an
earlier search on a GPU that shares four fifths of the effects. "of one" is the share of tries of the implementation
with the most. The results describe searches on such draws, and no GPU.
"""

import argparse
import math
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from tuner import operators
from tuner.arch import GPU, gpu
from tuner.evaluate.evaluator import Finalists, RaceOutcome
from tuner.evaluate.predict.cost import uncompiled
from tuner.results.attempt import Attempt, Evidence, Identity, Measurement, Resources
from tuner.results.verdict import OutputError, Verdict
from tuner.search import study
from tuner.search.request import serving_implementations
from tuner.spec.instance import Instance
from tuner.spec.problem import canonical, to_fields
from tuner.store.sql import Store

OPERATORS = ("flash_attention", "kda", "linear_attention", "mla_decode", "streaming_attention")
TRIES = (16, 32, 48, 64, 96, 128)
HERE, BEFORE = gpu("H200"), gpu("H100")
# Standard deviations, in logarithms, of the effects of an implementation, a value, a pair of values and a config.
FAIR = (0.15, 0.05, 0.025, 0.02)
CASES = {"good": (0.05, 0.02, 0.01, 0.015), "fair": FAIR, "wrong": FAIR, "history": FAIR}
_ALIKE = 0.8  # fraction of the effects that another GPU shares
_NOISE = 0.005
# Configs of a space that are enumerated for its optimum; anything better in a larger space counts as equal.
_LISTED = 20_000
_RIGHT = Verdict((OutputError("drawn", 0.0, 0.0, 1.0, 1.0),), (), ("drawn",))


@cache
def predicted(name: str) -> dict[Instance, float]:
    """Return every config of an operator's default problem on the GPU, with its prediction before compiling."""
    operator = operators.load(name)
    costs = {}
    for implementation in serving_implementations(operator, operator.problem(), HERE, None):
        space = implementation.space(operator.problem(), HERE.arch)
        if len(space) <= _LISTED:
            default = Instance.default(operator, implementation, operator.problem(), HERE.arch)
            costs.update({one: cost_of(one) for one in map(default.having, space)})
    return costs


@cache
def cost_of(instance: Instance) -> float:
    return uncompiled(instance.plan(), instance.work(HERE), HERE).cost


@dataclass
class Drawn:
    """A draw of the configs' times on one of two GPUs, as an Evaluator. `seen` lists the tries in order."""

    name: str
    case: str
    seed: int
    target: GPU = HERE
    seen: list[tuple[str, float]] = field(default_factory=list)

    evidence = Evidence.MEASURED
    policy = "drawn"
    device = ""
    drift = 0.0

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng((self.seed, self.target is HERE))
        self._effects: dict[object, float] = {}
        self._priors: dict[Instance, float] = {}
        if self.case == "wrong":
            dealt = np.random.default_rng(self.seed).permutation(list(predicted(self.name).values()))
            self._priors = dict(zip(predicted(self.name), dealt.tolist(), strict=True))

    def identity(self, instance: Instance) -> Identity:
        text, problem = canonical(instance.config), canonical(instance.problem)
        return Identity(self.name, instance.implementation.name, problem, self.target.name, text, "", "", self.policy)

    def prior(self, instance: Instance) -> float:
        return self._priors.get(instance) or cost_of(instance)

    def compiled_costs(self, instances: Sequence[Instance]) -> list[float]:
        """Return the predictions before compiling, since nothing is compiled here."""
        return [self.prior(instance) for instance in instances]

    def is_current(self, attempt: Attempt) -> bool:  # noqa: ARG002  # part of the protocol
        return True

    def settle(self, finalists: Finalists, seed: int) -> RaceOutcome | None:  # part of the protocol
        """Return no race: a draw is searched by `study.search` alone."""

    def resume(self, best: Instance) -> None:
        """Do nothing: a draw does not change."""

    def try_all(self, batch: Sequence[Instance]) -> Iterator[tuple[int, Attempt]]:
        for position, instance in enumerate(batch):
            identity, config, time_us = self.identity(instance), to_fields(instance.config), self.time_us(instance)
            self.seen.append((identity.implementation, time_us))
            noisy = time_us * math.exp(_NOISE * self._rng.standard_normal())
            used = Resources(128, 0, 0, 128, 1, "registers", identity.implementation + identity.source)
            measured = Measurement(noisy, noisy * (1 - _NOISE), noisy * (1 + _NOISE), 12)
            yield position, Attempt(identity, config, None, used, None, measured)

    def check(self, batch: Sequence[Instance]) -> Iterator[tuple[int, Verdict]]:
        return ((position, _RIGHT) for position in range(len(batch)))

    def time_us(self, instance: Instance) -> float:
        by_implementation, by_value, by_pair, by_config = CASES[self.case]
        name, config = instance.implementation.name, to_fields(instance.config)
        values = list(config.items())
        effect = by_implementation * self._effect(name) + by_config * self._effect(name, *values)
        effect += by_value * sum(self._effect(name, *value) for value in values)
        effect += by_pair * sum(self._effect(name, *pair) for pair in pairwise(values))
        return cost_of(instance) * math.exp(effect)

    def optimum(self) -> float:
        """The optimum among configs predicted within 2.5 times of the best; effects do not compensate for more."""
        near = 2.5 * min(predicted(self.name).values())
        return min(self.time_us(instance) for instance, cost in predicted(self.name).items() if cost < near)

    def _effect(self, *of: object) -> float:
        """Return a standard normal number that depends only on the seed, the GPU and the arguments."""
        if of not in self._effects:
            common, of_target = (_normal(self.seed, where, of) for where in ("", self.target.name))
            self._effects[of] = _ALIKE * common + math.sqrt(1 - _ALIKE**2) * of_target
        return self._effects[of]


def _normal(*of: object) -> float:
    return float(np.random.default_rng(crc32(repr(of).encode())).standard_normal())


@dataclass(frozen=True)
class Run:
    """One search: the best value after each try, as a fraction of the optimum, and the distribution of tries."""

    found: Any  # [budget]
    tried: int
    dealt: Counter[str]

    def tries_to(self, share: float) -> float:
        reached = self.found >= share
        return float(reached.argmax() + 1) if reached.any() else math.inf


def search(name: str, case: str, seed: int, budget: int) -> Run:
    operator, drawn = operators.load(name), Drawn(name, case, seed)
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "tuner.db") as store:
        for search in [Drawn(name, case, seed, BEFORE)] * (case == "history") + [drawn]:
            study.search(
                study.SearchRequest(operator, operator.problem(), search.target, budget=budget, seed=seed),
                store,
                search,
            )
    best = np.minimum.accumulate([time_us for _, time_us in drawn.seen])
    share = np.pad(drawn.optimum() / best, (0, budget - len(best)), mode="edge")
    return Run(np.minimum(share, 1.0), len(best), Counter(name for name, _ in drawn.seen))


def line(about: str, runs: Sequence[Run]) -> str:
    tries = [k for k in TRIES if k <= len(runs[0].found)]
    shares = "".join(f"{np.mean([run.found[k - 1] for run in runs]):>8.3f}" for k in tries)
    to = "".join(f"{np.median([run.tries_to(share) for run in runs]):>9.0f}" for share in (0.95, 0.99))
    best = np.mean([max(run.dealt.values()) / run.tried for run in runs])
    return f"{about:32}{shares}{to}{np.mean([run.tried for run in runs]):>8.0f}{best:>9.0%}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operators", type=lambda text: text.split(","), default=OPERATORS)
    parser.add_argument("--cases", type=lambda text: text.split(","), default=list(CASES))
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--budget", type=int, default=160)
    options = parser.parse_args()
    tries = "".join(f"{f'@{k}':>8}" for k in TRIES if k <= options.budget)
    print(f"{'':32}{tries}{'to 95 %':>9}{'to 99 %':>9}{'tried':>8}{'of one':>9}")
    for case in options.cases:
        every: list[Run] = []
        for name in options.operators:
            runs = [search(name, case, seed, options.budget) for seed in range(options.seeds)]
            print(line(f"{case} {name}", runs), flush=True)
            every += runs
        print(line(f"{case}, all", every), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
