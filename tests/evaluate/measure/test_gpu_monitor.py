"""What NVML is asked, by a library that answers as its documentation says; g++ builds it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tuner.backends.emulator.compiler import compiler

LIBRARY = "libnvidia-ml.so.1"
NOTHING = {"present": False, "sm_mhz": 0, "throttle": 0, "temperature_c": 0, "processes": 0}
BASE = """
#include <cstring>
typedef struct Device* Handle;
extern "C" {
static bool ready;
int nvmlInitWithFlags(unsigned) { ready = true; return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(char const* bus, Handle* device) {
  if (!ready) return 1;
  if (std::strcmp(bus, "0000:1B:00.0")) return 6;
  *device = reinterpret_cast<Handle>(77);
  return 0;
}
static int known(Handle device) { return device == reinterpret_cast<Handle>(77) ? 0 : 2; }
int nvmlDeviceGetClockInfo(Handle device, int clock, unsigned* mhz) {
  *mhz = clock == 1 ? 1755 : 0;
  return known(device);
}
"""
TEMPERATURE = """
int nvmlDeviceGetTemperature(Handle device, int sensor, unsigned* celsius) {
  *celsius = 40 + sensor;
  return known(device);
}
"""
REASONS = "int NAME(Handle device, unsigned long long* reasons) { *reasons = 0x44; return known(device); }\n"
PROCESSES = """
int NAME(Handle device, unsigned* count, void* list) {
  if (known(device)) return 2;
  bool const fits = list && *count >= 3;
  *count = 3;
  return fits ? 0 : 7;
}
"""
NEW = REASONS.replace("NAME", "nvmlDeviceGetCurrentClocksEventReasons")
NEW += PROCESSES.replace("NAME", "nvmlDeviceGetComputeRunningProcesses_v3")
OLD = REASONS.replace("NAME", "nvmlDeviceGetCurrentClocksThrottleReasons")
OLD += PROCESSES.replace("NAME", "nvmlDeviceGetComputeRunningProcesses_v3")
ASK = """
import json, sys
from dataclasses import asdict
from tuner.evaluate.measure.monitor import Monitor
found = Monitor(sys.argv[1])
told = {"present": found.present, **asdict(found.state())}
assert told.pop("late") == 0  # which the device knows
print(json.dumps(told))
"""


def asked(folder: Path, functions: str, bus: str = "0000:1B:00.0") -> dict[str, object]:
    """What a monitor reads in a process whose NVML has these functions."""
    command = [compiler().path, "-shared", "-fPIC", "-x", "c++", "-", "-o", str(folder / LIBRARY)]
    subprocess.run(command, input=BASE + functions + "}", text=True, check=True)
    return read(folder, bus)


def read(folder: Path, bus: str = "0000:1B:00.0") -> dict[str, object]:
    environment = {"LD_LIBRARY_PATH": str(folder), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", ASK, bus], env=environment, capture_output=True, text=True, check=True)
    result: dict[str, object] = json.loads(done.stdout)
    return result


@pytest.mark.parametrize("functions", [NEW, OLD], ids=["R535 and later", "earlier"])
def test_clock_throttling_temperature_and_processes_are_read(tmp_path: Path, functions: str) -> None:
    result = asked(tmp_path, functions + TEMPERATURE)
    assert result == {"present": True, "sm_mhz": 1755, "throttle": 0x44, "temperature_c": 40, "processes": 3}


def test_a_function_that_an_nvml_does_not_have_costs_its_own_figure_only(tmp_path: Path) -> None:
    result = asked(tmp_path, NEW)
    assert result == {"present": True, "sm_mhz": 1755, "throttle": 0x44, "temperature_c": 0, "processes": 3}


def test_a_gpu_that_nvml_does_not_know_is_not_monitored(tmp_path: Path) -> None:
    result = asked(tmp_path, NEW, bus="0000:FF:00.0")
    assert result == NOTHING


def test_without_a_driver_nothing_is_monitored(tmp_path: Path) -> None:
    (tmp_path / LIBRARY).write_text("no library")  # the first that is found, where a driver is there
    assert read(tmp_path) == NOTHING
