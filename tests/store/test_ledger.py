"""Tests of the ledger: all sessions together start a config that crashes its process only as often as allowed."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tuner.base.assets import ROOT
from tuner.store.sql import Admission, Holder, Store

GPU = "H200"
ENTER = """
import sys, time
from tuner.store.sql import Holder, Store

with Store.open(sys.argv[1]) as store:
    print(store.enter(sys.argv[2], "a", Holder.current(), sys.argv[3], 2).value, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tuner.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with Store.open(path) as opened:
        yield opened


def enter(store: Store, uuid: str, holder: Holder | None = None) -> Admission:
    return store.enter(GPU, "a", holder or Holder.current(), uuid, 2)


def killed(path: Path, uuid: str) -> None:
    """A process that dies with the config."""
    command = [sys.executable, "-c", ENTER, str(path), GPU, uuid]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "entered\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_what_living_sessions_run_is_no_death(store: Store) -> None:
    assert [enter(store, uuid) for uuid in ("one", "two", "three")] == [
        Admission.ENTERED,
        Admission.ENTERED,
        Admission.BUSY,
    ]
    assert store.deaths(GPU)["a"] == 0
    store.leave("one")
    assert enter(store, "three") is Admission.ENTERED


def test_a_config_that_took_two_processes_down_is_banned_until_it_is_forgiven(store: Store, path: Path) -> None:
    killed(path, "one")
    assert store.deaths(GPU) == {"a": 1}
    assert enter(store, "two") is Admission.ENTERED
    store.bury("two")  # a device process died, and its session lives
    assert store.deaths(GPU) == {"a": 2}
    assert enter(store, "three") is Admission.BANNED
    assert store.enter("B200", "a", Holder.current(), "four", 2) is Admission.ENTERED
    store.forgive(GPU)
    assert enter(store, "three") is Admission.ENTERED


def test_forgiving_keeps_what_others_run(store: Store) -> None:
    enter(store, "one")
    store.forgive(GPU)
    assert [entry.uuid for entry in store.entries(GPU, "a")] == ["one"]


def test_an_entry_that_is_made_again_is_one(store: Store) -> None:
    assert enter(store, "one") is enter(store, "one") is Admission.ENTERED
    assert len(store.entries(GPU, "a")) == 1


def test_an_entry_says_what_its_process_was_at(store: Store) -> None:
    holder = Holder.current()
    enter(store, "one", holder)
    store.note("one", "mma_sync BM=64")
    (entry,) = store.entries(GPU, "a")
    assert (entry.note, entry.holder, entry.died) == ("mma_sync BM=64", holder, False)


def test_the_claims_of_a_process_that_ended_elsewhere_are_given_up(store: Store) -> None:
    far = replace(Holder.current(), host="elsewhere//")
    store.claim("scope", ["a"], far)
    store.claim("scope", ["b"], Holder.current())
    store.release_process(far)
    assert set(store.claimed("scope")) == {"b"}
