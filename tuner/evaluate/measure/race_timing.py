"""The final race: kernels timed in interleaved rounds, decided by paired differences."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tuner.evaluate.measure.samples import Estimate, Times, effective, estimate, in_units, interval, intervals
from tuner.results.ranking import SAME_TIME

_RESAMPLES = 200


@dataclass(frozen=True, slots=True)
class Contender:
    """A contender's result. `ratio` is its time relative to the winner's, from paired differences."""

    time_us: Estimate
    ratio: Estimate
    tied: bool  # with the fastest


@dataclass(frozen=True, slots=True)
class Standing:
    """The outcome of a race, with contenders by position."""

    winner: int
    contenders: tuple[Contender, ...]
    regret_bound: float  # upper bound on the winner's slowdown relative to the fastest contender
    flip_probability: float  # probability that a repeated race has another winner


@dataclass(frozen=True, slots=True)
class Rules:
    """`keys[i]` orders equally fast contenders, lowest first; the winner may not lose to `default`.

    `floor_us` is the time of an empty launch: a time of about this length is launch overhead, not kernel time.
    """

    keys: tuple[tuple[Any, ...], ...]
    default: int | None = None
    tie: float = SAME_TIME
    floor_us: float = 0.0


def decide(times: Sequence[Sequence[float]], rules: Rules, seed: int = 0) -> Standing:
    """Return the standing of a race; `times` is [rounds, contenders] in microseconds.

    Contenders within `rules.tie` of the fastest, or whose interval contains it, are tied: the first by key wins, unless
    it is slower than the default. Times at the floor are all tied. Raises ValueError for a race without rounds.
    """
    logs = np.log(np.asarray(times, np.float64))
    if logs.ndim != 2 or not logs.size:
        raise ValueError(f"a race needs rounds and contenders, not times of shape {logs.shape}")
    if rules.floor_us:
        logs = np.maximum(logs, np.log(rules.floor_us * (1 + rules.tie)))
    winner, tied = _winner(logs, rules)
    contenders = tuple(
        Contender(
            estimate([time_us[i] for time_us in times]), in_units(interval(logs[:, i] - logs[:, winner])), bool(tied[i])
        )
        for i in range(logs.shape[1])
    )
    regret = max([0.0, *(1 / contender.ratio.low - 1 for i, contender in enumerate(contenders) if i != winner)])
    return Standing(winner, contenders, regret, _flips(logs, rules, winner, seed))


def _winner(logs: Times, rules: Rules) -> tuple[int, npt.NDArray[np.bool_]]:
    """Return (the winner, which contenders are tied with the fastest)."""
    paired = logs - logs.mean(axis=1, keepdims=True)  # removes effects common to a round (clock, temperature)
    fastest = int(np.argmin(np.median(paired, axis=0)))
    gap, half = intervals(logs - logs[:, [fastest]])
    tied = (gap - half <= 0) | (gap <= np.log1p(rules.tie))
    allowed = [i for i in np.flatnonzero(tied) if i == fastest or not _loses_to_default(logs, int(i), rules)]
    return int(min(allowed, key=lambda i: rules.keys[i])), tied


def _loses_to_default(logs: Times, contender: int, rules: Rules) -> bool:
    return rules.default is not None and float(np.median(logs[:, contender] - logs[:, rules.default])) > 0


def _flips(logs: Times, rules: Rules, winner: int, seed: int) -> float:
    """Return the fraction of resampled races with another winner.

    If neighbouring rounds correlate, blocks of them are drawn: a circular block bootstrap (D. N. Politis, J. P.
    Romano).
    """
    rng, n = np.random.default_rng(seed), len(logs)
    length = int(np.ceil(n / effective(logs - logs[:, [winner]]).min()))
    begins = rng.integers(n, size=(_RESAMPLES, -(-n // length)))
    rounds = ((begins[:, :, None] + np.arange(length)) % n).reshape(_RESAMPLES, -1)[:, :n]
    return sum(_winner(logs[drawn], rules)[0] != winner for drawn in rounds) / _RESAMPLES
