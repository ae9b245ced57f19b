"""Clocks, throttling, temperature and other processes of a GPU, through NVML where the driver brings it."""

import ctypes

from tuner.evaluate.measure.samples import State

_LIBRARY = "libnvidia-ml.so.1"  # part of the driver
_SM_CLOCK, _CORE_TEMPERATURE = 1, 0  # NVML_CLOCK_SM, NVML_TEMPERATURE_GPU
_OK, _INSUFFICIENT_SIZE, _NOT_FOUND = 0, 7, 13  # nvmlReturn_t; the last one for a function that is not there
# Newest first; the second ones are those of drivers before R535 and R510.
_REASONS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
_PROCESSES = ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses")


class Monitor:
    """Reads one GPU, named by its PCI bus id. Without NVML, and for what a GPU does not tell, every figure is 0."""

    def __init__(self, bus_id: str) -> None:
        self._handle = ctypes.c_void_p()
        try:
            self._nvml: ctypes.CDLL | None = ctypes.CDLL(_LIBRARY)
        except OSError:
            self._nvml = None
        if self._nvml and not self._found(self._nvml, bus_id):
            self._nvml = None

    @property
    def present(self) -> bool:
        return self._nvml is not None

    def state(self) -> State:
        if self._nvml is None:
            return State()
        return State(
            sm_mhz=self._number(("nvmlDeviceGetClockInfo",), ctypes.c_uint(), _SM_CLOCK),
            throttle=self._number(_REASONS, ctypes.c_ulonglong()),
            temperature_c=self._number(("nvmlDeviceGetTemperature",), ctypes.c_uint(), _CORE_TEMPERATURE),
            processes=self._processes(),
        )

    def _found(self, nvml: ctypes.CDLL, bus_id: str) -> bool:
        if nvml.nvmlInit_v2() != _OK:
            return False
        status: int = nvml.nvmlDeviceGetHandleByPciBusId_v2(bus_id.encode(), ctypes.byref(self._handle))
        return status == _OK

    def _number(self, names: tuple[str, ...], into: "ctypes.c_uint | ctypes.c_ulonglong", *which: int) -> int:
        status = self._asked(names, *which, ctypes.byref(into))
        return int(into.value) if status == _OK else 0

    def _processes(self) -> int:
        """How many compute on the GPU: NVML says so when asked for a list of none."""
        count = ctypes.c_uint(0)
        status = self._asked(_PROCESSES, ctypes.byref(count), None)
        return int(count.value) if status in (_OK, _INSUFFICIENT_SIZE) else 0

    def _asked(self, names: tuple[str, ...], *arguments: object) -> int:
        """The status of the first of these functions that this NVML has: they come and go with its versions."""
        for name in names:
            if function := getattr(self._nvml, name, None):
                status: int = function(self._handle, *arguments)
                return status
        return _NOT_FOUND
