"""The implementations of a search as arms of a bandit: one sampler each; tries go to arms that can still win."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from tuner.search.history import TransferResults
from tuner.search.sampler import Sampler, importance, predict
from tuner.search.sampler.observations import Observations, Prior, combine_priors
from tuner.spec.instance import Instance
from tuner.spec.operator import Implementation
from tuner.spec.space import Array, Space

# The best of n tries is seldom worse than 1 + _GAIN / n times the optimum. On recorded spaces, 25, 50 and 100 tries
# then reach .76, .86 and .93 of the optimum; nine out of ten runs reach .81, .91 and .94.
_GAIN = 8
_ENOUGH = 8  # tries after which an implementation without any success is dropped
# Configs of a space that are ranked before the search, per try of the search. Ranking one takes under a millisecond.
_RANKED_A_TRY, _LEAST_RANKED, _MOST_RANKED = 128, 512, 4096
_SAMPLED = 64  # configs compiled before the search if there are no predictions without compiling
_CLIMBED = 16  # number of best configs in a large space whose neighbours are also ranked
_TRANSFERRED_STARTS = 6  # best configs of earlier results elsewhere that are tried again


@dataclass(frozen=True)
class Method:
    """How each arm is searched: a method of sampler.METHODS, its seed, and its number of tries."""

    name: str
    seed: int
    tries: int


@dataclass
class Arm:
    """One implementation in a search.

    The sampler and the priors, which order the configs before the search, are created when they are first used: ranking
    a space takes seconds, and a search with no tries left needs neither.
    """

    default: Instance
    space: Space[Any]
    make_sampler: Callable[[Sequence[Prior]], Sampler] = field(repr=False)
    make_priors: Callable[[], tuple[Prior, ...]] = field(repr=False, default=tuple)
    expected: float = math.nan  # predicted cost of its default, if available; compares arms until a config succeeds
    results: dict[int, float | None] = field(default_factory=dict)  # by index of the config, in order of completion
    best: float = math.inf
    flawless: float = math.inf  # the best value without flaws
    open: bool = True
    closed_because: str = ""

    def __post_init__(self) -> None:
        self._expected: tuple[int, Array | None] = (0, None)  # (number of results, predicted cost of every config)
        self._sampler: Sampler | None = None

    @cached_property
    def priors(self) -> tuple[Prior, ...]:
        return self.make_priors()

    @cached_property
    def kept_priors(self) -> tuple[Prior, ...]:
        """Return the priors that random tries have not contradicted."""
        return self.priors

    @property
    def sampler(self) -> Sampler:
        if self._sampler is None:
            self._sampler = self._taught(self.kept_priors)
        return self._sampler

    @property
    def asked(self) -> bool:
        """Return whether the sampler, and therefore the priors, have been used."""
        return self._sampler is not None

    def _taught(self, priors: Sequence[Prior]) -> Sampler:
        """Return a new sampler that has received all results."""
        sampler = self.make_sampler(priors)
        for index, value in self.results.items():
            sampler.tell(index, value)
        return sampler

    @property
    def implementation(self) -> Implementation[Any, Any]:
        return self.default.implementation

    @property
    def tries(self) -> int:
        return len(self.results)

    @property
    def observations(self) -> Observations:
        return Observations.of(self.results)

    def behind(self, best: float) -> bool:
        """Return whether it is unlikely to find a config as good as `best`, the best of all arms."""
        judged = self.tries >= (1 if self.best < math.inf else _ENOUGH)
        return judged and _promise(self.best, self.tries) > best

    def close(self, why: str) -> None:
        self.open, self.closed_because = False, why

    def observe(self, config: Any, value: float | None, *, flawed: bool) -> None:
        index = self.space.index(config)
        if self._sampler is not None:
            self._sampler.tell(index, value)
        self.results[index] = value
        if value is not None:
            self.best = min(self.best, value)
            self.flawless = self.flawless if flawed else min(self.flawless, value)

    def drop_bad_priors(self) -> None:
        """Drop priors that random tries contradict; after a change, a new sampler receives all results.

        A single prior is judged by the sampler itself.
        """
        if not self.asked:
            return
        random = self.sampler.random
        kept = tuple(prior for prior in self.priors if prior.holds(self.observations, random))
        if len(self.priors) > 1 and kept != self.kept_priors:
            self.kept_priors, self._sampler = kept, self._taught(kept)
            self.sampler.mark_random(random)

    def neighbours(self, config: Any) -> list[Any]:
        """Return untried configs that differ in one parameter, the most promising first."""
        near = [int(index) for index in self.space.neighbours(self.space.index(config)) if index not in self.results]
        cost = self._cost() if near else None
        return [self.space[index] for index in (sorted(near, key=cost.__getitem__) if cost is not None else near)]

    def _cost(self) -> Array | None:
        """Return the expected cost of every config [configs]: from the results or, while there are few, from the
        priors.
        """
        if self._expected[0] != self.tries:
            learnt = predict(self.space, self.results)
            self._expected = self.tries, combine_priors(self.kept_priors) if learnt is None else learnt
        return self._expected[1]


class Bandit:
    """Suggests configs to try and receives their results. Configs with a result are never suggested."""

    def __init__(self, arms: Sequence[Arm]) -> None:
        self.arms = {arm.implementation.name: arm for arm in arms}
        known = [arm.expected for arm in arms if not math.isnan(arm.expected)]
        for arm in arms:  # arms without a prediction are expected to equal the best one
            arm.expected = min(known, default=1.0) if math.isnan(arm.expected) else arm.expected

    def ask(self, count: int) -> list[Instance]:
        """Return up to `count` configs; none if every remaining space is exhausted."""
        instances: list[Instance] = []
        while len(instances) < count and (running := self._running()):
            for arm, share in zip(running, _dealt(running, count - len(instances)), strict=True):
                indices = arm.sampler.ask(share) if share else []
                instances += [arm.default.with_config(arm.space[index]) for index in indices]
                if len(indices) < share:
                    arm.close("its space is exhausted")
        return instances

    def observe(self, instance: Instance, value: float | None, *, flawed: bool = False) -> None:
        """Record the value of a config; None if it failed. Flawed configs rank behind all others."""
        self.arms[instance.implementation.name].observe(instance.config, value, flawed=flawed)

    def drop_bad_arms(self) -> None:
        """Drop contradicted priors, and close arms that cannot catch up; called after a batch.

        Once a config without flaws is known, only such configs close other arms.
        """
        best = _leader([*self.arms.values()])[1]
        for arm in self._running():
            arm.drop_bad_priors()
            if arm.behind(best):
                arm.close(f"its best of {arm.tries} is over {_room(arm.tries):.3g} × the best of all")

    def expected_improvement(self) -> float | None:
        """Return by which fraction a sampler expects the best value to fall, at most.

        Returns None while the best arm's model has no estimate. Arms with too few tries for a model are behind it.
        """
        running = self._running()
        leader = min(running, key=lambda arm: arm.best, default=None)
        if leader is None or leader.sampler.expected_improvement is None:
            return None
        best = min(arm.best for arm in self.arms.values())
        gains = [(arm.best / best, arm.sampler.expected_improvement) for arm in running]
        return max(0.0, *(1 - ratio * (1 - gain) for ratio, gain in gains if gain is not None))

    def knows(self, instance: Instance) -> bool:
        """Return whether a config belongs to one of the spaces."""
        arm = self.arms.get(instance.implementation.name)
        return arm is not None and arm.space.refusal(instance.config) is None

    def tried(self, instance: Instance) -> bool:
        """Return whether a config has a result."""
        arm = self.arms[instance.implementation.name]
        return arm.space.index(instance.config) in arm.results

    def untried(self, instances: Iterable[Instance]) -> list[Instance]:
        """Return the configs of this problem that belong to one of the spaces and have no result."""
        new = [instance for instance in instances if self.knows(instance) and not self.tried(instance)]
        return [self.arms[instance.implementation.name].default.with_config(instance.config) for instance in new]

    def neighbours(self, instance: Instance) -> list[Instance]:
        """Return untried configs that differ in one parameter, the most promising first."""
        arm = self.arms[instance.implementation.name]
        return [instance.with_config(config) for config in arm.neighbours(instance.config)]

    def importance(self) -> dict[str, Mapping[str, float]]:
        """Return, per implementation, the fraction of the variance that each parameter explains."""
        return {name: importance(arm.space, arm.results) for name, arm in self.arms.items() if arm.tries >= 2}

    def _running(self) -> list[Arm]:
        return [arm for arm in self.arms.values() if arm.open]


def _room(tries: int) -> float:
    """Return the factor by which the best of `tries` may exceed the optimum."""
    return 1 + _GAIN / tries


def _promise(best: float, tries: int) -> float:
    """Return a lower bound of the optimum if `best` is the best of `tries`."""
    return best / _room(tries) if tries else 0.0


def _leader(arms: Sequence[Arm]) -> tuple[Arm, float]:
    """Return the arm with the best value without flaws, and that value; the best of all if every config has flaws."""
    first = min(arms, key=lambda arm: (arm.flawless, arm.best))
    return first, first.flawless if first.flawless < math.inf else first.best


def _dealt(arms: Sequence[Arm], count: int) -> list[int]:
    """Return how many of `count` tries each arm gets.

    Each try goes to the arm with the lowest bound; ties go to the better arm, as at the start, when nothing was tried.
    """
    leader, first = _leader(arms)
    best, tries = [_value(arm, leader, first) for arm in arms], [arm.tries for arm in arms]
    for _ in range(count):
        promises = [(_promise(value, n), n, value) for value, n in zip(best, tries, strict=True)]
        tries[promises.index(min(promises))] += 1
    return [n - arm.tries for arm, n in zip(arms, tries, strict=True)]


def _value(arm: Arm, leader: Arm, first: float) -> float:
    """Return the value behind an arm's bound: its best, at least `first` if it has flaws; the predicted value without
    success.
    """
    if first == math.inf:
        return arm.expected
    if arm.best == math.inf:
        return first * max(1.0, arm.expected / leader.expected)
    return arm.flawless if arm.flawless < math.inf else max(first, arm.best)


def prepared(
    default: Instance,
    space: Space[Any],
    prior: Callable[[Instance], float] | None,
    method: Method,
    transferred: Sequence[TransferResults] = (),
    compiled_costs: Callable[[Sequence[Instance]], Sequence[float]] | None = None,
) -> Arm:
    """Create an arm from an implementation's default and its space.

    It starts with the default config, the best `transferred` results, and the configs that the priors rank best: the
    order by `prior`, and one learnt from the results of each source. Without `prior`, for searches that only resume,
    there are no priors. If `prior` is NaN, `compiled_costs` returns the costs of a few random configs.
    """
    first = (space.index(default.config),) if len(space) else ()
    results = [transfer.within(space, default.implementation.config) for transfer in transferred]
    starts = (*first, *_best_in_turns(results, _TRANSFERRED_STARTS))
    name = "exhaustive" if len(space) <= method.tries else method.name

    def make(priors: Sequence[Prior]) -> Sampler:
        measured, cost = any(prior.measured for prior in priors), combine_priors(priors)
        return Sampler(space, method=name, seed=method.seed, starts=starts, prior=cost, measured=measured)

    expected = prior(default) if prior else math.nan

    def make_priors() -> tuple[Prior, ...]:
        if prior is None or not len(space) or not space.enumerated:
            return ()
        ranked = _ranked_configs(method.tries)
        costs = _costs(default, space, prior, compiled_costs, ranked if not math.isnan(expected) else 0)
        return _priors(space, costs, transferred, results)

    return Arm(default, space, make, make_priors, expected)


def _ranked_configs(tries: int) -> int:
    """Return how many configs of a space to rank for a search of `tries` tries in it."""
    return min(_MOST_RANKED, max(_LEAST_RANKED, _RANKED_A_TRY * tries))


def _costs(
    default: Instance,
    space: Space[Any],
    prior: Callable[[Instance], float],
    compiled_costs: Callable[[Sequence[Instance]], Sequence[float]] | None,
    ranked: int,
) -> Array:
    """Return the predicted cost of every config, NaN where there is none: by `prior` for up to `ranked` configs, or, if
    `ranked` is 0, by a model of `compiled_costs` of a few configs.
    """
    if ranked:
        return _ranked(space, lambda index: prior(default.with_config(space[index])), ranked)
    cost = np.full(len(space), np.nan)
    if compiled_costs is None:
        return cost
    drawn = np.random.default_rng(0).permutation(len(space))[:_SAMPLED]
    compiled = compiled_costs([default.with_config(space[int(index)]) for index in drawn])
    learnt = predict(space, dict(zip(drawn.tolist(), compiled, strict=True)))
    return cost if learnt is None else learnt


def _priors(
    space: Space[Any],
    costs: Array,
    transferred: Sequence[TransferResults],
    results: Sequence[Mapping[int, float | None]],
) -> tuple[Prior, ...]:
    predicted = () if np.isnan(costs).all() else (Prior(costs, source="prediction"),)
    learnt = [(transfer.source, predict(space, values)) for transfer, values in zip(transferred, results, strict=True)]
    return (*predicted, *(Prior(cost, measured=True, source=source) for source, cost in learnt if cost is not None))


def _ranked(space: Space[Any], cost_of: Callable[[int], float], count: int) -> Array:
    """Return the prior's cost of every config of a space with up to `count` configs. In a larger space rank `count`
    configs drawn at random and the neighbours of the best of these; the others are NaN.
    """
    cost = np.full(len(space), np.nan)
    drawn = np.random.default_rng(0).permutation(len(space))[:count]
    cost[drawn] = [cost_of(int(index)) for index in drawn]
    if len(drawn) < len(space):
        best = drawn[np.argsort(cost[drawn], kind="stable")[:_CLIMBED]]
        near = np.unique(np.concatenate([space.neighbours(int(index)) for index in best]))
        for index in near[np.isnan(cost[near])]:
            cost[index] = cost_of(int(index))
    return cost


def _best_in_turns(sources: Sequence[Mapping[int, float | None]], count: int) -> list[int]:
    """Return `count` configs, alternating between the best of each source."""
    ranked = [sorted((v, i) for i, v in source.items() if v is not None) for source in sources]
    turns = [source[rank][1] for rank in range(count) for source in ranked if rank < len(source)]
    return list(dict.fromkeys(turns))[:count]
