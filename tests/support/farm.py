"""A Dask scheduler and workers as processes of this machine, for tests and benchmarks."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.patience import GENEROUS_S
from tests.support.postgres import free_port
from tuner.base.assets import ROOT

PRELOAD = "tuner.farm_worker"


def _start(
    program: str, *words: str, environment: Mapping[str, str], preload: str = "", log: Path
) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", f"distributed.cli.{program}", *words, *(["--preload", preload] if preload else [])]
    here = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    with log.open("ab") as file:
        return subprocess.Popen(command, cwd=ROOT, env=here, stdout=file, stderr=file, process_group=0)


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def scheduler(folder: Path, scheme: str = "tcp", environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """Provide the address of a scheduler."""
    port = free_port()
    address = f"{scheme}://127.0.0.1:{port}"
    words = ["--host", address, "--port", str(port), "--no-dashboard"]
    process = _start("dask_scheduler", *words, environment=environment or {}, log=folder / "scheduler.log")
    try:
        yield address
    finally:
        _end(process)


@contextmanager
def workers(
    address: str, count: int, folder: Path, environment: Mapping[str, str] | None = None, preload: str = PRELOAD
) -> Iterator[list[Path]]:
    """Provide `count` workers, which are restarted when they die, and their logs."""
    processes, logs = [], [folder / f"worker{number}.log" for number in range(count)]
    for number, log in enumerate(logs):
        words = [address, "--nthreads", "1", "--no-dashboard", "--name", f"w{number}", "--death-timeout", "120"]
        words += ["--local-directory", str(folder)]
        processes.append(_start("dask_worker", *words, environment=environment or {}, preload=preload, log=log))
    try:
        yield logs
    finally:
        for process in processes:
            _end(process)


def wait_until(true: Callable[[], object], what: str) -> None:
    """Wait until `true()` returns True."""
    deadline = time.monotonic() + GENEROUS_S
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
