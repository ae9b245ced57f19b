"""Tests of sources that cannot be read: damage, other schemas, no permission; and their effect on a call."""

import os
import shutil
import sqlite3
import tempfile
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.support.store_factory import OK, PROBLEM, record
from tuner.cli.app import build
from tuner.errors import StoreError
from tuner.results.attempt import Evidence
from tuner.results.record import TuningRecord
from tuner.store import record_lines
from tuner.store.records import Match, Query, Snapshot, UnreadableRecordsWarning
from tuner.store.sql import Store
from tuner.store.sql.merge import merge

QUERY = Query("scan", PROBLEM, "H200", "sm_90a", ("causal", "dtype"))  # type: ignore[arg-type]


def find(snapshot: Snapshot) -> Match | None:
    return snapshot.find(QUERY, lambda _: None)


def database(folder: Path, *records: TuningRecord) -> Path:
    with Store.open(folder / "tuner.db") as store:
        for candidate in records:
            store.promote(candidate)
    return folder / "tuner.db"


def change(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def from_the_future(path: Path) -> None:
    change(path, "UPDATE tuner_schema_version SET version_num = '9999'")


def flip_pages(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for at in range(4096, len(data), 97):
        data[at] ^= 0xFF
    path.write_bytes(data)


def text_instead(path: Path) -> None:
    path.write_text("to do: tune the kernels, all of them, at last")


def endless_view(path: Path) -> None:
    names = [name for _, name, *_ in columns(path)]
    change(path, "ALTER TABLE records RENAME TO kept")
    endless = "WITH RECURSIVE rows(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM rows)"
    change(path, f"CREATE VIEW records AS {endless} SELECT {', '.join(f'n AS {name}' for name in names)} FROM rows")


def columns(path: Path) -> list[tuple[int, str]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("PRAGMA table_info(records)").fetchall()


def trigger(path: Path) -> None:
    change(path, "CREATE TRIGGER forget AFTER INSERT ON attempts BEGIN DELETE FROM attempts; END")


def vast_column(path: Path) -> None:
    change(path, "ALTER TABLE records ADD COLUMN vast GENERATED ALWAYS AS (zeroblob(1000000000))")


def virtual_table(path: Path) -> None:
    change(path, "CREATE VIRTUAL TABLE searched USING fts5(text)")


COMPUTING = [endless_view, trigger, vast_column, virtual_table]


def schema_that_is_not_utf8(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"CREATE INDEX", b"CREATE\x8fINDEX"))  # the error message quotes it


FAULTS = [truncate, from_the_future, flip_pages, text_instead, schema_that_is_not_utf8, *COMPUTING]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_database_that_is_refused_is_one_warning_or_an_error_when_strict(
    tmp_path: Path, fault: Callable[[Path], None]
) -> None:
    path = database(tmp_path, record())
    fault(path)
    with pytest.warns(UnreadableRecordsWarning) as caught:
        snapshot = Snapshot.load([path], strict=False)
        assert find(snapshot) is None
        assert find(snapshot) is None
    assert len(caught) == 1
    assert str(path) in str(caught[0].message)
    assert len(snapshot.refused) == 1
    with pytest.raises(StoreError, match="TUNER_STRICT"):
        find(Snapshot.load([path], strict=True))


@pytest.mark.parametrize("fault", FAULTS)
def test_no_command_shows_records_of_a_database_that_is_refused(tmp_path: Path, fault: Callable[[Path], None]) -> None:
    path = database(tmp_path, record())
    fault(path)
    shown = CliRunner().invoke(build(), ["show", "--db", str(path)])
    assert shown.exit_code != 0 or shown.exception
    assert "fast" not in shown.stdout


@pytest.mark.parametrize("fault", COMPUTING)
def test_a_database_that_computes_is_neither_opened_nor_merged(tmp_path: Path, fault: Callable[[Path], None]) -> None:
    path = database(tmp_path, record())
    fault(path)
    with pytest.raises(StoreError, match="which no tuner database has"):
        Store.open(path)
    with pytest.raises(StoreError, match="which no tuner database has"):
        merge(tmp_path / "mine.db", path)


def test_the_name_of_a_file_does_not_rewrite_a_terminal(tmp_path: Path) -> None:
    path = tmp_path / "\x1b[2J.jsonl"
    path.write_text("no record")
    snapshot = Snapshot.load([path], strict=False)
    snapshot.records("scan")
    with pytest.warns(UnreadableRecordsWarning) as caught:
        Snapshot.load([tmp_path / "\x1b[2J.db"], strict=False)
    assert all(text.isprintable() for text in (*snapshot.refused, *(str(warning.message) for warning in caught)))


@pytest.mark.parametrize("name", ["records.jsonl", "tuner.db"])
@pytest.mark.parametrize("locked", ["the file", "its folder"])
def test_records_without_permission_are_refused_and_named(
    locked: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(tempfile.mkdtemp())
    path = folder / name
    record_lines.write(path, [record()]) if path.suffix == ".jsonl" else database(folder, record())
    monkeypatch.setenv("TUNER_DB", str(path))
    folder.chmod(0 if locked == "its folder" else 0o755)
    path.chmod(0) if locked == "the file" else None
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)  # permissions do not bind root
    try:
        with pytest.warns(UnreadableRecordsWarning, match=f"{path}: .*[Pp]ermission"):
            assert find(Snapshot.load(strict=False)) is None
    finally:
        os.seteuid(user)
        folder.chmod(0o755)
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("UPDATE records SET record = replace(record, '\"margin\":0.03', '\"margin\":0.93')", "digest does not match"),
        ("UPDATE records SET record = replace(record, '\"BT\":64', '\"BT\":65')", "digest does not match"),
        ("UPDATE records SET gpu = 'H100'", "record of another problem"),
    ],
)
def test_a_record_with_a_changed_digit_is_named_and_not_served(tmp_path: Path, statement: str, why: str) -> None:
    path = database(tmp_path, record())
    change(path, statement)
    snapshot = Snapshot.load([path], strict=True)
    assert find(snapshot) is None
    assert [sentence.split(": ")[0] for sentence in snapshot.refused] == [f"{path}, record 1"]
    assert why in snapshot.refused[0]
    shown = CliRunner().invoke(build(), ["show", "--db", str(path)])
    assert "fast" not in shown.stdout
    assert why in shown.stderr


def test_a_record_that_was_stored_later_is_newer_whatever_its_clock_said(tmp_path: Path) -> None:
    earlier = record(16, created="2026-06-01T10:00:00+00:00")
    later = record(32, created="2026-06-01T09:00:00+00:00")  # the clock was set back in between
    match = find(Snapshot.load([database(tmp_path, earlier, later)]))
    assert match is not None
    assert match.record == later
    record_lines.write(tmp_path / "records.jsonl", [earlier, later])
    match = find(Snapshot.load([tmp_path / "records.jsonl"]))
    assert match is not None
    assert match.record == later


def test_a_source_that_goes_away_later_is_one_warning(tmp_path: Path) -> None:
    path = database(tmp_path, record())
    snapshot = Snapshot.load([path], strict=False)
    path.unlink()
    with pytest.warns(UnreadableRecordsWarning, match="tuner.db") as caught:
        assert find(snapshot) is None
    assert len(caught) == 1


def test_records_that_can_be_read_are_no_warning(tmp_path: Path) -> None:
    path = database(tmp_path, record(16), record(32, Evidence.MEASURED))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        match = find(Snapshot.load([path], strict=True))
    assert match is not None and match.record.config["BT"] == 32 and match.record.verdict == OK


def test_records_of_one_problem_are_parsed_and_no_others(tmp_path: Path) -> None:
    path = database(tmp_path, record(16), record(32, problem={"T": 4000}), record(64, operator="kda"))
    change(path, "UPDATE records SET record = 'not a record' WHERE id > 1")
    snapshot = Snapshot.load([path], strict=True)
    assert find(snapshot) is not None
    assert snapshot.refused == ()
    assert len(snapshot.records("scan")) == 1
    assert len(snapshot.refused) == 1
