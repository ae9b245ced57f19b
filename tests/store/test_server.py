"""Tests of a PostgreSQL server with many processes: rows are stored once, and a lost connection loses nothing."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

psycopg = pytest.importorskip("psycopg", reason="no psycopg: pip install '.[postgres]'")

from tests.support.patience import GENEROUS_S  # noqa: E402
from tests.support.postgres import LossyProxy, binaries, server  # noqa: E402
from tests.support.store_factory import OK, attempt, race, record, study  # noqa: E402
from tuner.base.assets import ROOT  # noqa: E402
from tuner.errors import StoreError  # noqa: E402
from tuner.store import record_lines  # noqa: E402
from tuner.store.sql import Store  # noqa: E402

if TYPE_CHECKING:
    from tests.support.postgres import Server

pytestmark = pytest.mark.skipif(binaries() is None, reason="no PostgreSQL server: apt-get install postgresql")
RECORDS = [record(number, problem={"T": number}) for number in range(100)]


@pytest.fixture(scope="module")
def running() -> "Iterator[Server]":
    with server() as started:
        yield started


@pytest.fixture
def url(running: "Server") -> str:
    return running.database()


def python(code: str, *arguments: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(processes: "list[subprocess.Popen[str]]") -> list[str]:
    outputs = [process.communicate(timeout=GENEROUS_S) for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), [error for _, error in outputs]
    return [output for output, _ in outputs]


HAMMER = """
import sys
from pathlib import Path
from tests.store.test_server import RECORDS
from tuner.store.sql import Store

with Store.open(sys.argv[1]) as store:
    mine = RECORDS if sys.argv[3] == "0" else RECORDS[::-1]  # in either order: a deadlock is repeated
    for number, each in enumerate(mine):
        store.promote(each)
        store.add_device("H200", {"driver": str(number)})
        if number % 25 == 0:
            store.import_jsonl(Path(sys.argv[2]))
"""


def test_equal_records_and_facts_of_four_processes_are_stored_once(url: str, tmp_path: Path) -> None:
    record_lines.write(tmp_path / "records.jsonl", RECORDS)
    finish([python(HAMMER, url, tmp_path / "records.jsonl", number % 2) for number in range(4)])
    with Store.open(url) as store:
        assert sorted(store.all_records(), key=lambda one: one.config["BT"]) == RECORDS
        assert sorted(int(facts.facts["driver"]) for facts in store.devices()) == list(range(100))


def test_the_url_with_its_driver_names_the_same_database(url: str) -> None:
    with Store.open(url) as store:
        store.promote(record())
    with Store.open(url.replace("postgresql:", "postgresql+psycopg:")) as store:
        assert store.records() == [record()]
        assert store.place == url


def test_a_lost_answer_to_a_commit_stores_rows_once(running: "Server") -> None:
    proxy = LossyProxy(running.port)
    with Store.open(running.database(proxy.port)) as store:

        def lossy() -> Store:
            proxy.armed = True
            return store

        number = lossy().begin_study(**study())
        row, other = lossy().append([attempt(16), attempt(16)], number)
        lossy().append_verdict(row, OK)
        lossy().promote(record())
        lossy().append_race(race())
        lossy().add_device("H200", {"driver": "570"})
        lossy().end_study(number, "done")
        assert proxy.lost == 7
        assert [stored.id for stored in store.attempts("scan")] == [row, other]
        assert store.verdicts([row, other]) == {row: OK}
        assert (store.all_records(), store.races("scan"), len(store.devices())) == ([record()], [race()], 1)
        assert [(stored.id, stored.why) for stored in store.studies()] == [(number, "done")]
        with pytest.raises(StoreError, match="no study 1 is running"):
            store.end_study(number, "done twice")
    proxy.close()


def test_a_session_that_is_ended_by_the_server_goes_on(url: str) -> None:
    with Store.open(url) as store, psycopg.connect(url, autocommit=True) as other:
        store.append([attempt(16)])
        other.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
        store.append([attempt(32)])
        assert [stored.attempt.config["BT"] for stored in store.attempts("scan")] == [16, 32]


def test_a_server_that_stays_away_is_an_error_after_the_patience() -> None:
    with server() as own, Store.open(own.database(), patience_s=0.3) as store:
        own.stop()
        with pytest.raises(StoreError, match=r"cannot use the database postgresql://tuner@127\.0\.0\.1"):
            store.append([attempt()])


def test_a_server_without_a_free_connection_says_what_to_do() -> None:
    with server(most=8) as own:
        url, held = own.database(), []
        with pytest.raises(psycopg.OperationalError):
            while True:
                held.append(psycopg.connect(url))
        with pytest.raises(
            StoreError, match="no free connection: end processes that use it, raise its max_connections"
        ):
            Store.open(url, patience_s=0.2)
        releasing = threading.Timer(0.5, lambda: [connection.close() for connection in held])
        releasing.start()
        with Store.open(url, patience_s=GENEROUS_S) as store:  # waits for a connection that others give back
            store.append([attempt()])


SEARCH = ["search", "flash_attention", "--gpu", "sm_80", "--head-dim", "40", "--implementation", "mma_sync"]


def test_a_search_outlives_a_restart_of_the_server(tmp_path: Path) -> None:
    with server() as own:
        url = own.database()
        options = ["--budget", "12", "--workers", "1", "--quiet", "--json", "--report", str(tmp_path / "report.html")]
        command = [sys.executable, "-m", "tuner", *SEARCH, *options, "--db", url]
        search = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        with Store.open(url) as store:
            while not store.attempts("flash_attention"):
                assert search.poll() is None, search.communicate()
                time.sleep(0.05)
        own.stop()
        time.sleep(1.0)
        own.start()
        output, errors = search.communicate(timeout=GENEROUS_S)
        assert search.returncode == 0, errors
        assert '"tried":12' in output.replace(" ", "")
        with Store.open(url) as store:
            configs = [str(stored.attempt.config) for stored in store.attempts("flash_attention")]
            assert len(configs) == len(set(configs)) == 12


CLAIMANT = """
import sys, time
from tuner.store.sql import Holder, Store

with Store.open(sys.argv[1]) as store:
    held = store.claim("scope", [str(number) for number in range(50)], Holder.current())
    print(" ".join(sorted(held)), flush=True)
    time.sleep(float(sys.argv[2]))
"""


def test_processes_share_configs_and_the_dead_hold_none(url: str) -> None:
    processes = [python(CLAIMANT, url, 600) for _ in range(4)]
    held = [process.stdout.readline().split() for process in processes if process.stdout is not None]
    assert sorted(config for part in held for config in part) == sorted(map(str, range(50)))
    for process in processes:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    (output,) = finish([python(CLAIMANT, url, 0)])
    assert len(output.split()) == 50
