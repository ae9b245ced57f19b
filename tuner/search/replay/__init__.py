"""Replay: how close a method comes to the optimum of a recorded space, by number of tries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tuner.search.replay.history import prior
from tuner.search.replay.recording import Recording
from tuner.search.sampler import Sampler
from tuner.spec.space import Array


@dataclass(frozen=True, eq=False)
class Replay:
    """Runs of one method on one recording, one per seed."""

    recording: Recording
    method: str
    true_values: Array  # [seeds, budget]: recorded value of the incumbent; inf: no config succeeded yet

    @property
    def fractions(self) -> Array:
        """The optimum divided by the value found after each try [seeds, budget]; 0 before any success."""
        return self.recording.optimum / self.true_values

    def mean(self, tries: int) -> float:
        """Mean fraction of the optimum after `tries`."""
        return float(self.fractions[:, tries - 1].mean())

    def percentile(self, tries: int, percent: float) -> float:
        """A percentile over the seeds of the fraction of the optimum after `tries`."""
        return float(np.percentile(self.fractions[:, tries - 1], percent))

    def tries_to(self, fraction: float) -> float:
        """Return the median number of tries to a fraction of the optimum; inf if more than half of the runs never reach
        it.
        """
        reached = np.maximum.accumulate(self.fractions, axis=1) >= fraction
        return float(np.median(np.where(reached.any(axis=1), reached.argmax(axis=1) + 1, np.inf)))

    @cached_property
    def score(self) -> float:
        """The P-score: 0 equals random search, 1 finds the optimum at the first try, negative is worse than random.

        The mean over tries of (random − found) / (random − optimum), with random the calculated expectation of
        random search and found the mean over seeds; up to the try at which random search has come 95 % of the way
        from the median to the optimum (after Willemsen et al. 2024, by tries and not by seconds).
        """
        values, optimum = self.recording.values, self.recording.optimum
        reached = np.where(np.isinf(self.true_values), np.nanmax(values), self.true_values).mean(axis=0)
        random = random_search(self.recording, len(reached))
        counted = random - optimum > 0.05 * (np.nanmedian(values) - optimum)
        return float(np.mean((random - reached)[counted] / (random - optimum)[counted]))


def replay(
    recording: Recording,
    method: str,
    budget: int,
    seeds: Sequence[int],
    *,
    batch: int = 1,
    noise: bool = True,
    past: Recording | None = None,
    past_tries: int = 200,
) -> Replay:
    """Search a recording with a method of the sampler, once per seed; failures count as tries.

    With `noise`, each try observes one recorded sample instead of the recorded value, by which results are judged.
    Batches of `batch` configs are suggested before their results are reported. With `past`, a recording of the same
    kernel elsewhere, each run starts with the prior from a search of `past_tries` there.
    """

    def search(seed: int, evaluate: Callable[[int], float | None]) -> None:
        # A different seed from this run's.
        learnt = None if past is None else prior(recording, past, past_tries, seed + 1000)
        sampler = Sampler(recording.space, method=method, seed=seed, prior=learnt, measured=True)
        for start in range(0, budget, batch):
            asked = sampler.ask(min(batch, budget - start))
            for index, value in [(index, evaluate(index)) for index in asked]:
                sampler.tell(index, value)

    return Replay(recording, method, np.array([run(recording, search, budget, seed, noise=noise) for seed in seeds]))


def run(
    recording: Recording,
    search: Callable[[int, Callable[[int], float | None]], None],
    budget: int,
    seed: int,
    *,
    noise: bool,
) -> Array:
    """Return the incumbent's recorded value after each try [budget], for any search that calls `evaluate`.

    The incumbent is the best config by the values that the search observed. A search may use fewer tries than its
    budget.
    """
    evaluate = recording.evaluate(np.random.default_rng((seed, 1)) if noise else None)
    true_values, best = [np.inf] * budget, np.inf
    tries = 0

    def counted(index: int) -> float | None:
        nonlocal tries, best
        value = evaluate(index)
        if value is not None and value < best:
            best = value
            true_values[tries:] = [float(recording.values[index])] * (budget - tries)
        tries += 1
        return value

    search(seed, counted)
    return np.array(true_values)


def random_search(recording: Recording, budget: int) -> Array:
    """Return the expected best value of random search without repetition, for 1 … budget tries [budget].

    Before any success, the worst value counts.
    """
    valid = np.sort(recording.values[~np.isnan(recording.values)])
    n = len(recording.values)
    # P(the best of k draws is the i-th best), from P(none of the i better ones is drawn), a product over the draws.
    none_of = np.ones(len(valid) + 1)
    better, expected = np.arange(len(valid) + 1), []
    for k in range(min(budget, n)):
        none_of = none_of * np.maximum(n - better - k, 0) / (n - k)
        is_best = none_of[:-1] - none_of[1:]
        expected.append(float(is_best @ valid + none_of[-1] * valid[-1]))
    return np.array(expected + expected[-1:] * (budget - len(expected)))
