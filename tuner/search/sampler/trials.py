"""Optuna's side of a search: a sampler over the valid set, and the study in memory that it learns from."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.samplers import BaseSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState, create_trial

from tuner.search.sampler.observations import Observations
from tuner.search.sampler.starts import Starts
from tuner.search.sampler.strategies import nearest
from tuner.spec.space import Space


class ValidSampler(BaseSampler):
    """An Optuna sampler that suggests configs of a space, each at most once, by their index.

    Trials that were pruned or failed are configs that do not work; running ones count as being tried. Ask a study
    with `study.ask(sampler.distributions)`.
    """

    def __init__(self, space: Space[Any], propose: Callable[[Study, FrozenTrial, Observations], int]) -> None:
        self.distributions = distributions(space)
        self._space, self._propose = space, propose
        self._index_of_trial: dict[int, int] = {}
        self._of: Study | None = None  # the study of which the following is known
        self._finished: list[tuple[int, int, float]] = []  # (number, index, value) of its finished trials, by number
        self._open: list[int] = []  # numbers of the others
        self._seen = 0  # trials that are in either list

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:  # noqa: ARG002
        return self.distributions

    def sample_relative(
        self,
        study: Study,
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],  # noqa: ARG002
    ) -> dict[str, Any]:
        index = self._propose(study, trial, self.observations(study))
        self._index_of_trial[trial.number] = index
        return self.params(index)

    def sample_independent(self, *_: Any) -> Any:
        raise ValueError("a config is suggested as a whole: ask with study.ask(sampler.distributions)")

    def params(self, index: int) -> dict[str, Any]:
        """The config at `index` as Optuna's parameters."""
        codes = self._space.codes_of(np.array(index)).tolist()
        return {name: values[code] for (name, values), code in zip(self._space.choices.items(), codes, strict=True)}

    def index(self, trial: FrozenTrial) -> int:
        """The index of a trial's config."""
        if trial.number not in self._index_of_trial:
            self._index_of_trial[trial.number] = self._space.index(self._space.config_type(**trial.params))
        return self._index_of_trial[trial.number]

    def observations(self, study: Study) -> Observations:
        """What the study's trials say. Only trials that were unfinished at the last call are looked at again."""
        if self._of is not study:
            self._of, self._finished, self._open, self._seen = study, [], [], 0
        trials = study.get_trials(deepcopy=False)
        self._open += range(self._seen, len(trials))
        self._seen = len(trials)
        # A trial that is being asked for has no parameters yet, but those of a single choice that stand first.
        whole = [n for n in self._open if trials[n].params.keys() == self.distributions.keys()]
        done = {n for n in whole if trials[n].state.is_finished()}
        self._open = [n for n in self._open if n not in done]
        for n in sorted(done):
            value = trials[n].value if trials[n].state == TrialState.COMPLETE else None
            insort(self._finished, (n, self.index(trials[n]), np.inf if value is None else value))
        _, tried, values = zip(*self._finished, strict=True) if self._finished else ((), (), ())
        pending = [self.index(trials[n]) for n in whole if n not in done]
        return Observations(np.array(tried, int), np.array(values, float), np.array(pending, int))


class RepairedTPE:
    """Optuna's own tree-structured Parzen estimator, its suggestions moved to the nearest free config."""

    def __init__(self, space: Space[Any], rng: np.random.Generator, starts: Starts) -> None:
        self._space, self._rng, self._starts = space, rng, starts
        self._tpe = TPESampler(n_startup_trials=0, seed=int(rng.integers(1 << 31)))
        self._varying = {
            name: distribution for name, distribution in distributions(space).items() if not distribution.single()
        }

    def propose(self, study: Study, trial: FrozenTrial, observations: Observations) -> int:
        start = self._starts.next(observations)
        if start is not None:
            return start
        suggested = self._tpe.sample_relative(study, trial, self._varying)
        choices = self._space.choices.items()
        codes = [list(values).index(suggested.get(name, values[0])) for name, values in choices]
        return nearest(self._space, np.array(codes), observations, self._rng)


def distributions(space: Space[Any]) -> dict[str, BaseDistribution]:
    """The parameters of a space for Optuna: all categorical, because ordering sizes made its estimator worse."""
    return {name: CategoricalDistribution(list(values)) for name, values in space.choices.items()}


class Trials:
    """A study in memory: what was asked, and what came of it."""

    def __init__(self, sampler: ValidSampler) -> None:
        self._sampler = sampler
        with _quiet():
            self._study = optuna.create_study(sampler=sampler)
        self._asked: dict[int, int] = {}  # index of a config → number of its trial

    def ask(self) -> int:
        """The index of the next config."""
        trial = self._study.ask(self._sampler.distributions)
        index = self._sampler.index(self._study.get_trials(deepcopy=False)[trial.number])
        self._asked[index] = trial.number
        return index

    def tell(self, index: int, value: float | None) -> None:
        """The value of a config, asked for or not; None when it does not work."""
        # Pruned, not failed: Optuna's estimator takes pruned trials for bad ones, and forgets failed ones.
        state = TrialState.PRUNED if value is None else TrialState.COMPLETE
        if index in self._asked:
            self._study.tell(self._asked.pop(index), value, state)
        else:
            params, distributions = self._sampler.params(index), self._sampler.distributions
            self._study.add_trial(create_trial(state=state, value=value, params=params, distributions=distributions))

    def observations(self) -> Observations:
        """All trials so far."""
        return self._sampler.observations(self._study)

    def importance(self) -> dict[str, float]:
        """PED-ANOVA: how much each parameter decides whether a config is among the best; shares that add up to 1.

        Empty before there are two different values.
        """
        if len(set(self.observations().values.tolist()) - {math.inf}) < 2:
            return {}
        with _quiet():
            return dict(get_param_importances(self._study, evaluator=PedAnovaImportanceEvaluator()))


@contextmanager
def _quiet() -> Iterator[None]:
    """Optuna announces every study; its verbosity is global and is put back."""
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(verbosity)
