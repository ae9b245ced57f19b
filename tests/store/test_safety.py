"""Tests of killed writers and of several writers: no stored data is lost."""

import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.patience import GENEROUS_S
from tests.support.store_factory import attempt
from tuner.base.assets import ROOT
from tuner.store import read
from tuner.store.sql import Store

WRITER = """
import os, sys
from tests.support.store_factory import attempt, record
from tuner.store.sql import Store

with Store.open(sys.argv[1]) as store:
    for number in range(int(sys.argv[2])):
        store.append([attempt(number), attempt(number)])
        store.promote(record(number, problem={"T": os.getpid()}))
        print(number, flush=True)
"""


def writer(path: Path, rounds: int) -> "subprocess.Popen[str]":
    """A process that appends two attempts and promotes a record a round, and then says which round that was."""
    command = [sys.executable, "-c", WRITER, str(path), str(rounds)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def stored(path: Path) -> list[int]:
    with Store.open(path) as store:
        assert store.check() == []
        return [int(each.attempt.config["BT"]) for each in store.attempts("scan")]


@pytest.mark.parametrize("rounds", [1, 100])
def test_a_writer_that_is_killed_loses_at_most_its_open_transaction(tmp_path: Path, rounds: int) -> None:
    path = tmp_path / "tuner.db"
    process = writer(path, 1_000_000)
    assert process.stdout is not None
    for _ in range(rounds):
        last = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    printed = [last, *map(int, process.stdout.read().split())]
    process.wait()
    result = stored(path)
    assert result[::2] == result[1::2] == list(range(len(result) // 2))  # whole transactions, none missing
    assert printed[-1] + 1 <= len(result) // 2 <= printed[-1] + 2


def test_processes_that_make_and_fill_one_database_at_once_all_succeed(tmp_path: Path) -> None:
    path = tmp_path / "tuner.db"
    processes = [writer(path, 60) for _ in range(3)]
    for process in processes:
        process.communicate(timeout=GENEROUS_S)
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert sorted(stored(path)) == sorted(list(range(60)) * 6)


def test_a_long_look_does_not_hold_up_a_writer_and_goes_on_seeing_what_was(tmp_path: Path) -> None:
    path = tmp_path / "tuner.db"
    count = "SELECT count(*) FROM attempts"
    with Store.open(path, patience_s=0.01) as store, closing(sqlite3.connect(path, isolation_level=None)) as looking:
        looking.execute("BEGIN")
        before = looking.execute(count).fetchone()
        store.append([attempt()])
        assert looking.execute(count).fetchone() == before == (0,)
        assert len(store.attempts("scan")) == 1


APPEND = """
import sys
from tests.support.store_factory import attempt
from tuner.store.sql import Store

with Store.open(sys.argv[1]) as store:
    store.append([attempt(2)])
"""


def test_reading_records_keeps_the_locks_of_a_writer_in_the_same_process(tmp_path: Path) -> None:
    path = tmp_path / "tuner.db"
    with Store.open(path) as store:
        store.append([attempt(1)])
        read.open_source(path)  # any descriptor of the file that it closes releases the locks of `store`
        subprocess.run([sys.executable, "-c", APPEND, str(path)], cwd=ROOT, check=True)  # would delete the log
        store.append([attempt(3)])
        assert stored(path) == [1, 2, 3]


FORK = """
import os, sys
from tests.support.store_factory import attempt
from tuner.store.sql import Store

(ready, begun), (wait, go) = os.pipe(), os.pipe()
store = Store.open(sys.argv[1])
store.append([attempt(1)])
pid = os.fork()
if not pid:
    store.append([attempt(2)])
    os.write(begun, b"x")
    os.read(wait, 1)
    store.append([attempt(3)])
    os._exit(0)
os.read(ready, 1)
store.close()  # deletes the log if it is the last connection to the file
os.write(go, b"x")
assert os.waitpid(pid, 0)[1] == 0
"""


def test_a_child_goes_on_writing_after_its_parent_closed_the_database(tmp_path: Path) -> None:
    path = tmp_path / "tuner.db"
    subprocess.run([sys.executable, "-c", FORK, str(path)], cwd=ROOT, check=True)
    assert stored(path) == [1, 2, 3]
