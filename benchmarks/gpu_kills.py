"""Kill `gpu.py` on a simulated device at random moments (SIGKILL), and check that all its results are on disk.

    python benchmarks/gpu_kills.py --times 30

Prints what each run left behind; exits with 1 if anything was lost.
"""

import argparse
import json
import random
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import gpu_path  # noqa: F401  # before the package is imported
import gpu_rows

PROGRAMS = Path(__file__).parent
_ONLY = "flash_attention"
_WHOLE_S, _LEAST_S = 25.0, 10.0  # duration of a run after its first row: a resumed run is shorter
_PACKED_S = 60.0  # time until the archive is complete after its run has ended, on a busy machine


@dataclass(frozen=True)
class Killed:
    """A killed run: seconds, step and number of rows at the kill, and what was lost."""

    after_s: float
    step: str
    rows: int
    lost: tuple[str, ...]


def started(folder: Path, minutes: float = 3.0, options: Sequence[str] = ()) -> "subprocess.Popen[bytes]":
    command = [sys.executable, str(PROGRAMS / "gpu.py"), "--simulate", "--minutes", str(minutes), "--only", _ONLY]
    places = ["--out", str(folder / "out"), "--archive", str(folder / "gpu.tar.gz")]
    return subprocess.Popen([*command, *places, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def kills(times: int, seed: int, folder: Path) -> Iterator[Killed]:
    """Kill each run at a random moment after its first row; every other run resumes the previous one.

    A run that ended before the kill does not count, and its duration becomes the upper bound of later moments.
    """
    rng, whole_s, killed, run_folder = random.Random(seed), _WHOLE_S, 0, folder / "0"
    while killed < times:
        run, rows_before = started(run_folder), _rows(run_folder)
        while _rows(run_folder) == rows_before and run.poll() is None:
            time.sleep(0.05)
        began, after_s = time.monotonic(), rng.uniform(0.0, whole_s)
        with suppress(subprocess.TimeoutExpired):
            run.wait(after_s)
            run_folder, whole_s = folder / f"{killed} {after_s}", min(whole_s, max(time.monotonic() - began, _LEAST_S))
            continue
        run.kill()
        run.wait()
        yield inspected(run_folder, after_s)
        killed += 1
        run_folder = folder / str(killed) if killed % 2 == 0 else run_folder


def _rows(folder: Path) -> bytes:
    path = folder / "out" / gpu_rows.NAME
    return path.read_bytes() if path.exists() else b""


def inspected(folder: Path, after_s: float) -> Killed:
    """Return the state of a run that has ended."""
    path = folder / "out" / gpu_rows.NAME
    if not path.exists() or not path.read_bytes().strip():
        return Killed(after_s, "before the first row", 0, ())
    lines = path.read_bytes().splitlines()
    steps, lost = gpu_rows.steps([json.loads(line) for line in lines if _is_whole(line)]), []
    cut = [i for i, line in enumerate(lines) if not _is_whole(line)]
    lost += [f"row {i} of {len(lines)} is cut off" for i in cut if lines[i] and i + 1 < len(lines) and i + 1 not in cut]
    lost += [f"{step} is in the log but has no row" for step in _logged(folder / "out") if step not in steps]
    lost += [f"the archive: {why}" for why in _archived(folder, path)]
    for source in (folder / "out", path, folder / "gpu.tar.gz"):
        collect = [sys.executable, str(PROGRAMS / "gpu_collect.py"), str(source)]
        collected = subprocess.run(collect, capture_output=True, text=True, check=False)
        if collected.returncode or not collected.stdout:
            lost.append(f"gpu_collect.py of {source.name}: {collected.stderr.strip()}")
    under_way = [name for name, step in steps.items() if step.get("summary") == "cut off"]
    return Killed(after_s, under_way[-1] if under_way else "between two steps", len(lines), tuple(lost))


def _is_whole(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _logged(out: Path) -> Iterator[str]:
    """Yield the steps that the log reports as done."""
    log = out / "log.txt"
    for line in log.read_text().splitlines() if log.exists() else ():
        name = line.partition("] ")[2].partition(": ")[0]
        if line.startswith("[") and ": " in line and not name.startswith(("the ", "report", "times", "page")):
            yield name


def _archived(folder: Path, rows: Path) -> Iterator[str]:
    """Yield errors of the archive, after its process had time to notice the end of the run."""
    deadline, why = time.monotonic() + _PACKED_S, "there is none"
    while time.monotonic() < deadline:
        try:
            with tarfile.open(folder / "gpu.tar.gz") as packed:
                content = packed.extractfile(f"out/{gpu_rows.NAME}")
                if content and content.read() == rows.read_bytes():
                    return
            why = "it does not have all rows"
        except (OSError, EOFError, KeyError, tarfile.TarError) as error:
            why = str(error)
        time.sleep(0.2)
    yield why


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="output folder (default: a temporary one)")
    options = parser.parse_args()
    damaged = 0
    with TemporaryDirectory() as temporary:
        for i, run in enumerate(kills(options.times, options.seed, options.out or Path(temporary)), start=1):
            damaged += bool(run.lost)
            lost = "; ".join(run.lost) or "nothing lost"
            print(f"{i:3}  after {run.after_s:5.1f} s  {run.rows:4} rows  {lost}  ({run.step})", flush=True)
    print(f"{options.times} kills, {damaged} of them lost something")
    return int(damaged > 0)


if __name__ == "__main__":
    sys.exit(main())
