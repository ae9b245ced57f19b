"""Tests of claims: at most one living process evaluates a config."""

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tuner.base.assets import ROOT
from tuner.store.sql import Holder, Store
from tuner.store.sql.claims import LEASE_S, scope

HERE = scope("scan", "{}", "H200", "predicted/1")
CLAIM = """
import sys, time
from tuner.store.sql import Holder, Store

with Store.open(sys.argv[1]) as store:
    print(len(store.claim(sys.argv[2], ["a", "b"], Holder.current())), flush=True)
    time.sleep(600)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tuner.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with Store.open(path) as opened:
        yield opened


def test_what_one_holds_no_other_gets_until_it_is_released(store: Store) -> None:
    one, other = Holder.current(), Holder.current()
    assert store.claim(HERE, ["a", "b"], one) == {"a", "b"}
    assert store.claim(HERE, ["b", "c"], other) == {"c"}
    assert store.claimed(HERE) == {"a": one, "b": one, "c": other}
    store.release(HERE, ["a", "c"], one)  # c is not its own
    assert store.claimed(HERE) == {"b": one, "c": other}
    assert store.claim(HERE, ["a"], other) == {"a"}


def test_a_holder_keeps_what_it_claims_again(store: Store) -> None:
    one = Holder.current()
    assert store.claim(HERE, ["a"], one) == store.claim(HERE, ["a"], one) == {"a"}
    assert store.claim(HERE, [], one) == set()


def test_another_scope_is_another_claim(store: Store) -> None:
    store.claim(HERE, ["a"], Holder.current())
    assert store.claim(scope("scan", "{}", "B200", "predicted/1"), ["a"], Holder.current()) == {"a"}


def test_a_killed_process_holds_nothing(store: Store, path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", CLAIM, path, HERE], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "2\n"
    assert store.claim(HERE, ["a", "b"], Holder.current()) == set()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert store.claimed(HERE) == {}
    assert store.claim(HERE, ["a", "b"], Holder.current()) == {"a", "b"}


def test_a_number_that_another_process_has_now_is_not_the_holder(store: Store) -> None:
    gone = replace(Holder.current(), token="gone", pid=os.getpid(), process="1")  # began just after the boot
    store.claim(HERE, ["a"], gone)
    assert store.claim(HERE, ["a"], Holder.current()) == {"a"}


def test_a_holder_on_another_machine_is_believed_until_its_lease_ends(store: Store, path: Path) -> None:
    far = replace(Holder.current(), host="elsewhere//", pid=1)
    store.claim(HERE, ["a"], far)
    assert store.claim(HERE, ["a"], Holder.current()) == set()
    pass_time(path, LEASE_S - 60)
    store.renew_claims(far)
    pass_time(path, LEASE_S - 60)
    assert store.claimed(HERE) == {"a": far}
    pass_time(path, 61)
    assert store.claim(HERE, ["a"], Holder.current()) == {"a"}


def pass_time(path: Path, seconds: float) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE claims SET expires = expires - ?", (seconds,))
