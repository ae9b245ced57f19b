"""Tests of merging databases: each row is added once, from any version, and a search resumes from all of them."""

import json
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from typer.testing import CliRunner

from tests.support.recorded import OPERATOR, PROBLEM, Recorded
from tests.support.store_factory import OK, attempt, proof, race, record
from tests.support.store_factory import study as session_values
from tuner.arch import gpu
from tuner.cli.app import build
from tuner.errors import StoreError, UsageError
from tuner.results.attempt import Evidence
from tuner.search import study
from tuner.store.read import MIGRATIONS, VERSION_TABLE
from tuner.store.sql import Store
from tuner.store.sql.merge import LEFT, MERGED, merge
from tuner.store.sql.schema import METADATA

SERVER = os.environ.get("TUNER_TEST_POSTGRES", "")
PLACES = ["file", *(["server"] if SERVER else [])]


def filled(database: str | Path, *numbers: int) -> str:
    """A database with a study for each number, which tried one config, checked it and promoted it."""
    with Store.open(database) as store:
        for number in numbers:
            session = store.begin_study(**session_values(seed=number))
            (row,) = store.append([attempt(number)], session)
            store.append_verdict(row, OK, "code")
            store.promote(record(number, created=f"2026-11-21T10:00:{number % 60:02}+00:00"), session)
            store.append_race(race(floor_us=float(number)))
            store.append_proof(proof(driver=str(number)))
            store.add_device("H200", {"driver": number})
            store.end_study(session, "budget")
    return str(database)


def contents(database: str) -> dict[str, list[object]]:
    with Store.open(database) as store:
        tried = store.attempts("scan")
        sessions = {session.id: session.seed for session in store.studies()}
        verdicts = store.verdicts([stored.id for stored in tried])
        return {
            "attempts": sorted((sessions.get(candidate.study or 0), str(candidate.attempt)) for candidate in tried),
            "verdicts": sorted(str(verdicts[candidate.id]) for candidate in tried if candidate.id in verdicts),
            "records": sorted(map(str, store.all_records())),
            "races": sorted(map(str, store.races("scan"))),
            "proofs": sorted(map(str, store.proofs("scan", "H200"))),
            "devices": sorted(str(device.facts) for device in store.devices()),
            "ended": sorted(str((session.seed, session.why)) for session in store.studies()),
        }


@pytest.fixture(params=PLACES)
def elsewhere(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the folder of a second person's database."""
    if request.param == "file":
        return str(tmp_path / "theirs.db")
    engine = create_engine(SERVER.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))
    engine.dispose()
    return SERVER


def test_every_table_is_merged_or_left_on_purpose() -> None:
    assert {table.table for table in MERGED} | set(LEFT) == set(METADATA.tables.values())


def test_two_databases_merged_hold_what_both_held(tmp_path: Path, elsewhere: str) -> None:
    into = filled(tmp_path / "ours.db", 1, 2)
    filled(elsewhere, 3, 4)
    assert merge(into, elsewhere).added == dict.fromkeys((table.table.name for table in MERGED), 2)
    both = filled(tmp_path / "both.db", 1, 2, 3, 4)
    assert contents(into) == contents(both)


def test_a_server_takes_a_file(tmp_path: Path, elsewhere: str) -> None:
    source = filled(tmp_path / "source.db", 1, 2)
    merge(elsewhere, source)
    assert contents(elsewhere) == contents(source)


def test_a_second_merge_adds_nothing(tmp_path: Path, elsewhere: str) -> None:
    into, source = filled(tmp_path / "ours.db", 1), filled(elsewhere, 2, 3)
    merge(into, source)
    before = contents(into)
    assert set(merge(into, source).added.values()) == {0}
    merge(source, into)
    assert contents(into) == contents(source) == before


def test_the_source_stays_as_it_is(tmp_path: Path) -> None:
    source = Path(filled(tmp_path / "source.db", 1))
    before = source.read_bytes()
    merge(tmp_path / "new.db", source)
    assert source.read_bytes() == before


def test_a_study_that_ended_since_the_last_merge_is_completed(tmp_path: Path) -> None:
    source = str(tmp_path / "source.db")
    with Store.open(source) as store:
        running = store.begin_study(**session_values())
        merge(tmp_path / "ours.db", source)
        store.end_study(running, "budget")
    assert merge(tmp_path / "ours.db", source).added["studies"] == 0
    with Store.open(tmp_path / "ours.db") as store:
        assert [session.why for session in store.studies()] == ["budget"]


def test_the_summary_counts_the_problems_that_another_record_serves_now(tmp_path: Path) -> None:
    into, source = filled(tmp_path / "ours.db", 1), filled(tmp_path / "theirs.db", 2)
    assert merge(into, source).replaced == 1
    with Store.open(into) as store:
        store.promote(record(5, Evidence.MEASURED))
    assert merge(into, filled(tmp_path / "third.db", 3)).replaced == 0  # measured records precede predicted ones


def test_records_of_a_text_file_are_added_once(tmp_path: Path) -> None:
    source = filled(tmp_path / "source.db", 1, 2)
    with Store.open(source) as store:
        store.export_jsonl(tmp_path / "records.jsonl")
    assert merge(tmp_path / "ours.db", tmp_path / "records.jsonl").added == {"records": 1}
    assert merge(tmp_path / "ours.db", tmp_path / "records.jsonl").added == {"records": 0}
    assert merge(tmp_path / "ours.db", source).added["records"] == 1


def test_a_search_of_a_merged_database_resumes_what_one_of_them_had_tried(tmp_path: Path) -> None:
    def search(database: Path, evaluator: Recorded) -> study.Outcome:
        request = study.SearchRequest(OPERATOR, PROBLEM, gpu("sm_80"), implementation="mma_sync", budget=8)
        with Store.open(database) as store:
            return study.search(request, store, evaluator)

    theirs = search(tmp_path / "theirs.db", Recorded())
    filled(tmp_path / "ours.db", 1)
    merge(tmp_path / "ours.db", tmp_path / "theirs.db")
    again = Recorded()
    ours = search(tmp_path / "ours.db", again)
    assert (again.tried, ours.reused) == ([], 8)
    assert ours.record is not None and theirs.record is not None
    assert ours.record.config == theirs.record.config


def old_program(tmp_path: Path) -> Path:
    """The steps of a program from before rows had names."""
    folder = tmp_path / "migrations"
    newer = [path.name for path in (MIGRATIONS / "versions").glob("v*_*.py") if path.name > "v0005"]
    shutil.copytree(MIGRATIONS, folder, ignore=shutil.ignore_patterns("__pycache__", *newer))
    return folder


def old_database(tmp_path: Path) -> Path:
    """Two studies with an attempt each, the second tried twice, as an old program stored them."""
    path = tmp_path / "old.db"
    with Store.open(path, migrations=old_program(tmp_path)):
        pass
    filled(tmp_path / "now.db", 1, 2, 2)
    with closing(sqlite3.connect(tmp_path / "now.db")) as now, closing(sqlite3.connect(path)) as old:
        for table in ("studies", "attempts", "verdicts", "records"):
            columns = [row[1] for row in old.execute(f"PRAGMA table_info({table})")]
            for row in now.execute(f"SELECT {', '.join(columns)} FROM {table}"):
                old.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})", row)
        old.commit()
    return path


def version(path: Path) -> str:
    with closing(sqlite3.connect(path)) as connection:
        return str(connection.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchone()[0])


def test_an_older_database_is_migrated_in_a_copy(tmp_path: Path) -> None:
    old = old_database(tmp_path)
    lost = {"races": [], "devices": [], "proofs": []}  # which the helper above does not copy
    assert merge(tmp_path / "ours.db", old).added["attempts"] == 3
    assert version(old) == "0004"
    assert contents(str(tmp_path / "ours.db")) | lost == contents(str(tmp_path / "now.db")) | lost


def test_rows_without_names_are_merged_once_also_from_two_copies_of_them(tmp_path: Path) -> None:
    old = old_database(tmp_path)
    shutil.copy(old, tmp_path / "copy.db")
    merge(tmp_path / "ours.db", old)
    assert set(merge(tmp_path / "ours.db", tmp_path / "copy.db").added.values()) == {0}
    with Store.open(tmp_path / "copy.db"):  # its schema is new now, its rows are not
        pass
    assert set(merge(tmp_path / "copy.db", old).added.values()) == {0}
    assert set(merge(tmp_path / "copy.db", tmp_path / "ours.db").added.values()) == {0}


@pytest.mark.skipif(not SERVER, reason="TUNER_TEST_POSTGRES names no server")
def test_an_older_server_is_migrated_in_a_copy(tmp_path: Path, elsewhere: str) -> None:
    if "://" not in elsewhere:
        pytest.skip("a file")
    with Store.open(elsewhere, migrations=old_program(tmp_path)):
        pass
    engine = create_engine(elsewhere.replace("postgresql:", "postgresql+psycopg:"))
    (tmp_path / "old").mkdir()
    merge(tmp_path / "ours.db", old_database(tmp_path / "old"))
    with closing(sqlite3.connect(tmp_path / "old" / "old.db")) as old, engine.begin() as connection:
        for table in ("studies", "attempts", "verdicts", "records"):
            columns = [row[1] for row in old.execute(f"PRAGMA table_info({table})")]
            statement = text(
                f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join(f':{name}' for name in columns)})"
            )
            for row in old.execute(f"SELECT {', '.join(columns)} FROM {table}"):
                values = dict(zip(columns, row, strict=True))
                connection.execute(statement, values | ({"ok": bool(values["ok"])} if "ok" in values else {}))
    assert set(merge(tmp_path / "ours.db", elsewhere).added.values()) == {0}
    with engine.begin() as connection:
        assert connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar() == "0004"
    engine.dispose()


def test_a_newer_database_is_refused(tmp_path: Path) -> None:
    source = filled(tmp_path / "source.db", 1)
    with closing(sqlite3.connect(source)) as connection:
        connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
        connection.commit()
    with pytest.raises(StoreError, match="schema version 9999"):
        merge(tmp_path / "ours.db", source)


def test_a_row_that_is_no_record_is_refused_by_its_number(tmp_path: Path) -> None:
    source = filled(tmp_path / "source.db", 1)
    with closing(sqlite3.connect(source)) as connection:
        connection.execute("UPDATE records SET record = replace(record, '128', '129')")
        connection.commit()
    with pytest.raises(StoreError, match=r"record 1 cannot be read.*digest"):
        merge(tmp_path / "ours.db", source)


@pytest.mark.parametrize("source", ["missing.db", ":memory:"])
def test_a_missing_source_is_refused_and_not_made(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreError, match="there is no such database"):
        merge("ours.db", source)
    assert not Path("missing.db").exists()


@pytest.mark.parametrize("into", ["records.jsonl", ":memory:"])
def test_a_merge_goes_into_a_database(into: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="into a database"):
        merge(into, filled(tmp_path / "source.db", 1))


def test_a_database_is_not_merged_into_itself(tmp_path: Path) -> None:
    database = filled(tmp_path / "tuner.db", 1)
    (tmp_path / "link.db").symlink_to(database)
    with pytest.raises(UsageError, match="into itself"):
        merge(database, tmp_path / "link.db")


def test_the_command_prints_what_each_source_added(tmp_path: Path) -> None:
    sources = [filled(tmp_path / name, number) for number, name in enumerate(("one.db", "two.db"), start=1)]
    done = CliRunner().invoke(build(), ["merge", str(tmp_path / "team.db"), *sources, "--json"])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert [(merged["from"], merged["added"]["attempts"], merged["replaced"]) for merged in document["merged"]] == [
        (sources[0], 1, 0),
        (sources[1], 1, 1),
    ]
