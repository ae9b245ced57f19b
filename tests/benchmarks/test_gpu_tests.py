"""The pytest that `gpu.py` starts: it does not outlive its caller."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tuner.base.assets import ROOT

BENCHMARKS = ROOT / "benchmarks"

CALLER = """
import sys, time
from pathlib import Path
import gpu_tests
slow, folder = Path(sys.argv[1]), Path(sys.argv[2])
with gpu_tests.begun(gpu_tests.Tests("log.txt", (str(slow), "-p", "no:cacheprovider")), folder) as process:
    print(process.pid, flush=True)
    time.sleep(60)
"""


def test_tests_end_with_a_run_that_is_killed(tmp_path: Path) -> None:
    slow, started = tmp_path / "test_slow.py", tmp_path / "started"
    slow.write_text(
        f"import pathlib, time\ndef test_it():\n  pathlib.Path({str(started)!r}).touch()\n  time.sleep(60)\n"
    )
    paths = os.pathsep.join([str(BENCHMARKS), *filter(None, sys.path)])
    caller = subprocess.Popen(
        [sys.executable, "-c", CALLER, str(slow), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert caller.stdout is not None
    pytest_pid = int(caller.stdout.readline())
    assert within(50, started.exists), (tmp_path / "log.txt").read_text()
    caller.send_signal(signal.SIGKILL)
    caller.communicate()
    assert within(20, lambda: not runs(pytest_pid))


def within(seconds: float, holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.05)
    return holds()


def runs(pid: int) -> bool:
    """Whether a process is there, and no mere entry that nobody has asked for."""
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][:4]
    except OSError:
        return False
