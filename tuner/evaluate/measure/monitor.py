"""Clocks, throttling, temperature and other processes of a GPU, through NVML where the driver brings it.

By nvidia-ml-py and not by cuda.bindings.nvml: that one is imported in 190 ms, this one in 30, and that one has neither
the temperature nor the reasons for slow clocks of drivers before R535 (`python -X importtime -c 'import pynvml'`).
"""

from collections.abc import Callable
from typing import Any

import pynvml

from tuner.evaluate.measure.samples import State

# Newest first; the second one is that of drivers before R535.
_REASONS = (pynvml.nvmlDeviceGetCurrentClocksEventReasons, pynvml.nvmlDeviceGetCurrentClocksThrottleReasons)


class Monitor:
    """Reads one GPU, named by its PCI bus id. Without NVML, and for what a GPU does not tell, every figure is 0."""

    def __init__(self, bus_id: str) -> None:
        try:
            pynvml.nvmlInit()
            self._device = pynvml.nvmlDeviceGetHandleByPciBusId(bus_id)
        except pynvml.NVMLError:
            self._device = None

    @property
    def present(self) -> bool:
        return self._device is not None

    def state(self) -> State:
        if self._device is None:
            return State()
        return State(
            sm_mhz=self._told((pynvml.nvmlDeviceGetClockInfo,), pynvml.NVML_CLOCK_SM),
            throttle=self._told(_REASONS),
            temperature_c=self._told((pynvml.nvmlDeviceGetTemperature,), pynvml.NVML_TEMPERATURE_GPU),
            processes=self._told((lambda device: len(pynvml.nvmlDeviceGetComputeRunningProcesses(device)),)),
        )

    def _told(self, functions: tuple[Callable[..., Any], ...], *which: int) -> int:
        """What the first of these functions says that this NVML has: they come and go with its versions."""
        for function in functions:
            try:
                return int(function(self._device, *which))
            except pynvml.NVMLError_FunctionNotFound:
                continue
            except pynvml.NVMLError:
                break
        return 0
