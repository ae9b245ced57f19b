"""The tests that need a device, in a pytest of its own: begun, waited for, and what they came to, by name.

As a program it is pytest, but one that ends, with all that it started, when its caller is gone: a run that was killed
leaves nothing on the device of the next.
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
# As -vv tells it: beside the progress, before the test's name or behind it.
_OUTCOME = re.compile(r"(?<=%] )(?:PASSED|FAILED|ERROR|SKIPPED)\b|\b(?:PASSED|FAILED|ERROR|SKIPPED)(?= +\[)")
_FAILED = re.compile(r"\b(?:FAILED|ERROR) +(tests/\S+)|(tests/\S+) +(?:FAILED|ERROR)\b")


@dataclass(frozen=True)
class Tests:
    """What pytest is asked, where its words go, and with which libraries in the place of those that are installed."""

    log: str
    arguments: tuple[str, ...]
    preloaded: str = ""


CONFORMANCE = Tests("conformance.txt", (f"--ignore={_TIMING}", str(_TIMING.parent)))
# Nothing else may run on the device beside these; the last ones take its processes down, or wait for peers.
_LAST = "spin or stray or peers"
MEASURING = Tests("measuring.txt", ("-k", f"not ({_LAST})", str(_TIMING)))
FAULTS = Tests("faults.txt", ("-k", _LAST, str(_TIMING)))


def again(failed: Sequence[str], libraries: str) -> Tests:
    """Tests that failed, with another NVRTC: a wrong result may be its compiler's."""
    return Tests("again.txt", tuple(failed), libraries)


@contextmanager
def begun(which: Tests, folder: Path, *, side_by_side: bool = False) -> Iterator["subprocess.Popen[bytes]"]:
    """Tests under way; what is left of them at the end is killed."""
    command, preloaded = _command(which, side_by_side=side_by_side), {"LD_PRELOAD": which.preloaded}
    with beside(command, folder / which.log, preloaded if which.preloaded else {}) as process:
        yield process


@contextmanager
def beside(
    command: list[str], log: Path, variables: Mapping[str, str] | None = None
) -> Iterator["subprocess.Popen[bytes]"]:
    """A process under way, which calls `end_with_caller`; at the end it is killed with all that it started."""
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
    """This process, and all that it starts, ends when its input does, which is its caller's."""
    threading.Thread(target=_end_with, args=(os.dup(0),), daemon=True).start()  # pytest has another input


def outcome(which: Tests, folder: Path, process: "subprocess.Popen[bytes]", seconds: float) -> dict[str, Any]:
    """What the tests come to; what they said so far where the time does not suffice."""
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
    summary = f"not through in its time, {counted or 'none ended'} so far, see {log.name}"
    return {"finished": False, "failed": _failed(log), "summary": summary}


def _failed(log: Path) -> list[str]:
    """The tests that failed so far, by name."""
    return sorted({before or after for before, after in _FAILED.findall(log.read_text())})


def _command(which: Tests, *, side_by_side: bool) -> list[str]:
    """Side by side, as most of their time goes into compiling. By name as they end: the time may be over before all."""
    spread = ["-n", str(_cores() * 3 // 4 or 1), "--dist", "worksteal"] if side_by_side and find_spec("xdist") else []
    plain = [] if find_spec("pytest_timeout") else ["-o", "addopts=-q"]  # without the check for options of plugins
    return [sys.executable, __file__, *plain, "-vv", "--tb=short", *spread, *which.arguments]


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _end_with(pipe: int) -> None:
    os.read(pipe, 1)  # of which nobody writes: it ends with the caller
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    import pytest

    end_with_caller()
    sys.path[0] = str(ROOT)
    sys.exit(pytest.main(sys.argv[1:]))
