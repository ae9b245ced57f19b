"""Clocks, throttling, temperature and processes of a GPU, through NVML if available.

It uses nvidia-ml-py instead of cuda.bindings.nvml: the latter takes 190 ms to import instead of 30, and supports
neither the temperature nor the clock event reasons of drivers before R535 (`python -X importtime -c 'import pynvml'`).
"""

from collections.abc import Callable
from typing import Any

import pynvml

from tuner.evaluate.measure.samples import State

# Newest first; the second one is for drivers before R535.
_REASONS = (pynvml.nvmlDeviceGetCurrentClocksEventReasons, pynvml.nvmlDeviceGetCurrentClocksThrottleReasons)


class Monitor:
    """Reads one GPU, identified by its PCI bus id. All values are 0 without NVML or if the GPU does not support
    them.
    """

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
        """Return the result of the first function that this NVML version has."""
        for function in functions:
            try:
                return int(function(self._device, *which))
            except pynvml.NVMLError_FunctionNotFound:
                continue
            except pynvml.NVMLError:
                break
        return 0
