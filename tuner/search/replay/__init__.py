"""Replay: how near to the optimum of a recorded space a method comes, try by try."""

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
    """Runs of one method on one recording, one a seed."""

    recording: Recording
    method: str
    true_values: Array  # [seeds, budget]: recorded value of the config that looked best so far; inf: none worked yet

    @property
    def fractions(self) -> Array:
        """Optimum ÷ value found after each try [seeds, budget]; 0 before any config worked."""
        return self.recording.optimum / self.true_values

    def mean(self, tries: int) -> float:
        """Mean fraction of the optimum after `tries`."""
        return float(self.fractions[:, tries - 1].mean())

    def percentile(self, tries: int, percent: float) -> float:
        """A percentile over the seeds of the fraction of the optimum after `tries`."""
        return float(np.percentile(self.fractions[:, tries - 1], percent))

    def tries_to(self, fraction: float) -> float:
        """Median number of tries to a fraction of the optimum; inf when over half of the runs never came there."""
        reached = np.maximum.accumulate(self.fractions, axis=1) >= fraction
        return float(np.median(np.where(reached.any(axis=1), reached.argmax(axis=1) + 1, np.inf)))

    @cached_property
    def score(self) -> float:
        """P-score: 0 is as good as random search, 1 the optimum from the first try on, less than 0 worse.

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
    """Search a recording with a method of the sampler, once a seed; a failure costs a try as any other.

    With `noise`, each try sees one recorded sample instead of the value behind all of them; what was found is judged
    by that value. Batches of `batch` are asked for before their results are told. With `past`, a recording of the same
    kernel elsewhere, each run begins with the prior that a search of `past_tries` there gives.
    """

    def search(seed: int, evaluate: Callable[[int], float | None]) -> None:
        learnt = None if past is None else prior(recording, past, past_tries, seed + 1000)  # not the seed of this run
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
    """The recorded value of the incumbent after each try [budget] of any search that calls `evaluate` for a try.

    The incumbent is what looks best by the values that the search saw. A search may try less than its budget.
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
    """Expected best value after 1 … budget tries of random search without repetition [budget], calculated.

    While nothing worked, the worst value counts.
    """
    valid = np.sort(recording.values[~np.isnan(recording.values)])
    n = len(recording.values)
    # P(the best of k draws is the i-th best) by P(none of the i better ones is drawn), a product over the draws.
    none_of = np.ones(len(valid) + 1)
    better, expected = np.arange(len(valid) + 1), []
    for k in range(min(budget, n)):
        none_of = none_of * np.maximum(n - better - k, 0) / (n - k)
        is_best = none_of[:-1] - none_of[1:]
        expected.append(float(is_best @ valid + none_of[-1] * valid[-1]))
    return np.array(expected + expected[-1:] * (budget - len(expected)))
