"""A loaded and warmed-up config, from which samples are drawn."""

import time
from collections.abc import MutableSequence
from math import inf
from typing import Any

from tuner.evaluate.measure.device import Call, Device
from tuner.evaluate.measure.policy import MeasurementPolicy
from tuner.evaluate.measure.samples import Sample, State, typical

_MOST_WARM_UPS = 20  # × the policy's warm-up time
_STEADY = 0.015  # relative change of the clock that counts as noise


class Timer:
    """Draws samples. Construction runs the kernel for the policy's warm-up; each sample's state is appended to
    `states`.

    `capped` is whether the kernel draws so much power that it lowers its own clock.
    """

    def __init__(
        self, device: Device, program: Any, call: Call, policy: MeasurementPolicy, states: MutableSequence[State]
    ) -> None:
        self._device, self._ready = device, device.ready(program, call, policy)
        self._policy, self._states = policy, states
        self._launches, self.capped = 1, False
        self._settle(policy.warm_up_us)

    def sample(self) -> Sample:
        times = self._device.times_us(self._ready, self._launches, self._policy)
        state = self._device.state()
        self._states.append(state)
        return Sample(typical(times), state)

    def own_clock(self) -> None:
        """Run until the clock is determined by this kernel instead of earlier ones.

        Gaps between launches count as running time, because they dominate for short kernels.
        """
        self._settle(self._policy.own_clock_us, with_gaps=True)

    def _settle(self, least_us: float, *, with_gaps: bool = False) -> None:
        """Run for a minimum time, and longer while the clock changes: it rises after idle time, and falls at the power
        limit.
        """
        self._run_for(least_us - self._policy.warm_up_us, with_gaps=with_gaps)
        for _ in range(_MOST_WARM_UPS):
            before_mhz = self._device.state().sm_mhz
            self._run_for(self._policy.warm_up_us, with_gaps=with_gaps)
            state = self._device.state()
            self.capped |= state.capped
            if abs(state.sm_mhz - before_mhz) <= _STEADY * before_mhz:
                return

    def _run_for(self, time_us: float, *, with_gaps: bool) -> None:
        """Run for a time; the last times determine the number of launches per sample."""
        spent, last = 0.0, 0.0
        deadline = time.monotonic() + 1e-6 * time_us if with_gaps else inf
        while spent < time_us and time.monotonic() < deadline:
            last = typical(self._device.times_us(self._ready, self._launches, self._policy))
            spent += max(last * self._launches, 1.0)
            self._launches = self._policy.launches(last)
