"""Times of one kernel: which of them count, and what they say, with how much confidence."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from statistics import fmean, median

import numpy as np
import numpy.typing as npt

from tuner.evaluate.measure.policy import MeasurementPolicy

Times = npt.NDArray[np.float64]
CONFIDENCE = 0.95
_SLOWED = 0x08 | 0x20 | 0x40 | 0x80  # NVML: hardware, software-thermal, hardware-thermal, power-brake slowdown
_POWER_CAP = 0x04  # NVML: the clock is as high as the power limit lets it be
_CLOCK_DROP = 0.95  # of the kernel's own median clock
_TICK_US, _ALIKE = 1.0, 0.05  # what tells equal launches apart at most: steps of a device's clock, and their own noise
_PRIOR_SD = 0.02  # relative noise that is assumed before a kernel has shown its own …
_PRIOR_WEIGHT = 3.0  # … and how many samples that is worth
_MEDIAN_LOSS = 1.2533  # sqrt(π / 2): standard error of a median over that of a mean, normal noise
_SD_OF_MAD = 1.4826  # standard deviation over the median absolute deviation, normal noise
_LEAST_SERIES = 8  # values in which neighbours can be told from strangers
_RETRIES = 2  # samples drawn for each that counts, at most


@dataclass(frozen=True, slots=True)
class State:
    """The device at a moment; 0 is what nobody could read."""

    sm_mhz: int = 0
    throttle: int = 0  # NVML's clock event reasons, a bit each
    temperature_c: int = 0
    processes: int = 0  # that compute on it, this one included, and without those that take turns with it
    late: float = 0.0  # share of the launches just timed that may have waited for the host

    @property
    def slowed(self) -> int:
        """The reasons that make times wrong; a power cap is how a busy device runs, and stays out."""
        return self.throttle & _SLOWED

    @property
    def capped(self) -> bool:
        """Whether what runs draws so much power that it lowers its own clock, and that of what runs next."""
        return bool(self.throttle & _POWER_CAP)


@dataclass(frozen=True, slots=True)
class Sample:
    """The time of a launch, what a few have in common, and the device just after them."""

    time_us: float
    state: State = State()


@dataclass(frozen=True, slots=True)
class Estimate:
    """A median and its confidence interval, in the unit of the values."""

    mid: float
    low: float
    high: float
    count: int


def typical(times: Sequence[float]) -> float:
    """Microseconds that launches of one kernel have in common: the mean of those near their median.

    Events tell time in steps of up to 0.5 µs, a tenth of a short kernel. Where a launch falls between two steps is
    chance, so a mean sees less than a step, and a median does not. What is far from the median is something else.
    """
    mid = median(times)
    return fmean(time_us for time_us in times if abs(time_us - mid) <= max(_TICK_US, _ALIKE * mid))


def together(states: Sequence[State]) -> State:
    """What some moments of the device have in common: the median clock, all throttles, the highest temperature."""
    if not states:
        return State()
    return State(
        sm_mhz=round(median(state.sm_mhz for state in states)),
        throttle=reduce(or_, (state.throttle for state in states)),
        temperature_c=max(state.temperature_c for state in states),
        processes=max(state.processes for state in states),
        late=fmean(state.late for state in states),
    )


def usual(history: Sequence[State]) -> State:
    """What most of a session looked like: a throttle that is always on is how this device runs."""
    slowed, processes = (
        Counter(getattr(state, name) for state in history).most_common(1)[0][0] if history else 0
        for name in ("slowed", "processes")
    )
    return State(throttle=slowed, processes=processes)


def undisturbed(samples: Sequence[Sample], session: State) -> tuple[Sample, ...]:
    """The samples of one kernel that no throttle, other process or dropping clock falsified.

    Clocks are compared within the kernel: a heavy one runs at a lower clock than a light one, and that is its time.
    """
    clock = median([sample.state.sm_mhz for sample in samples]) if samples else 0
    steady = (sample for sample in samples if sample.state.sm_mhz >= _CLOCK_DROP * clock)
    return tuple(sample for sample in steady if not disturbed(sample.state, session))


def disturbed(state: State, session: State) -> bool:
    """Whether a throttle or another process is there that is not usual in the session."""
    return bool(state.slowed & ~session.slowed) or state.processes > session.processes


def estimate(times: Sequence[float]) -> Estimate:
    """Median time and interval, from relative differences. Raises ValueError without a time."""
    return in_units(interval(np.log(np.asarray(times, np.float64))))


def in_units(logs: Estimate) -> Estimate:
    """An estimate of logarithms as one of times, or of ratios."""
    return Estimate(float(np.exp(logs.mid)), float(np.exp(logs.low)), float(np.exp(logs.high)), logs.count)


def interval(values: Times) -> Estimate:
    """The median of `values` [n] (logarithms of times) and its interval; raises ValueError for n = 0."""
    mid, half = intervals(values[:, None])
    return Estimate(float(mid[0]), float(mid[0] - half[0]), float(mid[0] + half[0]), len(values))


def intervals(values: Times) -> tuple[Times, Times]:
    """Medians of the columns of `values` [n, k] and half the widths of their intervals; ValueError for n = 0.

    The spread is a robust one, pulled towards the noise that devices usually have, so that two samples that happen to
    agree are no certainty, and one that lies does not decide. Values in the order in which they were drawn: where they
    go with their neighbours they count as the fewer that `effective` says.
    """
    if len(values) == 0:
        raise ValueError("no value to estimate from")
    mid = np.median(values, axis=0)
    own = _SD_OF_MAD * np.median(np.abs(values - mid), axis=0)
    count = effective(values)
    freedom = _PRIOR_WEIGHT + count - 1
    sd = np.sqrt((_PRIOR_WEIGHT * _PRIOR_SD**2 + (count - 1) * own**2) / freedom)
    return mid, _quantile(freedom) * _MEDIAN_LOSS * sd / np.sqrt(count)


def effective(values: Times) -> Times:
    """How many independent values say as much about their middle as the columns of `values` [n, k] do, 1 to n.

    n (1 - r) / (1 + r), that of a first-order autoregression whose neighbours correlate by r (G. E. P. Box, G. M.
    Jenkins, Time Series Analysis). A series so short that it knows nothing of r is taken at its word; what makes values
    alternate, and a mean surer, is taken for chance.
    """
    n, width = values.shape
    if n < _LEAST_SERIES:
        return np.full(width, float(n))
    off = values - np.median(values, axis=0)
    most = 3 * _SD_OF_MAD * np.median(np.abs(off), axis=0)  # one that lies is no neighbour of any
    off = np.clip(off, -most, most)
    off -= off.mean(axis=0)
    power = (off**2).sum(axis=0)
    correlation = np.divide((off[1:] * off[:-1]).sum(axis=0), power, out=np.zeros(width), where=power > 0)
    r = np.clip(correlation + 1 / n, 0.0, 1.0)  # about 1 / n is what a series loses to its own mean
    count: Times = np.maximum(n * (1 - r) / (1 + r), 1.0)
    return count


def _quantile(freedom: Times) -> Times:
    """Student's t that CONFIDENCE stays under, on both sides."""
    from scipy.special import stdtrit

    quantile: Times = stdtrit(freedom, (1 + CONFIDENCE) / 2)
    return quantile


def screen(
    draw: Callable[[], Sample], session: Callable[[], State], policy: MeasurementPolicy, best_us: float
) -> tuple[Sample, ...]:
    """The undisturbed samples of a config; fewer than the policy's most where it cannot beat `best_us` (inf: none yet).

    Empty when every sample was disturbed. `session` is the device's usual state so far.
    """
    drawn: list[Sample] = []
    kept: tuple[Sample, ...] = ()
    for wanted, factor in policy.screening:
        while len(kept) < wanted and len(drawn) < _RETRIES * wanted:
            drawn.append(draw())
            kept = undisturbed(drawn, session())
        if kept and estimate([stored.time_us for stored in kept]).low > factor * best_us:
            break
    return kept
