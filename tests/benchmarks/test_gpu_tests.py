"""Tests that the pytest started by `gpu.py` ends with its caller."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.base.test_pool import wait_until
from tuner.base.assets import ROOT

BENCHMARKS = ROOT / "benchmarks"

CALLER = """
import sys, time
from pathlib import Path
import gpu_tests
slow, folder = Path(sys.argv[1]), Path(sys.argv[2])
with gpu_tests.begun(gpu_tests.Tests("log.txt", (str(slow), "-p", "no:cacheprovider")), folder) as process:
    print(process.pid, flush=True)
    time.sleep(3600)
"""


def test_tests_end_with_a_run_that_is_killed(tmp_path: Path) -> None:
    slow, started = tmp_path / "test_slow.py", tmp_path / "started"
    slow.write_text(
        f"import pathlib, time\ndef test_it():\n  pathlib.Path({str(started)!r}).touch()\n  time.sleep(3600)\n"
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
    wait_until(lambda: started.exists() or not runs(pytest_pid))
    assert started.exists(), (tmp_path / "log.txt").read_text()
    caller.send_signal(signal.SIGKILL)
    caller.communicate()
    wait_until(lambda: not runs(pytest_pid))


def runs(pid: int) -> bool:
    """Whether a process is there, and no mere entry that nobody has asked for."""
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][:4]
    except OSError:
        return False
