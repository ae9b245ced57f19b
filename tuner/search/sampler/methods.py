"""The methods by name: a strategy, its starts, and the trials that it learns from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tuner.search.sampler import OPTUNA
from tuner.search.sampler.expected_improvement import Gaussian
from tuner.search.sampler.observations import Prior
from tuner.search.sampler.optuna_trials import RepairedTPE, Trials, ValidSampler
from tuner.search.sampler.starts import Starts
from tuner.search.sampler.strategies import Categorical, Exhaustive, Genetic, Random, Strategy
from tuner.spec.space import Space


def build(
    space: Space[Any], method: str, seed: int, starts: Sequence[int], prior: Prior | None
) -> tuple[Trials, Strategy | None, Starts]:
    """Return empty trials over `space`, the strategy (None: Optuna's own), and its starts."""
    rng = np.random.default_rng(seed)
    design = Starts(space, rng, tuple(dict.fromkeys(starts)), prior)
    if method == "tpe":
        return Trials(ValidSampler(space, RepairedTPE(space, rng, design).propose)), None, design
    if method in OPTUNA or ":" in method:
        from tuner.search.sampler.optuna_samplers import Plugged, create

        plugged = Plugged(space, rng, design, create(method, seed))
        return Trials(ValidSampler(space, lambda _study, _trial, known: plugged.propose(known))), plugged, design
    strategies: dict[str, Callable[[], Strategy]] = {
        "gp": lambda: Gaussian(space, rng, design),
        "categorical": lambda: Categorical(space, rng, design),
        "genetic": lambda: Genetic(space, rng, design),
        "random": lambda: Random(space, rng, design, starts),
        "exhaustive": lambda: Exhaustive(space, starts, prior),
    }
    strategy = strategies[method]()
    trials = Trials(ValidSampler(space, lambda _study, _trial, observations: strategy.propose(observations)))
    return trials, strategy, design
