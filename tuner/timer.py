"""A config that is loaded and warm, and the samples that are drawn of it."""

from collections.abc import MutableSequence
from typing import Any

from tuner.device import Call, Device
from tuner.policy import MeasurementPolicy
from tuner.samples import Sample, State, typical

_MOST_WARM_UPS = 20  # of the policy's length
_RISEN = 0.01  # of the clock, relative, that is no more than its own unrest


class Timer:
    """Construction runs the kernel for the policy's warm-up; every sample's state goes to `states`."""

    def __init__(
        self, device: Device, program: Any, call: Call, policy: MeasurementPolicy, states: MutableSequence[State]
    ) -> None:
        self._device, self._ready = device, device.ready(program, call, policy)
        self._policy, self._states = policy, states
        self._launches = 1
        self._warm_up()

    def sample(self) -> Sample:
        times = self._device.times_us(self._ready, self._launches, self._policy)
        state = self._device.state()
        self._states.append(state)
        return Sample(typical(times), state)

    def _warm_up(self) -> None:
        """By time, and again while the clock still rises: a device that was idle between two batches needs longer."""
        for _ in range(_MOST_WARM_UPS):
            before_mhz = self._device.state().sm_mhz
            self._run_for(self._policy.warm_up_us)
            if self._device.state().sm_mhz <= before_mhz * (1 + _RISEN):
                return

    def _run_for(self, warm_up_us: float) -> None:
        """The last times say how many launches make a sample."""
        spent, last = 0.0, 0.0
        while spent < warm_up_us:
            last = typical(self._device.times_us(self._ready, self._launches, self._policy))
            spent += max(last * self._launches, 1.0)
            self._launches = self._policy.launches(last)
