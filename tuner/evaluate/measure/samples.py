"""Samples of a kernel's time: which ones are valid, and the estimate and its confidence."""

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
_POWER_CAP = 0x04  # NVML: the power limit caps the clock
_CLOCK_DROP = 0.95  # relative to the kernel's own median clock
_TICK_US, _ALIKE = 1.0, 0.05  # maximum spread of equal launches: resolution of the device's timer, and relative noise
_PRIOR_SD = 0.02  # prior for the relative noise of a kernel …
_PRIOR_WEIGHT = 3.0  # … and its weight in samples
_MEDIAN_LOSS = 1.2533  # sqrt(π / 2): standard error of a median relative to that of a mean, for normal noise
_SD_OF_MAD = 1.4826  # standard deviation / median absolute deviation, for normal noise
_LEAST_SERIES = 8  # values needed to estimate the correlation of neighbours
_RETRIES = 2  # maximum number of samples drawn per valid one


@dataclass(frozen=True, slots=True)
class State:
    """The state of the device at a moment; 0 means unknown."""

    sm_mhz: int = 0
    throttle: int = 0  # bit mask of NVML's clock event reasons
    temperature_c: int = 0
    processes: int = 0  # compute processes, including this one and excluding those that take turns with it
    late: float = 0.0  # fraction of the timed launches that may have waited for the host

    @property
    def slowed(self) -> int:
        """The throttle reasons that invalidate times; a power cap is normal on a busy device and is excluded."""
        return self.throttle & _SLOWED

    @property
    def capped(self) -> bool:
        """Whether the power limit lowers the clock of the running kernel, and of the next one."""
        return bool(self.throttle & _POWER_CAP)


@dataclass(frozen=True, slots=True)
class Sample:
    """The time of a launch, averaged over a few, and the device state just after them."""

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
    """Return the typical time of a kernel's launches in microseconds: the mean of those near the median.

    Events have a resolution of up to 0.5 µs, a tenth of a short kernel. The mean resolves less than that and the median
    does not, whereas outliers distort only the mean.
    """
    mid = median(times)
    return fmean(time_us for time_us in times if abs(time_us - mid) <= max(_TICK_US, _ALIKE * mid))


def together(states: Sequence[State]) -> State:
    """Combine device states: the median clock, all throttle reasons, the highest temperature."""
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
    """Return the usual state of a session: a throttle reason that is always set is normal for this device."""
    slowed, processes = (
        Counter(getattr(state, name) for state in history).most_common(1)[0][0] if history else 0
        for name in ("slowed", "processes")
    )
    return State(throttle=slowed, processes=processes)


def undisturbed(samples: Sequence[Sample], session: State) -> tuple[Sample, ...]:
    """Return the samples that no throttling, other process or clock drop disturbed.

    Clocks are compared within the kernel, because a kernel with high power runs at a lower clock, which is part of its
    time.
    """
    clock = median([sample.state.sm_mhz for sample in samples]) if samples else 0
    steady = (sample for sample in samples if sample.state.sm_mhz >= _CLOCK_DROP * clock)
    return tuple(sample for sample in steady if not disturbed(sample.state, session))


def disturbed(state: State, session: State) -> bool:
    """Return whether throttling or another process is present that is not usual in the session."""
    return bool(state.slowed & ~session.slowed) or state.processes > session.processes


def estimate(times: Sequence[float]) -> Estimate:
    """Return the median time and its interval, from relative differences. Raises ValueError without times."""
    return in_units(interval(np.log(np.asarray(times, np.float64))))


def in_units(logs: Estimate) -> Estimate:
    """Convert an estimate of logarithms to times or ratios."""
    return Estimate(float(np.exp(logs.mid)), float(np.exp(logs.low)), float(np.exp(logs.high)), logs.count)


def interval(values: Times) -> Estimate:
    """Return the median of `values` [n] (logarithms of times) and its interval. Raises ValueError for n = 0."""
    mid, half = intervals(values[:, None])
    return Estimate(float(mid[0]), float(mid[0] - half[0]), float(mid[0] + half[0]), len(values))


def intervals(values: Times) -> tuple[Times, Times]:
    """Return medians of the columns of `values` [n, k] and half-widths of their intervals. Raises ValueError for n = 0.

    The spread is a robust estimate with a prior on typical noise, so that two samples that agree by chance do not imply
    certainty, and an outlier does not dominate. Values are in the order in which they were measured: correlated ones
    count as fewer, see `effective`.
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
    """Return the number of independent values equivalent to the columns of `values` [n, k], from 1 to n.

    It is n (1 - r) / (1 + r) for a first-order autoregression with lag-one correlation r (G. E. P. Box, G. M. Jenkins,
    Time Series Analysis). Series too short to estimate r count fully; negative correlation is ignored.
    """
    n, width = values.shape
    if n < _LEAST_SERIES:
        return np.full(width, float(n))
    off = values - np.median(values, axis=0)
    most = 3 * _SD_OF_MAD * np.median(np.abs(off), axis=0)  # limits the influence of outliers
    off = np.clip(off, -most, most)
    off -= off.mean(axis=0)
    power = (off**2).sum(axis=0)
    correlation = np.divide((off[1:] * off[:-1]).sum(axis=0), power, out=np.zeros(width), where=power > 0)
    # Compensates the bias of about 1 / n from subtracting the series' own mean.
    r = np.clip(correlation + 1 / n, 0.0, 1.0)
    count: Times = np.maximum(n * (1 - r) / (1 + r), 1.0)
    return count


def _quantile(freedom: Times) -> Times:
    """Return the two-sided quantile of Student's t at CONFIDENCE."""
    from scipy.special import stdtrit

    quantile: Times = stdtrit(freedom, (1 + CONFIDENCE) / 2)
    return quantile


def screen(
    draw: Callable[[], Sample], session: Callable[[], State], policy: MeasurementPolicy, best_us: float
) -> tuple[Sample, ...]:
    """Draw undisturbed samples of a config; fewer than the policy's maximum if it cannot beat `best_us` (inf: none
    yet).

    Returns no samples if all were disturbed. `session` returns the device's usual state so far.
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
