"""Inject faults at random while searches and applications run: is anything lost, does anything hang, is an output
wrong, is a fault not reported?

    python benchmarks/faults.py --faults 50            # about half an hour on two busy cores; --seed draws others

A search of a small operator and two applications run at all times. The applications call kernels on the emulator and
compare the outputs with NumPy in float64. After each fault, what it damaged is put back, and:

    lost      rows that were committed before the fault are missing, and the fault did not delete them itself
    hung      a process makes no progress within `--patience` seconds
    wrong     an output differs from float64, or an application ends
    silent    an operation failed, or a source is not used, and no message names the reason

The exit code is 1 if there is any. A full disk needs the permission to mount a tmpfs and is left out without it.
"""

import argparse
import ctypes
import json
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from tuner.base.assets import ROOT
from tuner.store.sql import Store

OPERATORS = ROOT / "tests/support/operators"
RELOADED = 20  # calls after which an application reads its records and caches again
DISK_BYTES = 400 << 20
COLUMNS = ("faults", "lost", "hung", "wrong", "silent")
_DROP_CAPABILITY, _PERMISSION_CAPABILITIES = 24, (1, 2)  # PR_CAPBSET_DROP; CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH


# ---- an application ----


def say(**event: object) -> None:
    os.write(1, f"{json.dumps(event)}\n".encode())  # one write, for several threads say something


def right(rng: np.random.Generator) -> bool:
    from tuner import dispatcher

    x = rng.standard_normal((int(rng.integers(1, 64)), 32)).astype(np.float32)
    weight = rng.standard_normal(32).astype(np.float32)
    y, rms = dispatcher.row_norm(x, weight)  # type: ignore[attr-defined]  # an operator of TUNER_OPERATORS
    exact = np.sqrt(np.mean(x.astype(np.float64) ** 2, axis=1) + 1e-6)
    return bool(
        np.allclose(rms, exact, rtol=1e-5) and np.allclose(y, weight * x / exact[:, None], rtol=1e-4, atol=1e-5)
    )


def application(seed: int) -> NoReturn:
    """Call kernels until the process is killed; a line of JSON each for outputs, errors, warnings and forks."""
    from tuner import dispatcher
    from tuner.errors import TunerError

    rng, asked = np.random.default_rng(seed), threading.Event()
    warnings.showwarning = lambda message, *_, **__: say(warning=str(message))
    warnings.simplefilter("always")
    signal.signal(signal.SIGUSR1, lambda *_: asked.set())
    threading.Thread(target=fork_when_asked, args=(asked,), daemon=True).start()
    number = 0
    while True:
        try:
            if number % RELOADED == 0:
                dispatcher.reload()
                explained = dispatcher.explain("row_norm", np.ones((5, 32), np.float32), np.ones(32, np.float32))
                say(passed_over=explained.passed_over)
            say(right=right(rng))
        except TunerError as error:
            say(error=str(error))
        number += 1
        time.sleep(0.05)


def fork_when_asked(asked: threading.Event) -> None:
    while asked.wait():
        asked.clear()
        if not (pid := os.fork()):
            status = 1
            try:
                status = 0 if right(np.random.default_rng()) else 3
            finally:
                os._exit(status)
        say(child=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


# ---- the processes, as this program sees them ----


def without_permissions() -> None:
    """Make permissions bind a child also where this program runs as root."""
    if os.geteuid() == 0:
        for capability in _PERMISSION_CAPABILITIES:
            ctypes.CDLL(None).prctl(_DROP_CAPABILITY, capability, 0, 0, 0)


@dataclass
class Process:
    """A child whose output goes to a file, of which `new` returns what was added since `mark`."""

    command: list[str]
    log: Path
    environment: dict[str, str]
    killed: bool = False
    _marked: int = 0
    child: "subprocess.Popen[bytes]" = field(init=False)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        self.killed = False
        with self.log.open("ab") as log:
            self.child = subprocess.Popen(
                self.command, stdout=log, stderr=log, cwd=ROOT, env=self.environment, preexec_fn=without_permissions
            )

    def mark(self) -> None:
        self._marked = self.log.stat().st_size

    def new(self) -> str:
        return self.log.read_bytes()[self._marked :].decode(errors="replace")

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.new().splitlines(keepends=True) if line[0] + line[-1] == "{\n"]

    def kill(self) -> None:
        self.killed = True
        self.child.kill()
        self.child.wait()


class Scene:
    """A folder with a database, a file of records, caches, a search and two applications."""

    def __init__(self, folder: Path, logs: Path, patience_s: float, rng: random.Random) -> None:
        self.folder, self.logs, self.patience_s, self.rng = folder, logs, patience_s, rng
        self.database, self.records, self.cache = folder / "tuner.db", folder / "records.jsonl", folder / "cache"
        self.misses, self.searched = folder / "misses.jsonl", 0
        python = {"PYTHONPATH": str(ROOT), "TUNER_OPERATORS": str(OPERATORS), "TUNER_CACHE_DIR": str(self.cache)}
        stored = {"TUNER_DB": f"{self.database}:{self.records}", "TUNER_MISSES": str(self.misses), "TUNER_WATCH": "0.2"}
        self.environment = {**os.environ, **python, **stored, "XDG_DATA_HOME": str(folder / "data")}
        self.records.touch()
        self.applications: list[Process] = []
        self.search = Process(self._command(), logs / "search.log", self.environment)
        self.attempted, self.progressed = 0, time.monotonic()

    def begin(self) -> None:
        """Wait for the first search, whose records applications read, and start them."""
        self._until(lambda: self.search.child.poll() is not None, "the first search")
        with Store.open(self.database) as store:
            store.export_jsonl(self.records)
        self.applications = [
            Process([sys.executable, __file__, "--application", str(seed)], self.logs / f"{seed}.log", self.environment)
            for seed in (1, 2)
        ]
        self.go_on()

    def _command(self) -> list[str]:
        self.searched += 1
        rows, report = str(self.searched % 60 + 1), str(self.folder / "report.html")
        search = [
            sys.executable,
            "-m",
            "tuner",
            "search",
            "row_norm",
            "--gpu",
            "sm_80",
            "--rows",
            rows,
            "--budget",
            "4",
        ]
        return [*search, "--db", str(self.database), "--report", report, "--seed", str(self.searched)]

    @property
    def processes(self) -> list[Process]:
        return [self.search, *self.applications]

    def committed(self) -> set[str]:
        with closing(sqlite3.connect(self.database, timeout=60)) as connection:
            attempts, records = "SELECT uuid FROM attempts", "SELECT digest FROM records"
            return {key for table in (attempts, records) for (key,) in connection.execute(table)}

    def said(self) -> str:
        return "\n".join(process.new() for process in self.processes)

    def _until(self, done: Callable[[], bool], what: str, patience_s: float | None = None) -> bool:
        deadline = time.monotonic() + (patience_s or self.patience_s)
        while not done():
            if time.monotonic() > deadline:
                print(f"  {what} takes more than {patience_s or self.patience_s:.0f} s", file=sys.stderr)
                return False
            time.sleep(0.1)
        return True

    def wait(self, words: str, seconds: float) -> None:
        """Wait until a message matches, at most so long."""
        deadline = time.monotonic() + seconds
        while not re.search(words, self.said()) and time.monotonic() < deadline:
            time.sleep(0.2)

    def go_on(self) -> list[str]:
        """Restart what ended, and return the processes that make no progress.

        Applications have to finish another call. A search may take as long as `patience_s` for its next attempt, and
        meanwhile there are other faults.
        """
        if self.search.child.poll() is not None:
            self.search.command = self._command() if self.search.child.poll() == 0 else self.search.command
            self.search.start()
            self.progressed = time.monotonic()
        for process in self.applications:
            if process.child.poll() is not None:
                process.start()
        before = [process.log.stat().st_size for process in self.applications]
        hung = []
        for process, size in zip(self.applications, before, strict=True):
            working = lambda log=process.log, size=size: b'{"right"' in log.read_bytes()[size:]  # noqa: E731
            if not self._until(working, process.log.stem):
                hung.append(process)
        if (attempts := self.attempts()) != self.attempted:
            self.attempted, self.progressed = attempts, time.monotonic()
        if time.monotonic() - self.progressed > self.patience_s:
            hung.append(self.search)
        for process in hung:
            process.kill()
            process.start()
        return [process.log.stem for process in hung]

    def attempts(self) -> int:
        with closing(sqlite3.connect(self.database, timeout=60)) as connection:
            return int(connection.execute("SELECT count(*) FROM attempts").fetchone()[0])

    def close(self) -> None:
        for process in self.processes:
            process.kill()


# ---- faults ----


def one_of(scene: Scene) -> Process:
    return scene.rng.choice(scene.processes)


def kill(scene: Scene) -> None:
    one_of(scene).kill()


def stop_and_continue(scene: Scene) -> None:
    process = one_of(scene)
    process.child.send_signal(signal.SIGSTOP)
    time.sleep(scene.rng.uniform(0.5, 3))
    process.child.send_signal(signal.SIGCONT)


def fork(scene: Scene) -> None:
    for _ in range(5):
        scene.rng.choice(scene.applications).child.send_signal(signal.SIGUSR1)
        time.sleep(scene.rng.uniform(0, 0.5))
    scene.wait('"child"', 30)


@contextmanager
def copied(scene: Scene) -> Iterator[None]:
    """Put the database back afterwards, when the search has ended, for which the damage may be a reason."""
    scene.search.child.send_signal(signal.SIGSTOP)
    copy = scene.folder / "copy.db"
    with closing(sqlite3.connect(scene.database)) as source, closing(sqlite3.connect(copy)) as target:
        source.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        source.backup(target)
    yield
    scene.search.child.send_signal(signal.SIGCONT)
    scene.wait("damaged|not a SQLite database|malformed", 20)
    scene._until(lambda: scene.search.child.poll() is not None, "a search of a damaged database")
    if scene.search.child.poll() is None:
        scene.search.kill()
    for suffix in ("-wal", "-shm"):
        scene.database.with_name(f"{scene.database.name}{suffix}").unlink(missing_ok=True)
    copy.replace(scene.database)


def truncate(scene: Scene) -> None:
    with copied(scene):
        os.truncate(scene.database, scene.rng.randrange(100, scene.database.stat().st_size - 8192))


def flip(scene: Scene) -> None:
    with copied(scene), scene.database.open("r+b") as file:
        size = scene.database.stat().st_size
        for _ in range(size // 100):
            at = scene.rng.randrange(100, size)
            file.seek(at)
            (byte,) = file.read(1)
            file.seek(at)
            file.write(bytes([byte ^ scene.rng.randrange(1, 256)]))


def fill_disk(scene: Scene) -> None:
    filler = scene.folder / "filler"
    try:
        with filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 16))
    except OSError:
        pass
    scene.wait("No space|disk is full", 20)
    filler.unlink()


def forbid(scene: Scene) -> None:
    files = list(scene.folder.glob("tuner.db*"))
    modes = [path.stat().st_mode for path in files]
    for path in files:
        path.chmod(0)
    scene.wait("[Pp]ermission", 20)
    for path, mode in zip(files, modes, strict=True):
        path.chmod(mode) if path.exists() else None


def lock(scene: Scene) -> None:
    with closing(sqlite3.connect(scene.database, timeout=60, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        scene.wait("kept it locked", scene.rng.uniform(2, 10))
        connection.execute("ROLLBACK")


def delete_cache(scene: Scene) -> None:
    shutil.rmtree(scene.cache, ignore_errors=True)


def corrupt_cache(scene: Scene) -> None:
    """Replace files: what is loaded already is another inode."""
    files = [path for path in scene.cache.rglob("*") if path.is_file() and path.stat().st_size]
    for path in scene.rng.sample(files, min(5, len(files))):
        data = bytearray(path.read_bytes())
        data[scene.rng.randrange(len(data))] ^= 0xFF
        changed = path.with_name(f"{path.name}.changed")
        changed.write_bytes(data)
        changed.chmod(0o644)
        changed.replace(path)


def half_a_line(scene: Scene) -> None:
    before = scene.records.read_text()
    with scene.records.open("a") as records, scene.misses.open("a") as misses:
        records.write('{"config":{"threads":6')
        misses.write('{"operator":"row_norm","prob')
    scene.wait("records.jsonl, ", 30)
    changed = scene.records.with_suffix(".new")
    changed.write_text(before)
    changed.replace(scene.records)


@dataclass(frozen=True)
class Fault:
    name: str
    inject: Callable[[Scene], None]
    words: str = "(?!)"  # what a message about it says
    reported: bool = False  # whether there has to be a message in any case


FAULTS = (
    Fault("process killed (SIGKILL)", kill),
    Fault("process stopped and continued", stop_and_continue),
    Fault("process forked", fork),
    Fault("database truncated", truncate, "damaged|malformed|not a SQLite database|it is empty", reported=True),
    Fault("bytes of the database flipped", flip, "damaged|malformed|not a SQLite database|digest", reported=True),
    Fault("disk full", fill_disk, "No space|disk is full", reported=True),
    Fault("database without permission", forbid, "[Pp]ermission", reported=True),
    Fault("database locked by another process", lock, "kept it locked"),
    Fault("cache deleted", delete_cache, "cache"),
    Fault("cache entries corrupted", corrupt_cache, "cache"),
    Fault("half a line in JSON files", half_a_line, "records.jsonl, ", reported=True),
)


def injected(fault: Fault, scene: Scene) -> Counter[str]:
    """Inject a fault and return what went wrong."""
    outcome = Counter(faults=1)
    if scene.search.child.poll() not in (None, 0):  # the last fault ended it later
        outcome["silent"] += "error: " not in scene.search.new()
        outcome["hung"] += len(scene.go_on())
    for process in scene.processes:
        process.mark()
    committed = scene.committed()
    time.sleep(scene.rng.uniform(0, 2))
    fault.inject(scene)
    ended = [process for process in scene.processes if process.child.poll() not in (None, 0) and not process.killed]
    outcome["hung"] += len(scene.go_on())
    outcome["lost"] += len(committed - scene.committed())
    events = [event for process in scene.applications for event in process.events()]
    outcome["wrong"] = sum(event.get("right") is False or event.get("child", 0) != 0 for event in events)
    outcome["wrong"] += sum(process in scene.applications for process in ended)
    failed = ended or any("error" in event for event in events)
    outcome["silent"] += (bool(failed) or fault.reported) and not re.search(fault.words, scene.said())
    if any(outcome[column] for column in COLUMNS[1:]):
        messages = "\n".join(line for line in scene.said().splitlines() if line != '{"right": true}')
        print(f"{fault.name}: {dict(outcome)}\n{messages}", file=sys.stderr, flush=True)
    return outcome


@contextmanager
def disk() -> Iterator[tuple[Path, bool]]:
    """A small file system, or where it cannot be mounted a folder; and which it is."""
    with tempfile.TemporaryDirectory(prefix="tuner-faults-") as folder:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", folder]
        mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
        try:
            yield Path(folder), mounted
        finally:
            if mounted:
                subprocess.run(["umount", "-l", folder], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=50)
    parser.add_argument("--only", default="", help="a part of the names of faults")
    parser.add_argument(
        "--patience", type=float, default=900.0, help="seconds; a busy machine builds lost caches for minutes"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--application", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.application is not None:
        application(options.application)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the processes and the file system as well
    rng, began = random.Random(options.seed), time.monotonic()
    with disk() as (folder, mounted), tempfile.TemporaryDirectory(prefix="tuner-faults-logs-") as logs:
        faults = [
            fault for fault in FAULTS if options.only in fault.name and (mounted or fault.inject is not fill_disk)
        ]
        scene = Scene(folder, Path(logs), options.patience, rng)
        outcomes = {fault.name: Counter[str]() for fault in faults}
        try:
            scene.begin()
            for number in range(options.faults):
                fault = faults[number % len(faults)] if number < len(faults) else rng.choice(faults)
                outcomes[fault.name] += injected(fault, scene)
                print(f"{number + 1}/{options.faults} {fault.name}", file=sys.stderr, flush=True)
            finished = scene.attempts()
            while scene.attempts() == finished and scene.search.child.poll() is None and not scene.go_on():
                time.sleep(1)
            with Store.open(scene.database) as store:
                wrong = store.check()
        finally:
            scene.close()
    total = sum(outcomes.values(), Counter())
    width = max(map(len, outcomes))
    print(f"{'fault':{width}}  " + "  ".join(f"{column:>6}" for column in COLUMNS))
    for name, outcome in {**outcomes, "all": total}.items():
        print(f"{name:{width}}  " + "  ".join(f"{outcome[column]:6}" for column in COLUMNS))
    print(f"{scene.searched} searches, {time.monotonic() - began:.0f} s", *wrong, sep="\n", file=sys.stderr)
    return int(bool(wrong or any(total[column] for column in COLUMNS[1:])))


if __name__ == "__main__":
    sys.exit(main())
