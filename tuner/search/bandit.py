"""The implementations of a search as arms of a bandit: one sampler each, tries dealt to those still in the running."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tuner.search.history import TransferResults
from tuner.search.sampler import Sampler, predict
from tuner.search.sampler.observations import Observations, Prior, combine_priors
from tuner.spec.instance import Instance
from tuner.spec.operator import Implementation
from tuner.spec.space import Array, Space

# The best of n tries is seldom worse than 1 + _GAIN / n times what is there to find. On recorded spaces 25, 50 and 100
# tries should then come to .76, .86 and .93 of the optimum; nine of ten runs come to .81, .91 and .94.
_GAIN = 8
_ENOUGH = 8  # tries after which an implementation is given up when none of them worked
_RANKED = 4096  # configs of a space that are ranked before the search, which takes a second
_SAMPLED = 64  # configs that are compiled before the search, where nothing is predicted without compiling
_CLIMBED = 16  # of a large space, the neighbours of this many of the best are ranked too
_TRANSFERRED_STARTS = 6  # the best of earlier results elsewhere that are tried again


@dataclass(frozen=True)
class Method:
    """How each arm is searched: one of sampler.METHODS, its seed, and the tries that it may count on."""

    name: str
    seed: int
    tries: int


@dataclass
class Arm:
    """One implementation that a search tries. `priors` are orders of its configs from before the search."""

    default: Instance
    space: Space[Any]
    make_sampler: Callable[[Sequence[Prior]], Sampler] = field(repr=False)
    priors: tuple[Prior, ...] = ()
    expected: float = math.nan  # predicted of its default, where it is: compares arms until something works
    results: dict[int, float | None] = field(default_factory=dict)  # by index of the config, in order
    best: float = math.inf
    flawless: float = math.inf  # the best of what has no flaws
    open: bool = True
    closed_because: str = ""

    def __post_init__(self) -> None:
        self.kept_priors = self.priors
        self._expected: tuple[int, Array | None] = (0, None)  # results it was learnt from, cost of every config
        self.sampler = self.make_sampler(self.kept_priors)

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
        """Whether it will hardly find what is as good as `best`, the best of all arms."""
        judged = self.tries >= (1 if self.best < math.inf else _ENOUGH)
        return judged and _promise(self.best, self.tries) > best

    def close(self, why: str) -> None:
        self.open, self.closed_because = False, why

    def observe(self, config: Any, value: float | None, *, flawed: bool) -> None:
        index = self.space.index(config)
        self.sampler.tell(index, value)
        self.results[index] = value
        if value is not None:
            self.best = min(self.best, value)
            self.flawless = self.flawless if flawed else min(self.flawless, value)

    def drop_bad_priors(self) -> None:
        """Keep the priors that random tries do not contradict; when that changes, a new sampler gets all results.

        The sampler itself judges a prior that is the only one.
        """
        random = self.sampler.random
        kept = tuple(prior for prior in self.priors if prior.holds(self.observations, random))
        if len(self.priors) > 1 and kept != self.kept_priors:
            self.kept_priors, self.sampler = kept, self.make_sampler(kept)
            self.sampler.mark_random(random)
            for index, value in self.results.items():
                self.sampler.tell(index, value)

    def neighbours(self, config: Any) -> list[Any]:
        """Untried configs that differ in one parameter, those that the model expects most of first."""
        near = [int(index) for index in self.space.neighbours(self.space.index(config)) if index not in self.results]
        cost = self._cost() if near else None
        return [self.space[index] for index in (sorted(near, key=cost.__getitem__) if cost is not None else near)]

    def _cost(self) -> Array | None:
        """What is expected of every config [configs]: by the results, or while there are few by the priors."""
        if self._expected[0] != self.tries:
            learnt = predict(self.space, self.results)
            self._expected = self.tries, combine_priors(self.kept_priors) if learnt is None else learnt
        return self._expected[1]


class Bandit:
    """Ask for configs to try, and observe their results. No config is asked for that has one."""

    def __init__(self, arms: Sequence[Arm]) -> None:
        self.arms = {arm.implementation.name: arm for arm in arms}
        known = [arm.expected for arm in arms if not math.isnan(arm.expected)]
        for arm in arms:  # of what nobody predicted as much is expected as of the best
            arm.expected = min(known, default=1.0) if math.isnan(arm.expected) else arm.expected

    def ask(self, count: int) -> list[Instance]:
        """Up to `count` configs; none when every space in the running is exhausted."""
        instances: list[Instance] = []
        while len(instances) < count and (running := self._running()):
            for arm, share in zip(running, _dealt(running, count - len(instances)), strict=True):
                indices = arm.sampler.ask(share) if share else []
                instances += [arm.default.with_config(arm.space[index]) for index in indices]
                if len(indices) < share:
                    arm.close("its space is exhausted")
        return instances

    def observe(self, instance: Instance, value: float | None, *, flawed: bool = False) -> None:
        """The value of a config; None: it failed. What is flawed ranks behind all that is not."""
        self.arms[instance.implementation.name].observe(instance.config, value, flawed=flawed)

    def drop_bad_arms(self) -> None:
        """After a batch: drop priors that were wrong, and close arms that cannot catch up.

        While anything without flaws is known, only that puts others behind.
        """
        best = _leader([*self.arms.values()])[1]
        for arm in self._running():
            arm.drop_bad_priors()
            if arm.behind(best):
                arm.close(f"its best of {arm.tries} is over {_room(arm.tries):.3g} × the best of all")

    def expected_improvement(self) -> float | None:
        """By what share a sampler still expects the best of all to fall, at most.

        None while that of the best arm cannot say. Arms with too few tries for a model are behind it.
        """
        running = self._running()
        leader = min(running, key=lambda arm: arm.best, default=None)
        if leader is None or leader.sampler.expected_improvement is None:
            return None
        best = min(arm.best for arm in self.arms.values())
        gains = [(arm.best / best, arm.sampler.expected_improvement) for arm in running]
        return max(0.0, *(1 - ratio * (1 - gain) for ratio, gain in gains if gain is not None))

    def knows(self, instance: Instance) -> bool:
        """Whether a config belongs to one of the spaces."""
        arm = self.arms.get(instance.implementation.name)
        return arm is not None and arm.space.refusal(instance.config) is None

    def tried(self, instance: Instance) -> bool:
        """Whether a config has a result."""
        arm = self.arms[instance.implementation.name]
        return arm.space.index(instance.config) in arm.results

    def untried(self, instances: Iterable[Instance]) -> list[Instance]:
        """Those that belong to one of the spaces and have no result, on this problem."""
        new = [instance for instance in instances if self.knows(instance) and not self.tried(instance)]
        return [self.arms[instance.implementation.name].default.with_config(instance.config) for instance in new]

    def neighbours(self, instance: Instance) -> list[Instance]:
        """Untried configs that differ in one parameter, the most promising first."""
        arm = self.arms[instance.implementation.name]
        return [instance.with_config(config) for config in arm.neighbours(instance.config)]

    def importance(self) -> dict[str, Mapping[str, float]]:
        """Per implementation, how much of the spread each parameter explains."""
        return {name: arm.sampler.importance() for name, arm in self.arms.items() if arm.tries >= 2}

    def _running(self) -> list[Arm]:
        return [arm for arm in self.arms.values() if arm.open]


def _room(tries: int) -> float:
    """By what factor the best of `tries` may exceed the optimum."""
    return 1 + _GAIN / tries


def _promise(best: float, tries: int) -> float:
    """A lower bound of the optimum, where `best` is the best of `tries`."""
    return best / _room(tries) if tries else 0.0


def _leader(arms: Sequence[Arm]) -> tuple[Arm, float]:
    """The arm with the best of what has no flaws, and that value; of all, while everything has some."""
    first = min(arms, key=lambda arm: (arm.flawless, arm.best))
    return first, first.flawless if first.flawless < math.inf else first.best


def _dealt(arms: Sequence[Arm], count: int) -> list[int]:
    """How many of `count` tries each arm gets: one after the other goes where most is promised; of what promises as
    much and was tried as often, as nothing was at the start, to the better.
    """
    leader, first = _leader(arms)
    best, tries = [_value(arm, leader, first) for arm in arms], [arm.tries for arm in arms]
    for _ in range(count):
        promises = [(_promise(value, n), n, value) for value, n in zip(best, tries, strict=True)]
        tries[promises.index(min(promises))] += 1
    return [n - arm.tries for arm, n in zip(arms, tries, strict=True)]


def _value(arm: Arm, leader: Arm, first: float) -> float:
    """What an arm's promise follows from: its best, where that has flaws no better than the `first` that has none;
    where nothing worked, as far behind as is predicted.
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
    """An arm at the start, of an implementation by its default, over its space.

    First come its default config, the best `transferred` results, and what the priors rank best: the order by `prior`,
    and one learnt from the results of each source. Without `prior`, where nothing will be asked for, there are none.
    Where `prior` is NaN, `compiled_costs` gives the costs of a few random configs.
    """
    first = (space.index(default.config),) if len(space) else ()
    results = [transfer.within(space, default.implementation.config) for transfer in transferred]
    starts = (*first, *_best_in_turns(results, _TRANSFERRED_STARTS))
    name = "exhaustive" if len(space) <= method.tries else method.name

    def make(priors: Sequence[Prior]) -> Sampler:
        measured, cost = any(prior.measured for prior in priors), combine_priors(priors)
        return Sampler(space, method=name, seed=method.seed, starts=starts, prior=cost, measured=measured)

    expected = prior(default) if prior else math.nan
    costs = (
        _costs(default, space, prior, compiled_costs, declared=not math.isnan(expected))
        if prior and len(space) and space.enumerated
        else None
    )
    return Arm(default, space, make, _priors(space, costs, transferred, results), expected)


def _costs(
    default: Instance,
    space: Space[Any],
    prior: Callable[[Instance], float],
    compiled_costs: Callable[[Sequence[Instance]], Sequence[float]] | None,
    *,
    declared: bool,
) -> Array:
    """What is predicted of a space's configs, by `prior` where their work is `declared`; NaN where nothing is."""
    if declared:
        return _ranked(space, lambda index: prior(default.with_config(space[index])))
    cost = np.full(len(space), np.nan)
    if compiled_costs is None:
        return cost
    drawn = np.random.default_rng(0).permutation(len(space))[:_SAMPLED]
    compiled = compiled_costs([default.with_config(space[int(index)]) for index in drawn])
    learnt = predict(space, dict(zip(drawn.tolist(), compiled, strict=True)))
    return cost if learnt is None else learnt


def _priors(
    space: Space[Any],
    costs: Array | None,
    transferred: Sequence[TransferResults],
    results: Sequence[Mapping[int, float | None]],
) -> tuple[Prior, ...]:
    if costs is None:
        return ()
    predicted = () if np.isnan(costs).all() else (Prior(costs, source="prediction"),)
    learnt = [(transfer.source, predict(space, values)) for transfer, values in zip(transferred, results, strict=True)]
    return (*predicted, *(Prior(cost, measured=True, source=source) for source, cost in learnt if cost is not None))


def _ranked(space: Space[Any], cost_of: Callable[[int], float]) -> Array:
    """The prior's cost of every config of a small space; of a large one, of configs drawn from it and of the
    neighbours of the best of these, NaN elsewhere."""
    cost = np.full(len(space), np.nan)
    drawn = np.random.default_rng(0).permutation(len(space))[:_RANKED]
    cost[drawn] = [cost_of(int(index)) for index in drawn]
    if len(drawn) < len(space):
        best = drawn[np.argsort(cost[drawn], kind="stable")[:_CLIMBED]]
        near = np.unique(np.concatenate([space.neighbours(int(index)) for index in best]))
        for index in near[np.isnan(cost[near])]:
            cost[index] = cost_of(int(index))
    return cost


def _best_in_turns(sources: Sequence[Mapping[int, float | None]], count: int) -> list[int]:
    """The best configs of each source in turns, `count` in all."""
    ranked = [sorted((v, i) for i, v in source.items() if v is not None) for source in sources]
    turns = [source[rank][1] for rank in range(count) for source in ranked if rank < len(source)]
    return list(dict.fromkeys(turns))[:count]
