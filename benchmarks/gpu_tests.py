"""The tests that need a device, run in a separate pytest: start, wait, and results by test name.

Run as a program, this is a pytest that ends, with all its children, when its caller is gone: a killed run leaves
nothing on the device for the next one.
"""

import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_TIMING = ROOT / "tests" / "gpu" / "test_measure_gpu.py"
# As in pytest's -vv output, with the progress before or after the test's name.
_OUTCOME = re.compile(r"(?<=%] )(?:PASSED|FAILED|ERROR|SKIPPED)\b|\b(?:PASSED|FAILED|ERROR|SKIPPED)(?= +\[)")
_FAILED = re.compile(r"\b(?:FAILED|ERROR) +(tests/\S+)|(tests/\S+) +(?:FAILED|ERROR)\b")


@dataclass(frozen=True)
class Tests:
    """Arguments of pytest, its output file, and library folders that replace the installed libraries."""

    log: str
    arguments: tuple[str, ...]
    preloaded: str = ""


CONFORMANCE = Tests("conformance.txt", (f"--ignore={_TIMING}", str(_TIMING.parent)))
# Nothing else may run on the device during these tests; the last ones crash processes on it, or wait for peers.
_LAST = "spin or stray or peers"
MEASURING = Tests("measuring.txt", ("-k", f"not ({_LAST})", str(_TIMING)))
FAULTS = Tests("faults.txt", ("-k", _LAST, str(_TIMING)))


def again(failed: Sequence[str], libraries: str) -> Tests:
    """Return failed tests with another NVRTC, because the compiler may have caused the wrong result."""
    return Tests("again.txt", tuple(failed), libraries)


@contextmanager
def begun(which: Tests, folder: Path, *, side_by_side: bool = False) -> Iterator["subprocess.Popen[bytes]"]:
    """Start tests; kill the remaining processes at the end of the `with` block."""
    command, preloaded = _command(which, side_by_side=side_by_side), {"LD_PRELOAD": which.preloaded}
    with beside(command, folder / which.log, preloaded if which.preloaded else {}) as process:
        yield process


@contextmanager
def beside(
    command: list[str], log: Path, variables: Mapping[str, str] | None = None
) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a process that calls `end_with_caller`; at the end it is killed with all its children."""
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            cwd=ROOT,
            start_new_session=True,
            env={**os.environ, **(variables or {})},
        )
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def end_with_caller() -> None:
    """Make this process and its children end when its input closes, which happens when the caller ends."""
    threading.Thread(target=_end_with, args=(os.dup(0),), daemon=True).start()  # pytest replaces the input


def outcome(which: Tests, folder: Path, process: "subprocess.Popen[bytes]", seconds: float) -> dict[str, Any]:
    """Return the results of the tests; the partial results if the time is not sufficient."""
    log = folder / which.log
    try:
        code = process.wait(max(seconds, 1.0))
    except subprocess.TimeoutExpired:
        return _unfinished(log)
    last = log.read_text().strip().rpartition("\n")[2]
    return {"exit": code, "failed": _failed(log), "summary": last} | ({"error": last} if code else {})


def _unfinished(log: Path) -> dict[str, Any]:
    outcomes = Counter(_OUTCOME.findall(log.read_text()))
    counted = ", ".join(f"{count} {outcome.lower()}" for outcome, count in outcomes.items())
    summary = f"not finished in time, {counted or 'none ended'} so far, see {log.name}"
    return {"finished": False, "failed": _failed(log), "summary": summary}


def _failed(log: Path) -> list[str]:
    """Return the names of the tests that failed so far."""
    return sorted({before or after for before, after in _FAILED.findall(log.read_text())})


def _command(which: Tests, *, side_by_side: bool) -> list[str]:
    """Return the command. Tests run in parallel because most of their time is compilation, and print results as they
    end.
    """
    spread = ["-n", str(_cores() * 3 // 4 or 1), "--dist", "worksteal"] if side_by_side and find_spec("xdist") else []
    # Omits options of plugins that are not installed.
    plain = [] if find_spec("pytest_timeout") else ["-o", "addopts=-q"]
    return [sys.executable, __file__, *plain, "-vv", "--tb=short", *spread, *which.arguments]


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _end_with(pipe: int) -> None:
    os.read(pipe, 1)  # nobody writes to it: it closes when the caller ends
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    import pytest

    end_with_caller()
    sys.path[0] = str(ROOT)
    sys.exit(pytest.main(sys.argv[1:]))
