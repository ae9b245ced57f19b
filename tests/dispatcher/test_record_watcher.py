"""Tests of records that arrive while an application runs: they are used without errors, wrong outputs or a restart."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.arriving import Load, arrive, records
from tests.support.patience import GENEROUS_S
from tuner import dispatcher, operators
from tuner.arch import ARCHES
from tuner.base.assets import ROOT
from tuner.dispatcher import functions, kernels, record_watcher
from tuner.errors import TemplateError, UsageError
from tuner.spec.instance import Instance
from tuner.spec.problem import to_fields
from tuner.store import record_lines
from tuner.store.change_detection import Sources
from tuner.store.sql import Store

pytestmark = pytest.mark.usefixtures("own_folder")
WEIGHT = np.linspace(0.5, 2, 32, dtype=np.float32)
X = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
RIGHT = X / np.sqrt((X * X).mean(1, keepdims=True) + 1e-6) * WEIGHT


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file of records that this process watches; it is missing at first."""
    monkeypatch.setenv("TUNER_DB", str(tmp_path / "records.jsonl"))
    monkeypatch.setenv("TUNER_GPU", "sm_80")
    monkeypatch.setenv("TUNER_WATCH", "0.1")
    monkeypatch.setattr(functions, "_dispatcher", None)
    yield tmp_path / "records.jsonl"
    monkeypatch.setenv("TUNER_WATCH", "")
    record_watcher.watch(lambda: None)  # ends the thread


def configs() -> list[Instance]:
    """Return records of both implementations, each with several configs."""
    operator, arch = operators.load("row_norm"), ARCHES["sm_80"]
    problem = operator.problem(width=32, rows=64)
    spaces = [(one, one.space(problem, arch)) for one in operators.implementations("row_norm")]
    return [Instance(operator, one, problem, config) for one, space in spaces for config in list(space)[:3]]


def call(rows: int = 64) -> None:
    y, _ = dispatcher.row_norm(X[:rows], WEIGHT)
    assert np.allclose(y, RIGHT[:rows], atol=1e-5)


def runs() -> object:
    return dict(dispatcher.explain("row_norm", X, WEIGHT).config)


@pytest.mark.parametrize("rounds", [1, pytest.param(15, marks=pytest.mark.slow)])
def test_an_application_under_load_takes_up_every_record_and_stays_right(database: Path, rounds: int) -> None:
    each = records(*configs(), target="sm_80", arch="sm_80") * rounds
    load = Load(lambda number: call(64 - number), threads=8)  # eight lengths of one kernel
    with load.running():
        served = arrive(database, each, runs, GENEROUS_S)
    assert load.errors == []
    assert served == len(each)
    assert all(len(seconds) > 1 for seconds in load.seconds)


def test_calls_go_on_with_the_old_kernel_until_the_new_one_is_ready(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call()
    before = runs()
    other = next(one for one in configs() if to_fields(one.config) != before)
    compiling, go_on = threading.Event(), threading.Event()
    load = kernels.Kernels.load

    def held(self: kernels.Kernels, *arguments: object) -> object:
        if threading.current_thread() is not threading.main_thread():
            compiling.set()
            go_on.wait(GENEROUS_S)
        return load(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(kernels.Kernels, "load", held)
    record_lines.write(database, records(other, target="sm_80", arch="sm_80"))
    assert compiling.wait(GENEROUS_S)
    call()
    assert runs() == before
    go_on.set()
    wait_until(lambda: runs() == to_fields(other.config))
    call()


def test_a_record_whose_kernel_does_not_load_leaves_the_old_one(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call()
    kernel = functions._dispatcher
    load = kernels.Kernels.load

    def broken(self: kernels.Kernels, *arguments: object) -> object:
        if threading.current_thread() is not threading.main_thread():
            raise TemplateError("it does not compile")
        return load(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(kernels.Kernels, "load", broken)
    with pytest.warns(record_watcher.RenewalWarning, match="keeps its kernel: it does not compile"):
        record_lines.write(database, records(configs()[-1], target="sm_80", arch="sm_80"))
        wait_until(lambda: functions._dispatcher is not kernel)
    call()


def test_a_source_that_cannot_be_read_any_more_leaves_the_old_records(database: Path) -> None:
    record_lines.write(database, records(configs()[-1], target="sm_80", arch="sm_80"))
    call()
    served = runs()
    with pytest.warns(record_watcher.RenewalWarning, match="is no text file"):
        database.write_bytes(b"\xff\xfe")
        time.sleep(0.5)
    assert runs() == served
    call()


def test_nothing_is_watched_unless_it_is_asked_for(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TUNER_WATCH")
    dispatcher.reload()
    call()
    assert record_watcher._Process.watcher is None
    assert functions._dispatcher is not None and functions._dispatcher._requests is None
    assert not database.exists()


@pytest.mark.parametrize("text", ["x", "-1", "0.01", "nan"])
def test_what_is_no_interval_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_WATCH", text)
    with pytest.raises(UsageError, match="TUNER_WATCH"):
        record_watcher.watch(lambda: None)


def test_a_child_watches_too(database: Path) -> None:
    """A forked worker starts its own thread."""
    program = """
import os, sys, time
import numpy as np
from tests.dispatcher.test_record_watcher import WEIGHT, X, configs, runs
from tests.support.arriving import arrive, records
from tuner import dispatcher, operators
from tuner.base.assets import ROOT
from pathlib import Path

operators.add_folder(ROOT / "tests" / "support" / "operators")
dispatcher.row_norm(X, WEIGHT)
if not os.fork():
    each = records(*configs()[:2], target="sm_80", arch="sm_80")
    os._exit(0 if arrive(Path(sys.argv[1]), each, runs, 60) == 2 else 1)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    command = [sys.executable, "-W", "ignore", "-c", program, str(database)]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"TUNER_WATCH": "0.1"}, check=True)


def test_attempts_are_no_change_and_records_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.support.store_factory import attempt, record

    monkeypatch.setenv("TUNER_DB", str(tmp_path / "tuner.db"))
    sources = Sources()
    with Store.open(tmp_path / "tuner.db") as store:
        assert sources.changed()  # a database is there
        store.append([attempt()])
        assert not sources.changed()
        store.promote(record())
        assert sources.changed()
        assert not sources.changed()


def wait_until(condition: object) -> None:
    deadline = time.monotonic() + GENEROUS_S
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.02)
