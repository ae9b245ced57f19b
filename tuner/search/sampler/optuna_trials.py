"""The Optuna interface: a sampler over the valid set, and the in-memory study that it learns from."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Iterator, Mapping
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
    """An Optuna sampler that suggests configs of a space by their index, each at most once.

    Pruned or failed trials are configs that do not work; running ones are being tried. Ask a study with
    `study.ask(sampler.distributions)`.
    """

    def __init__(self, space: Space[Any], propose: Callable[[Study, FrozenTrial, Observations], int]) -> None:
        self.distributions = distributions(space)
        self._space, self._propose = space, propose
        self._index_of_trial: dict[int, int] = {}
        self._of: Study | None = None  # the study to which the following fields belong
        self._finished: list[tuple[int, int, float]] = []  # (number, index, value) of finished trials, by number
        self._open: list[int] = []  # numbers of the other trials
        self._seen = 0  # number of trials in both lists

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
        """Return the config at `index` as Optuna's parameters."""
        codes = self._space.codes_of(np.array(index)).tolist()
        return {name: values[code] for (name, values), code in zip(self._space.choices.items(), codes, strict=True)}

    def index(self, trial: FrozenTrial) -> int:
        """Return the index of a trial's config."""
        if trial.number not in self._index_of_trial:
            self._index_of_trial[trial.number] = self._space.index(self._space.config_type(**trial.params))
        return self._index_of_trial[trial.number]

    def observations(self, study: Study) -> Observations:
        """Return the results of the study's trials. Only trials that were unfinished at the last call are read
        again.
        """
        if self._of is not study:
            self._of, self._finished, self._open, self._seen = study, [], [], 0
        trials = study.get_trials(deepcopy=False)
        self._open += range(self._seen, len(trials))
        self._seen = len(trials)
        # While a trial is being asked for, it has no parameters except leading ones with a single choice.
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
    """Optuna's tree-structured Parzen estimator, with suggestions moved to the closest free config."""

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
    """Return the parameters of a space for Optuna: all categorical, because ordered sizes made its estimator worse."""
    return {name: CategoricalDistribution(list(values)) for name, values in space.choices.items()}


class Trials:
    """An in-memory study: suggested configs and their results."""

    def __init__(self, sampler: ValidSampler) -> None:
        self._sampler = sampler
        with _quiet():
            self._study = optuna.create_study(sampler=sampler)
        self._asked: dict[int, int] = {}  # index of a config → number of its trial

    def ask(self) -> int:
        """Return the index of the next config."""
        trial = self._study.ask(self._sampler.distributions)
        index = self._sampler.index(self._study.get_trials(deepcopy=False)[trial.number])
        self._asked[index] = trial.number
        return index

    def tell(self, index: int, value: float | None) -> None:
        """Record the value of a config, suggested or not; None if it failed."""
        # Pruned instead of failed: Optuna's estimator counts pruned trials as bad, and ignores failed ones.
        state = TrialState.PRUNED if value is None else TrialState.COMPLETE
        if index in self._asked:
            self._study.tell(self._asked.pop(index), value, state)
        else:
            params, distributions = self._sampler.params(index), self._sampler.distributions
            self._study.add_trial(create_trial(state=state, value=value, params=params, distributions=distributions))

    def observations(self) -> Observations:
        """Return all trials so far."""
        return self._sampler.observations(self._study)

    def importance(self) -> dict[str, float]:
        """Return how much each parameter decides whether a config is among the best (PED-ANOVA), normalised to 1.

        Empty before there are two different values.
        """
        if len(set(self.observations().values.tolist()) - {math.inf}) < 2:
            return {}
        with _quiet():
            return dict(get_param_importances(self._study, evaluator=PedAnovaImportanceEvaluator()))


def importance_of(space: Space[Any], results: Mapping[int, float | None]) -> dict[str, float]:
    """`Trials.importance` of results by the index of their config, without a sampler."""
    trials = Trials(ValidSampler(space, _nothing_to_propose))
    for index, value in results.items():
        trials.tell(index, value)
    return trials.importance()


def _nothing_to_propose(*_: Any) -> int:
    raise ValueError("these trials are read, not searched")


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence Optuna, which announces every study, and restore its global verbosity afterwards."""
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(verbosity)
