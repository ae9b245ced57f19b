"""Tests of misses: logged by many processes, then read and searched, most frequent first."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.support.served import snapshot
from tuner import operators
from tuner.arch import ARCHES, gpu
from tuner.base.assets import ROOT
from tuner.base.canonical_json import encode
from tuner.cli.app import build
from tuner.dispatcher import miss_log
from tuner.dispatcher.calls import Dispatcher
from tuner.dispatcher.miss_log import MissLog, MissLogWarning
from tuner.errors import StoreError
from tuner.spec.instance import Instance
from tuner.spec.problem import canonical
from tuner.store import misses
from tuner.store.misses import FullError, Missed
from tuner.store.records import Snapshot
from tuner.store.sql import Store

SERVER = os.environ.get("TUNER_TEST_POSTGRES", "")
pytestmark = pytest.mark.usefixtures("own_folder")
WEIGHT = np.ones(32, np.float32)


def rows(count: int) -> np.ndarray:
    return np.ones((count, 32), np.float32)


def missed(calls: int = 1, **problem: int) -> Missed:
    return Missed("scan", encode({"T": 1000} | problem), "H200", "default", calls)


def written(path: Path) -> list[tuple[int, int, str]]:
    """(rows, calls, what ran) of each line."""
    lines = [json.loads(line) for line in path.read_text().splitlines() if line]
    return [(line["problem"]["rows"], line["calls"], line["ran"]) for line in lines]


def test_a_problem_is_logged_at_its_first_call_and_whenever_its_calls_have_doubled(tmp_path: Path) -> None:
    at = Dispatcher(Snapshot.load([]), log=MissLog(str(tmp_path / "misses.jsonl")))
    for _ in range(11):
        at.call("row_norm", rows(5), WEIGHT)
    at.call("row_norm", rows(7), WEIGHT)
    assert written(tmp_path / "misses.jsonl") == [(5, calls, "default") for calls in (1, 1, 2, 4)] + [(7, 1, "default")]
    at.close()
    result, refused = misses.read(tmp_path / "misses.jsonl")
    assert [(json.loads(each.problem)["rows"], each.calls) for each in result] == [(5, 11), (7, 1)]
    assert refused == []


def test_a_call_that_its_own_record_serves_is_not_logged_and_one_of_a_neighbour_is(tmp_path: Path) -> None:
    operator = operators.load("row_norm")
    implementation = operators.implementations("row_norm")[0]
    tuned = Instance.default(operator, implementation, operator.problem(width=32, rows=5), ARCHES["sm_80"])
    records = snapshot(tuned, target="sm_80", arch="sm_80")
    at = Dispatcher(records, (gpu("sm_80"),), log=MissLog(str(tmp_path / "misses.jsonl")))
    at.call("row_norm", rows(5), WEIGHT)
    assert not (tmp_path / "misses.jsonl").exists()
    for count in (7, 9, 11, 9):  # from the third on by a trace
        at.call("row_norm", rows(count), WEIGHT)
    assert written(tmp_path / "misses.jsonl") == [(count, 1, "nearest") for count in (7, 9, 11, 9)]
    assert at.misses() == ()


def test_nothing_is_logged_and_no_tally_is_kept_of_neighbours_without_a_log() -> None:
    operator = operators.load("row_norm")
    tuned = Instance.default(
        operator, operators.implementations("row_norm")[0], operator.problem(width=32, rows=5), ARCHES["sm_80"]
    )
    at = Dispatcher(snapshot(tuned, target="sm_80", arch="sm_80"), (gpu("sm_80"),))
    at.call("row_norm", rows(7), WEIGHT)
    assert [tally for _, tally in at._prepared.values()] == [None]


KILLED = """
import os, random, signal, sys, time
import numpy as np
from tuner import dispatcher, operators
from tuner.base.assets import ROOT

operators.add_folder(ROOT / "tests" / "support" / "operators")
call = lambda rows: dispatcher.row_norm(np.ones((rows, 32), np.float32), np.ones(32, np.float32))
call(9999)  # compiles the kernel


def work(number):
    calls = open(f"{sys.argv[1]}/{number}", "wb", buffering=0)
    for count in range(100_000):
        rows = 8 * count + number + 1  # a problem of this process alone
        call(rows)
        calls.write(b"%d\\n" % rows)


children = []
for number in range(8):
    if not (child := os.fork()):
        work(number)
    children.append(child)
files = [f"{sys.argv[1]}/{number}" for number in range(8)]
while not all(os.path.exists(file) and os.path.getsize(file) for file in files):
    time.sleep(0.01)
random.seed(0)
for child in random.sample(children, 8):
    time.sleep(random.uniform(0.0, 0.3))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
"""


def test_eight_processes_that_are_killed_lose_at_most_their_last_line(tmp_path: Path) -> None:
    path = tmp_path / "misses.jsonl"
    environment = {"TUNER_MISSES": str(path), "TUNER_DB": str(tmp_path / "none.jsonl"), "TUNER_GPU": "sm_80"}
    command = [sys.executable, "-W", "ignore", "-c", KILLED, str(tmp_path)]
    subprocess.run(command, cwd=ROOT, env=os.environ | environment, check=True)
    result, refused = misses.read(path)
    logged = {json.loads(each.problem)["rows"] for each in result}
    returned = {int(line) for number in range(8) for line in (tmp_path / str(number)).read_text().split()}
    assert returned <= logged and len(refused) <= 8
    assert len(returned) > 8, "the processes were killed before they did anything"


def test_a_child_logs_its_own_calls_and_the_parent_its_own(tmp_path: Path) -> None:
    program = """
import os, sys
import numpy as np
from tuner import dispatcher, operators
from tuner.base.assets import ROOT

operators.add_folder(ROOT / "tests" / "support" / "operators")
call = lambda: dispatcher.row_norm(np.ones((5, 32), np.float32), np.ones(32, np.float32))
for _ in range(3):
    call()
if not (child := os.fork()):
    call()
    from tuner.dispatcher.untuned_warnings import _flush
    _flush()
    os._exit(0)
os.waitpid(child, 0)
"""
    environment = {"TUNER_MISSES": str(tmp_path / "misses.jsonl"), "TUNER_DB": str(tmp_path / "none.jsonl")}
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], cwd=ROOT, env=os.environ | environment, check=True)
    (result,), _ = misses.read(tmp_path / "misses.jsonl")
    assert result.calls == 4


def test_a_line_that_was_cut_off_does_not_take_the_next_one_with_it(tmp_path: Path) -> None:
    path = tmp_path / "misses.jsonl"
    misses.append(path, missed(1))
    path.write_text(path.read_text()[:-9])
    misses.append(path, missed(2))
    result, refused = misses.read(path)
    assert [each.calls for each in result] == [2]
    assert len(refused) == 1 and "line 2: it is no miss" in refused[0]


@pytest.mark.parametrize(
    "change",
    [
        {"calls": 0},
        {"calls": "1"},
        {"calls": True},
        {"format": 2},
        {"ran": "x"},
        {"problem": {"T": [1]}},
        {"problem": {"T": "\x1b[2J"}},
        {"gpu": 5},
        {"operator": None},
    ],
    ids=str,
)
def test_what_is_no_miss_is_passed_over_by_its_line(change: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "misses.jsonl"
    misses.append(path, missed(3))
    line = json.loads(path.read_text()) | change
    path.write_text(path.read_text() + "\n" + json.dumps(line))
    result, refused = misses.read(path)
    assert [each.calls for each in result] == [3]
    assert len(refused) == 1 and "line 3" in refused[0]


def test_a_file_at_its_limit_takes_no_more_and_a_dispatcher_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "misses.jsonl"
    misses.append(path, missed(), limit=1)
    with pytest.raises(FullError, match="search them and remove the file"):
        misses.append(path, missed(), limit=1)
    monkeypatch.setattr(misses.append, "__defaults__", (1,))
    at = Dispatcher(Snapshot.load([]), log=MissLog(str(path)))
    with pytest.warns(MissLogWarning, match="TUNER_MISSES is ignored from now on"):
        at.call("row_norm", rows(5), WEIGHT)
    at.call("row_norm", rows(7), WEIGHT)
    assert len(misses.read(path)[0]) == 1


def test_a_place_that_cannot_be_written_is_one_warning(tmp_path: Path) -> None:
    at = Dispatcher(Snapshot.load([]), log=MissLog(str(tmp_path / "no folder" / "misses.jsonl")))
    with pytest.warns(MissLogWarning, match="No such file or directory") as caught:
        at.call("row_norm", rows(5), WEIGHT)
        at.call("row_norm", rows(7), WEIGHT)
    assert len([warning for warning in caught if warning.category is MissLogWarning]) == 1


def test_the_environment_names_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TUNER_MISSES", raising=False)
    assert miss_log.of_environment() is None
    monkeypatch.setenv("TUNER_MISSES", str(tmp_path / "misses.jsonl"))
    log = miss_log.of_environment()
    assert log is not None and miss_log.of_environment() is log


@pytest.mark.parametrize("kind", ["file", *(["server"] if SERVER else [])])
def test_a_database_adds_up_the_calls_of_a_problem(kind: str, tmp_path: Path) -> None:
    with Store.open({"file": tmp_path / "tuner.db", "server": SERVER}[kind]) as store:
        before = {miss.problem: miss.calls for miss in store.misses()[0]}
        store.add_misses([missed(1), missed(5, T=7)])
        store.add_misses([missed(9)])
        after = {miss.problem: miss.calls for miss in store.misses()[0]}
    added = {problem: calls - before.get(problem, 0) for problem, calls in after.items()}
    assert added == {missed().problem: 10, missed(T=7).problem: 5}


@pytest.mark.skipif(not SERVER, reason="TUNER_TEST_POSTGRES names no server")
def test_a_server_is_sent_misses_by_a_thread() -> None:
    log = MissLog(SERVER)
    mine = Missed("scan", encode({"T": random.randrange(10**9)}), "H200", "default", 3)
    log.add(mine)
    log.add(mine)
    log.close()
    with Store.open(SERVER) as store:
        assert [miss.calls for miss in store.misses()[0] if miss.problem == mine.problem] == [6]


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A log of three problems of row_norm and of strangers, and a database with a record of one of them."""
    operator = operators.load("row_norm")
    problems = {count: canonical(operator.problem(width=32, rows=count)) for count in (4, 5, 6)}
    for count, calls in ((5, 2), (4, 1), (6, 7), (5, 90)):
        misses.append(tmp_path / "misses.jsonl", Missed("row_norm", problems[count], "sm_80", "default", calls))
    misses.append(tmp_path / "misses.jsonl", missed(1000))
    misses.append(tmp_path / "misses.jsonl", Missed("row_norm", problems[5], "GPU of tomorrow", "default", 1))
    return tmp_path


def test_misses_are_searched_the_most_frequent_first_and_those_with_a_record_are_left_out(stored: Path) -> None:
    def search(*options: str) -> str:
        words = ["search", "--misses", str(stored / "misses.jsonl"), "--db", str(stored / "tuner.db"), *options]
        done = CliRunner().invoke(build(), [*words, "--budget", "1", "--workers", "1", "--quiet"])
        assert done.exit_code == 0, done.output
        return done.output

    first = search("--gpu", "sm_80")
    assert "passed over: scan T=1000 on H200" not in first  # of another GPU
    with Store.open(stored / "tuner.db") as store:
        searched = [json.loads(study.problem)["rows"] for study in store.studies()]
    assert searched[:3] == [5, 6, 4]
    assert "3 to search, 0 have a record" in first
    assert "0 to search, 3 have a record" in search("--gpu", "sm_80")


def test_operators_and_gpus_that_are_unknown_here_are_passed_over_by_name(tmp_path: Path) -> None:
    misses.append(tmp_path / "misses.jsonl", missed(1000))
    misses.append(tmp_path / "misses.jsonl", Missed("row_norm", "{}", "GPU of tomorrow", "default", 1))
    words = ["search", "--misses", str(tmp_path / "misses.jsonl"), "--db", str(tmp_path / "tuner.db")]
    done = CliRunner().invoke(build(), words)
    assert done.exit_code == 0
    result = " ".join(done.output.split())
    assert "passed over: scan T=1000 on H200 (1000 calls):" in result
    assert "on GPU of tomorrow (1 calls): unknown GPU" in result


def test_a_missing_log_is_an_error(tmp_path: Path) -> None:
    done = CliRunner().invoke(build(), ["search", "--misses", str(tmp_path / "none.jsonl")])
    assert done.exit_code == StoreError.exit_code
    assert "cannot read the misses" in done.output


def test_the_option_has_help_of_its_own() -> None:
    done = CliRunner().invoke(build(), ["search", "--misses", "misses.jsonl", "--help"])
    assert done.exit_code == 0
    assert "--misses" in done.output and "--budget" in done.output and "--implementation" not in done.output
