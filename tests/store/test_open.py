"""Tests of invalid locations and damaged files: one clear message, no change, and reading continues where possible."""

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import optuna
import pytest
import sqlalchemy
from sqlalchemy.engine import Engine

from tests.support.store_factory import attempt, read_only, record, study
from tuner.errors import MachineError, StoreError, UsageError
from tuner.store.locations import database, named, user_database
from tuner.store.sql import Store


def filled(path: Path, rows: int = 100) -> Path:
    with Store.open(path) as store:
        store.append([attempt(BT) for BT in range(rows)])
        store.promote(record())
    return path


def refusal(place: object) -> str:
    with pytest.raises(StoreError) as caught:
        Store.open(place).close()  # type: ignore[arg-type]
    return str(caught.value)


@pytest.fixture
def locked_folder() -> Iterator[Path]:
    """A folder that holds a filled database, as a user sees it who may not write there."""
    folder = Path(tempfile.mkdtemp())
    filled(folder / "tuner.db", rows=3)
    with read_only(folder):
        yield folder
    shutil.rmtree(folder)


def test_the_folder_of_a_new_database_is_made(tmp_path: Path) -> None:
    filled(tmp_path / "new" / "deep" / "tuner.db")
    assert (tmp_path / "new" / "deep" / "tuner.db").is_file()


def test_a_database_in_memory_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Store.open(":memory:") as store:
        store.append([attempt()])
    assert list(tmp_path.iterdir()) == []


def test_a_name_with_signs_that_mean_something_in_urls_is_a_name(tmp_path: Path) -> None:
    filled(tmp_path / "a?b#c%20d e.db", rows=1)
    assert (tmp_path / "a?b#c%20d e.db").is_file()


def test_an_empty_file_becomes_a_database(tmp_path: Path) -> None:
    (tmp_path / "tuner.db").touch()
    with Store.open(tmp_path / "tuner.db") as store:
        assert store.attempts("scan") == []
    assert not list(tmp_path.glob("*.bak*"))  # there was nothing to keep a copy of


def test_the_default_place_is_the_first_of_tuner_db(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_DB", f"{tmp_path / 'mine.db'}{os.pathsep}{tmp_path / 'site.db'}")
    with Store.open() as store:
        assert store.place == str(tmp_path / "mine.db")


def test_without_tuner_db_the_default_is_the_users_own_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TUNER_DB", raising=False)
    assert database() == str(user_database())


def test_a_url_in_tuner_db_is_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_DB", "postgresql://me@host:5432/tuner")
    assert named() == ("postgresql://me@host:5432/tuner",)


def test_a_folder_is_no_database(tmp_path: Path) -> None:
    assert "it is a folder" in refusal(tmp_path)


def test_a_pipe_is_no_database(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "it is no regular file" in refusal(tmp_path / "pipe")


def test_a_parent_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert str(tmp_path / "file" / "tuner.db") in refusal(tmp_path / "file" / "tuner.db")


def test_a_file_of_another_kind_is_left_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("to do: tune")
    assert "it is not a SQLite database" in refusal(path)
    assert path.read_text() == "to do: tune"
    assert list(tmp_path.iterdir()) == [path]


def test_a_truncated_database_is_damaged(tmp_path: Path) -> None:
    path = filled(tmp_path / "tuner.db")
    os.truncate(path, path.stat().st_size - 5000)
    message = refusal(path)
    assert "it is damaged" in message
    assert ".recover" in message


def test_garbage_between_the_pages_is_damage(tmp_path: Path) -> None:
    path = filled(tmp_path / "tuner.db")
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2 // 4096 * 4096)
        file.write(os.urandom(4096))
    assert "it is damaged" in refusal(path)


def test_garbage_that_a_quick_look_overlooks_is_named_by_its_row(tmp_path: Path) -> None:
    path = filled(tmp_path / "tuner.db", rows=3)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE attempts SET config = '{\"BT' WHERE id = 2")
    with Store.open(path) as store:
        with pytest.raises(StoreError, match="attempt 2 cannot be read"):
            store.attempts("scan")
        (sentence,) = store.check()
        assert sentence.startswith("attempt 2 cannot be read")


@pytest.mark.parametrize("change", ["versions = '{\"tuner'", "versions = '7'", "problem = 'T=4096'"])
def test_a_search_session_that_cannot_be_read_is_named_by_its_row(tmp_path: Path, change: str) -> None:
    with Store.open(tmp_path / "tuner.db") as store:
        store.begin_study(**study())
    with closing(sqlite3.connect(tmp_path / "tuner.db")) as connection, connection:
        connection.execute(f"UPDATE studies SET {change}")
    with Store.open(tmp_path / "tuner.db") as store:
        with pytest.raises(StoreError, match="study 1 cannot be read"):
            store.studies()
        (sentence,) = store.check()
        assert sentence.startswith("study 1 cannot be read")


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("prediction", "json_set(prediction, '$.terms', 7)"),
        ("resources", 'json_set(resources, \'$.lint\', json(\'{"failures":"spills","unchecked":[]}\'))'),
        ("failure", '\'{"log":"","reason":null,"stage":"compile"}\''),
    ],
)
def test_values_of_other_types_are_no_attempt(tmp_path: Path, column: str, value: str) -> None:
    path = filled(tmp_path / "tuner.db", rows=3)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"UPDATE attempts SET {column} = {value} WHERE id = 2")
    with Store.open(path) as store, pytest.raises(StoreError, match=r"attempt 2 cannot be read \(ValueError"):
        store.attempts("scan")


def test_text_that_is_not_utf8_is_damage(tmp_path: Path) -> None:
    path = filled(tmp_path / "tuner.db", rows=3)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE attempts SET config = CAST(x'ff22fe' AS TEXT) WHERE id = 2")
    with Store.open(path) as store, pytest.raises(StoreError, match="it is damaged"):
        store.attempts("scan")


def test_a_storage_of_optuna_is_left_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "optuna.db"
    optuna.create_study(storage=f"sqlite:///{path}", study_name="mine")
    before = path.read_bytes()
    assert "a study storage of Optuna, not a tuner database" in refusal(path)
    assert path.read_bytes() == before


def test_a_database_of_another_program_is_left_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE bookmarks (url TEXT)")
    before = path.read_bytes()
    assert "a database of something else (tables bookmarks …)" in refusal(path)
    assert path.read_bytes() == before


def test_what_may_not_be_written_can_be_read(locked_folder: Path) -> None:
    with Store.open(locked_folder / "tuner.db") as store:
        assert not store.writable
        assert len(store.attempts("scan")) == 3
        assert store.check() == []


def test_the_last_commits_of_a_killed_writer_are_not_left_out_where_they_cannot_be_read(tmp_path: Path) -> None:
    folder = Path(tempfile.mkdtemp())
    with Store.open(tmp_path / "tuner.db") as store:
        store.append([attempt()])
        for name in ("tuner.db", "tuner.db-wal"):  # without the log's index, as a copy to another machine
            shutil.copy(tmp_path / name, folder)
    with read_only(folder):
        assert "it cannot be opened: get permission" in refusal(folder / "tuner.db")
    shutil.rmtree(folder)


def test_writing_where_it_is_not_allowed_says_what_to_do(locked_folder: Path) -> None:
    with Store.open(locked_folder / "tuner.db") as store, pytest.raises(StoreError, match="cannot be written: get"):
        store.append([attempt()])


def test_a_new_database_in_a_folder_that_may_not_be_written_names_the_folder(locked_folder: Path) -> None:
    assert f"{locked_folder} is not writable" in refusal(locked_folder / "new.db")
    assert str(locked_folder) in refusal(locked_folder / "deep" / "new.db")


def test_a_writer_gives_up_on_a_lock_that_is_not_released(tmp_path: Path) -> None:
    path = filled(tmp_path / "tuner.db", rows=1)
    with closing(sqlite3.connect(path, isolation_level=None)) as other, Store.open(path, patience_s=0.05) as store:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(
            StoreError, match=rf"process {os.getpid()} \(.*\) kept it locked for too long: wait for that"
        ):
            store.append([attempt()])
        assert len(store.attempts("scan")) == 1


def test_a_full_disk_loses_only_what_did_not_fit(tmp_path: Path) -> None:
    path = filled(tmp_path / "tuner.db", rows=10)

    def two_pages_more(connection: sqlite3.Connection, _: object) -> None:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages + 2}")

    sqlalchemy.event.listen(Engine, "connect", two_pages_more)
    try:
        with Store.open(path) as store:
            with pytest.raises(StoreError, match="the disk is full: free some space"):
                store.append([attempt()] * 200)
            assert len(store.attempts("scan")) == 10
            store.append([attempt()])
    finally:
        sqlalchemy.event.remove(Engine, "connect", two_pages_more)


def test_urls_of_other_databases_are_refused_without_their_password() -> None:
    with pytest.raises(UsageError, match="cannot use a mysql:// URL") as caught:
        Store.open("mysql://me:secret@host/tuner")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["postgresql://me:secret@host:port/tuner", "postgresql://me:secret@[::1/tuner"])
def test_a_url_that_cannot_be_read_is_not_repeated(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        Store.open(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["postgresql://me:secret@127.0.0.1:9/t", "postgresql://127.0.0.1:9/t?password=secret"])
def test_a_server_that_does_not_answer_is_named_without_the_password(url: str) -> None:
    with pytest.raises((StoreError, MachineError)) as caught:
        Store.open(url, patience_s=1)
    assert "secret" not in str(caught.value)
