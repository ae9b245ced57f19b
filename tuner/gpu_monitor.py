"""Clocks, throttling, temperature and other processes of a GPU, through NVML where the driver brings it."""

import ctypes

from tuner.samples import State

_LIBRARY = "libnvidia-ml.so.1"  # part of the driver
_SM_CLOCK, _CORE_TEMPERATURE = 1, 0  # NVML_CLOCK_SM, NVML_TEMPERATURE_GPU
_OK, _INSUFFICIENT_SIZE = 0, 7


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
            sm_mhz=self._number("nvmlDeviceGetClockInfo", ctypes.c_uint(), _SM_CLOCK),
            throttle=self._number("nvmlDeviceGetCurrentClocksThrottleReasons", ctypes.c_ulonglong()),
            temperature_c=self._number("nvmlDeviceGetTemperature", ctypes.c_uint(), _CORE_TEMPERATURE),
            processes=self._processes(),
        )

    def _found(self, nvml: ctypes.CDLL, bus_id: str) -> bool:
        if nvml.nvmlInit_v2() != _OK:
            return False
        status: int = nvml.nvmlDeviceGetHandleByPciBusId_v2(bus_id.encode(), ctypes.byref(self._handle))
        return status == _OK

    def _number(self, name: str, into: "ctypes.c_uint | ctypes.c_ulonglong", *which: int) -> int:
        status = getattr(self._nvml, name)(self._handle, *which, ctypes.byref(into))
        return int(into.value) if status == _OK else 0

    def _processes(self) -> int:
        """How many compute on the GPU: NVML says so when asked for a list of none."""
        count = ctypes.c_uint(0)
        assert self._nvml is not None, "only asked where it is present"
        status = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle, ctypes.byref(count), None)
        return int(count.value) if status in (_OK, _INSUFFICIENT_SIZE) else 0
