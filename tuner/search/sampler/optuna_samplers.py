"""Optuna's samplers, and third-party samplers for Optuna, on the valid set of a space."""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.trial import Trial, TrialState, create_trial

from tuner.errors import UsageError
from tuner.search.sampler.observations import Observations
from tuner.search.sampler.starts import Starts
from tuner.search.sampler.strategies import nearest
from tuner.spec.space import Space, Value

_POPULATION = 12  # of NSGA-II: with Optuna's default of 50, a short search would be entirely random
_BUILT_IN: Mapping[str, Callable[[int], BaseSampler]] = {
    "cmaes": lambda seed: optuna.samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False),
    "nsgaii": lambda seed: optuna.samplers.NSGAIISampler(seed=seed, population_size=_POPULATION),
    "optuna-gp": lambda seed: optuna.samplers.GPSampler(seed=seed, warn_independent_sampling=False),
}
_NEEDS = {"cmaes": "cmaes", "optuna-gp": "torch"}  # modules that Optuna imports only at the first suggestion


def create(name: str, seed: int) -> BaseSampler:
    """Return the Optuna sampler with a name: `cmaes`, `nsgaii`, `optuna-gp`, or `module:Class` of any other.

    A class receives `seed` if its constructor has such a parameter. Raises UsageError if there is no such sampler, or
    if a package that it needs is not installed.
    """
    make = _BUILT_IN.get(name)
    try:
        sampler = make(seed) if make else _imported(name, seed)
        if name in _NEEDS:
            importlib.import_module(_NEEDS[name])
    except ImportError as error:
        remedy = "pip install '.[samplers]'" if make else "install it, or put its folder on PYTHONPATH"
        raise UsageError(f"sampler {name!r}: {error}: {remedy}") from error
    return sampler


def _imported(name: str, seed: int) -> BaseSampler:
    module, _, attribute = name.partition(":")
    kind = getattr(importlib.import_module(module), attribute, None)
    if not (isinstance(kind, type) and issubclass(kind, BaseSampler)):
        raise UsageError(f"sampler {name!r}: {module} has no class {attribute} that derives from optuna's BaseSampler")
    try:
        return kind(**({"seed": seed} if "seed" in inspect.signature(kind).parameters else {}))
    except TypeError as error:
        raise UsageError(f"sampler {name!r}: {error}; it must be constructible from a seed alone") from error


class Plugged:
    """A strategy that asks an Optuna sampler, and moves what it suggests to the nearest free config.

    The sampler sees a study of its own, in which sizes are integers by rank and everything else is categorical. What
    was evaluated in the place of a suggestion stands there with its own parameters, so that no value belongs to a
    config that was never run; the sampler's attributes of the suggestion go with it.
    """

    expected_improvement: float | None = None

    def __init__(self, space: Space[Any], rng: np.random.Generator, starts: Starts, sampler: BaseSampler) -> None:
        self._space, self._rng, self._starts = space, rng, starts
        self._distributions = {name: _distribution(values) for name, values in space.choices.items()}
        self._orders = {name: sorted(values) for name, values in space.choices.items() if _is_size(values)}
        with _silent():
            self._study = optuna.create_study(sampler=sampler)
        self._suggested: dict[int, Trial] = {}  # by the index of the config that represents it
        self._told = 0  # results of the search that were added to the study

    def propose(self, observations: Observations) -> int:
        self._tell(observations)
        start = self._starts.next(observations)
        if start is not None:
            return start
        with _silent():
            trial = self._study.ask(self._distributions)
        index = nearest(self._space, self._codes(trial.params), observations, self._rng)
        self._suggested[index] = trial
        return index

    def _tell(self, observations: Observations) -> None:
        """Return the results since the last call."""
        results = zip(
            observations.tried[self._told :].tolist(), observations.values[self._told :].tolist(), strict=True
        )
        self._told = len(observations.tried)
        for index, value in results:
            self._add(index, value)

    def _add(self, index: int, value: float) -> None:
        works = np.isfinite(value)
        state = TrialState.COMPLETE if works else TrialState.PRUNED
        params, trial = self._params(index), self._suggested.pop(index, None)
        if trial is not None and trial.params == params:
            self._study.tell(trial, value if works else None, state)
            return
        attributes = {} if trial is None else dict(self._study.get_trials(deepcopy=False)[trial.number].system_attrs)
        if trial is not None:
            self._study.tell(trial, state=TrialState.FAIL)
        self._study.add_trial(
            create_trial(
                state=state,
                value=value if works else None,
                params=params,
                distributions=self._distributions,
                system_attrs=attributes,
            )
        )

    def _params(self, index: int) -> dict[str, Any]:
        """Return the config at `index` as parameters of the study."""
        codes = self._space.codes_of(np.array(index)).tolist()
        values = {name: choices[code] for (name, choices), code in zip(self._space.choices.items(), codes, strict=True)}
        return {n: self._orders[n].index(value) if n in self._orders else value for n, value in values.items()}

    def _codes(self, params: Mapping[str, Any]) -> np.ndarray[Any, Any]:
        choices = self._space.choices
        values = {n: self._orders[n][params[n]] if n in self._orders else params[n] for n in choices}
        return np.array([list(choices[name]).index(value) for name, value in values.items()])


def _is_size(values: Sequence[Value]) -> bool:
    return len(values) > 1 and all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _distribution(values: Sequence[Value]) -> BaseDistribution:
    return IntDistribution(0, len(values) - 1) if _is_size(values) else CategoricalDistribution(list(values))


@contextmanager
def _silent() -> Iterator[None]:
    """Suppress Optuna's messages about new studies and experimental features."""
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(verbosity)
