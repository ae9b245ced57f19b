"""The implementations of a search as arms of a bandit: one sampler each, tries dealt to those still in the running."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tuner.search.belief import Belief, together
from tuner.search.history import Past
from tuner.search.sampler import Sampler, predict
from tuner.spec.instance import Instance
from tuner.spec.operator import Implementation
from tuner.spec.space import Array, Space

# The best of n tries is seldom worse than 1 + _GAIN / n times what is there to find. On recorded spaces 25, 50 and 100
# tries should then come to .76, .86 and .93 of the optimum; nine of ten runs come to .81, .91 and .94.
_GAIN = 8
_ENOUGH = 8  # tries after which an implementation is given up when none of them worked
_RANKED = 4096  # configs of a space that are ranked before the search, which takes a second, and then …
_SAMPLED = 64  # configs that are compiled before the search, where only what they compile to tells anything
_CLIMBED = 16  # … the neighbours of the best so many
_PAST_STARTS = 6  # the best of earlier results elsewhere that are tried again


@dataclass(frozen=True)
class Method:
    """How each arm is searched: one of sampler.METHODS, its seed, and the tries that it may count on."""

    name: str
    seed: int
    tries: int


@dataclass
class Arm:
    """One implementation that a search tries. `beliefs` are orders of its configs from before the search."""

    default: Instance
    space: Space[Any]
    make_sampler: Callable[[Sequence[Belief]], Sampler] = field(repr=False)
    beliefs: tuple[Belief, ...] = ()
    expected: float = math.nan  # predicted of its default, where it is: compares arms until something works
    results: dict[int, float | None] = field(default_factory=dict)  # by index of the config, in the order told
    best: float = math.inf
    sound: float = math.inf  # the best of what has no flaws
    open: bool = True
    closed_because: str = ""

    def __post_init__(self) -> None:
        self.kept = self.beliefs
        self._expected: tuple[int, Array | None] = (0, None)  # results it was learnt from, cost of every config
        self.sampler = self.make_sampler(self.kept)

    @property
    def implementation(self) -> Implementation[Any, Any]:
        return self.default.implementation

    @property
    def told(self) -> int:
        return len(self.results)

    def behind(self, best: float) -> bool:
        """Whether it will hardly find what is as good as `best`, the best of all arms."""
        judged = self.told >= (1 if self.best < math.inf else _ENOUGH)
        return judged and _promise(self.best, self.told) > best

    def close(self, why: str) -> None:
        self.open, self.closed_because = False, why

    def tell(self, config: Any, value: float | None, *, flawed: bool) -> None:
        index = self.space.index(config)
        self.sampler.tell(index, value)
        self.results[index] = value
        if value is not None:
            self.best = min(self.best, value)
            self.sound = self.sound if flawed else min(self.sound, value)

    def doubt(self) -> None:
        """Keep the beliefs that random tries bear out; when that changes, a new sampler learns what was told.

        One belief alone is the sampler's own to judge.
        """
        kept = tuple(each for each in self.beliefs if each.holds(self.results, self.sampler.drawn))
        if len(self.beliefs) > 1 and kept != self.kept:
            drawn, self.kept, self.sampler = self.sampler.drawn, kept, self.make_sampler(kept)
            self.sampler.knows_drawn(drawn)
            for index, value in self.results.items():
                self.sampler.tell(index, value)

    def neighbours(self, config: Any) -> list[Any]:
        """Configs not told of that differ in one parameter; what the model expects most of first."""
        near = [int(index) for index in self.space.neighbours(self.space.index(config)) if index not in self.results]
        cost = self._cost() if near else None
        return [self.space[index] for index in (sorted(near, key=cost.__getitem__) if cost is not None else near)]

    def _cost(self) -> Array | None:
        """What is expected of every config [configs]: by the results, or while there are few by the beliefs."""
        if self._expected[0] != self.told:
            learnt = predict(self.space, self.results)
            self._expected = self.told, together(self.kept) if learnt is None else learnt
        return self._expected[1]


class Bandit:
    """Ask for configs to try, tell what became of them. Never asks for one that it was told of."""

    def __init__(self, arms: Sequence[Arm]) -> None:
        self.arms = {each.implementation.name: each for each in arms}
        known = [each.expected for each in arms if not math.isnan(each.expected)]
        for each in arms:  # of what nobody predicted as much is expected as of the best
            each.expected = min(known, default=1.0) if math.isnan(each.expected) else each.expected

    def ask(self, count: int) -> list[Instance]:
        """Up to `count` configs; none when every space in the running is exhausted."""
        found: list[Instance] = []
        while len(found) < count and (running := self._running()):
            for arm, share in zip(running, _dealt(running, count - len(found)), strict=True):
                indices = arm.sampler.ask(share) if share else []
                found += [arm.default.with_config(arm.space[index]) for index in indices]
                if len(indices) < share:
                    arm.close("its space is exhausted")
        return found

    def tell(self, instance: Instance, value: float | None, *, flawed: bool = False) -> None:
        """What a config came to; None: it failed. What is flawed ranks behind all that is not."""
        self.arms[instance.implementation.name].tell(instance.config, value, flawed=flawed)

    def judge(self) -> None:
        """After a batch: drop beliefs that were wrong; close arms that cannot catch up.

        While anything without flaws is known, only that puts others behind.
        """
        best = _leader([*self.arms.values()])[1]
        for arm in self._running():
            arm.doubt()
            if arm.behind(best):
                arm.close(f"its best of {arm.told} is over {_room(arm.told):.3g} × the best of all")

    def expected_improvement(self) -> float | None:
        """By what share a sampler still expects the best of all to fall, at most.

        None while that of the best arm cannot say. Bandit that got too few tries for a model are behind it.
        """
        running = self._running()
        leader = min(running, key=lambda each: each.best, default=None)
        if leader is None or leader.sampler.expected_improvement is None:
            return None
        best = min(each.best for each in self.arms.values())
        gains = [(each.best / best, each.sampler.expected_improvement) for each in running]
        return max(0.0, *(1 - ratio * (1 - gain) for ratio, gain in gains if gain is not None))

    def knows(self, instance: Instance) -> bool:
        """Whether a config belongs to one of the spaces."""
        arm = self.arms.get(instance.implementation.name)
        return arm is not None and arm.space.refusal(instance.config) is None

    def told(self, instance: Instance) -> bool:
        """Whether a config was told of."""
        arm = self.arms[instance.implementation.name]
        return arm.space.index(instance.config) in arm.results

    def untried(self, wanted: Iterable[Instance]) -> list[Instance]:
        """Those of `wanted`, on this problem, that belong to one of the spaces and were not told of."""
        new = [each for each in wanted if self.knows(each) and not self.told(each)]
        return [self.arms[each.implementation.name].default.with_config(each.config) for each in new]

    def neighbours(self, instance: Instance) -> list[Instance]:
        """Those not told of that differ in one parameter, the most promising first."""
        arm = self.arms[instance.implementation.name]
        return [instance.with_config(config) for config in arm.neighbours(instance.config)]

    def importance(self) -> dict[str, Mapping[str, float]]:
        """Per implementation, how much of the spread each parameter explains."""
        return {name: each.sampler.importance() for name, each in self.arms.items() if each.told >= 2}

    def _running(self) -> list[Arm]:
        return [each for each in self.arms.values() if each.open]


def _room(tries: int) -> float:
    """How many times what is there to find the best of so many tries may be."""
    return 1 + _GAIN / tries


def _promise(best: float, tries: int) -> float:
    """What is to be found where `best` is the best of so many tries, with luck."""
    return best / _room(tries) if tries else 0.0


def _leader(arms: Sequence[Arm]) -> tuple[Arm, float]:
    """The arm with the best of what has no flaws, and that value; of all, while everything has some."""
    first = min(arms, key=lambda each: (each.sound, each.best))
    return first, first.sound if first.sound < math.inf else first.best


def _dealt(arms: Sequence[Arm], count: int) -> list[int]:
    """How many of `count` tries each arm gets: one after the other goes where most is promised; of what promises as
    much and was tried as often, as nothing was at the start, to the better.
    """
    leader, first = _leader(arms)
    best, tries = [_value(each, leader, first) for each in arms], [each.told for each in arms]
    for _ in range(count):
        promises = [(_promise(value, n), n, value) for value, n in zip(best, tries, strict=True)]
        tries[promises.index(min(promises))] += 1
    return [n - each.told for each, n in zip(arms, tries, strict=True)]


def _value(arm: Arm, leader: Arm, first: float) -> float:
    """What an arm's promise follows from: its best, where that has flaws no better than the `first` that has none;
    where nothing worked, as far behind as is predicted.
    """
    if first == math.inf:
        return arm.expected
    if arm.best == math.inf:
        return first * max(1.0, arm.expected / leader.expected)
    return arm.sound if arm.sound < math.inf else max(first, arm.best)


def prepared(
    default: Instance,
    space: Space[Any],
    prior: Callable[[Instance], float] | None,
    method: Method,
    pasts: Sequence[Past] = (),
    sampled: Callable[[Sequence[Instance]], Sequence[float]] | None = None,
) -> Arm:
    """An arm at the start, of an implementation by its default, over its space.

    First come its default config, the best of `pasts`, and what the beliefs rank best: the prior's order, and one
    learnt from each past. Without a prior, where nothing will be asked for, nothing is believed. Where the prior tells
    nothing, `sampled` gives the costs of a few random configs, if it is given.
    """
    first = (space.index(default.config),) if len(space) else ()
    known = [past.within(space, default.implementation.config) for past in pasts]
    starts = (*first, *_best_in_turns(known, _PAST_STARTS))
    name = "exhaustive" if len(space) <= method.tries else method.name

    def make(beliefs: Sequence[Belief]) -> Sampler:
        measured = any(each.measured for each in beliefs)
        return Sampler(space, method=name, seed=method.seed, starts=starts, prior=together(beliefs), measured=measured)

    expected = prior(default) if prior else math.nan
    costs = (
        _costs(default, space, prior, sampled, not math.isnan(expected))
        if prior and len(space) and space.enumerated
        else None
    )
    return Arm(default, space, make, _beliefs(space, costs, pasts, known), expected)


def _costs(
    default: Instance,
    space: Space[Any],
    prior: Callable[[Instance], float],
    sampled: Callable[[Sequence[Instance]], Sequence[float]] | None,
    told: bool,
) -> Array:
    """What is predicted of a space's configs, by the prior where it has `told` anything; NaN where nothing is."""
    if told:
        return _ranked(space, lambda index: prior(default.with_config(space[index])))
    cost = np.full(len(space), np.nan)
    if sampled is None:
        return cost
    drawn = np.random.default_rng(0).permutation(len(space))[:_SAMPLED]
    found = sampled([default.with_config(space[int(index)]) for index in drawn])
    learnt = predict(space, dict(zip(drawn.tolist(), found, strict=True)))
    return cost if learnt is None else learnt


def _beliefs(
    space: Space[Any],
    costs: Array | None,
    pasts: Sequence[Past],
    known: Sequence[Mapping[int, float | None]],
) -> tuple[Belief, ...]:
    if costs is None:
        return ()
    predicted = () if np.isnan(costs).all() else (Belief("prediction", costs, measured=False),)
    learnt = [(past.source, predict(space, results)) for past, results in zip(pasts, known, strict=True)]
    return (*predicted, *(Belief(source, found, measured=True) for source, found in learnt if found is not None))


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


def _best_in_turns(pasts: Sequence[Mapping[int, float | None]], count: int) -> list[int]:
    """The best configs of each past in turns, `count` in all."""
    ranked = [sorted((v, i) for i, v in past.items() if v is not None) for past in pasts]
    turns = [past[place][1] for place in range(count) for past in ranked if place < len(past)]
    return list(dict.fromkeys(turns))[:count]
