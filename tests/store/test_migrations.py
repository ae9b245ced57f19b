"""Tests of schema versions: migrations lead to the current tables, older databases are migrated, newer ones refused."""

import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Table, create_engine

from tests.support.store_factory import attempt, race, read_only, record
from tuner.errors import StoreError
from tuner.results.attempt import Evidence
from tuner.store.read import MIGRATIONS, VERSION_TABLE, newest_schema
from tuner.store.sql import Store
from tuner.store.sql.rows import attempt_row, record_row
from tuner.store.sql.schema import METADATA

README = MIGRATIONS.parent / "README.md"
STEP = """
import sqlalchemy as sa
from alembic import op

revision = "{revision}"
down_revision = "{before}"

def upgrade():
    with op.batch_alter_table("attempts") as table:
        table.add_column(sa.Column("host", sa.Text, server_default="here"))
    {then}
"""


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """A database of this program's version, with one attempt."""
    with Store.open(tmp_path / "tuner.db") as store:
        store.append([attempt()])
    return tmp_path / "tuner.db"


def next_program(tmp_path: Path, then: str = "pass") -> Path:
    """The steps of a program that is one version ahead."""
    folder = tmp_path / "migrations"
    shutil.copytree(MIGRATIONS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    revision = f"{int(newest_schema()) + 1:04}"
    step = STEP.format(revision=revision, before=newest_schema(), then=then)
    (folder / "versions" / f"v{revision}_host.py").write_text(step)
    return folder


def version(path: Path) -> str:
    with closing(sqlite3.connect(path)) as connection:
        return str(connection.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchone()[0])


def hosts(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return [host for (host,) in connection.execute("SELECT host FROM attempts")]


def test_the_steps_lead_to_the_tables_of_the_program(older: Path) -> None:
    engine = create_engine(f"sqlite:///{older}")
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE, "compare_type": True})
        assert compare_metadata(context, METADATA) == []
    engine.dispose()


@pytest.mark.parametrize("table", METADATA.sorted_tables, ids=lambda table: table.name)
def test_the_readme_names_every_table_and_column(table: Table) -> None:
    (paragraph,) = [part for part in README.read_text().split("\n\n") if f"**`{table.name}`**" in part]
    assert [column.name for column in table.columns if f"`{column.name}`" not in paragraph] == []


def test_a_step_is_named_after_its_revision() -> None:
    for path in (MIGRATIONS / "versions").glob("*.py"):
        (revision,) = re.findall(r'^revision = "(\d{4})"$', path.read_text(), re.MULTILINE)
        assert path.name.startswith(f"v{revision}_")


def test_an_older_database_is_migrated_and_keeps_its_rows(older: Path, tmp_path: Path) -> None:
    with Store.open(older, migrations=next_program(tmp_path)) as store:
        assert [stored.attempt for stored in store.attempts("scan")] == [attempt()]
    assert hosts(older) == ["here"]


def test_a_copy_is_kept_of_what_was_before(older: Path, tmp_path: Path) -> None:
    Store.open(older, migrations=next_program(tmp_path)).close()
    copy = older.with_name(f"tuner.db.bak-{newest_schema()}")
    assert version(copy) == newest_schema()
    with Store.open(copy) as store:
        assert len(store.attempts("scan")) == 1


def test_a_copy_from_before_is_not_overwritten(older: Path, tmp_path: Path) -> None:
    copy = older.with_name(f"tuner.db.bak-{newest_schema()}")
    copy.write_text("precious")
    Store.open(older, migrations=next_program(tmp_path)).close()
    assert copy.read_text() == "precious"
    assert version(older.with_name(f"tuner.db.bak-{newest_schema()}.2")) == newest_schema()


def test_a_newer_database_is_refused_with_both_versions_and_left_as_it_was(older: Path, tmp_path: Path) -> None:
    Store.open(older, migrations=next_program(tmp_path)).close()
    before = older.read_bytes()
    ahead = f"{int(newest_schema()) + 1:04}"
    with pytest.raises(StoreError, match=f"has schema version {ahead}, and this program knows up to {newest_schema()}"):
        Store.open(older)
    assert older.read_bytes() == before


def test_a_step_that_fails_leaves_the_database_as_it_was(older: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no such table: absent"):
        Store.open(older, migrations=next_program(tmp_path, then='op.execute("DELETE FROM absent")'))
    assert version(older) == newest_schema()
    with Store.open(older) as store:
        assert len(store.attempts("scan")) == 1


@pytest.mark.parametrize("existing", [True, False], ids=["older", "new"])
def test_a_process_that_is_killed_inside_a_step_leaves_the_database_as_it_was(tmp_path: Path, existing: bool) -> None:
    path = tmp_path / "tuner.db"
    if existing:
        Store.open(path).close()
    folder = next_program(tmp_path, then="import os; os.kill(os.getpid(), 9)")
    code = "import sys, pathlib, tuner.store.sql as s; s.Store.open(sys.argv[1], migrations=pathlib.Path(sys.argv[2]))"
    command = [sys.executable, "-c", code, str(path), str(folder)]
    assert subprocess.run(command, cwd=MIGRATIONS.parents[1]).returncode == -signal.SIGKILL
    with Store.open(path) as store:
        assert store.check() == store.attempts("scan") == []
    assert version(path) == newest_schema()


def test_an_older_database_that_cannot_be_written_says_so(older: Path) -> None:
    folder = Path(tempfile.mkdtemp())
    shutil.copy(older, folder)
    steps = next_program(folder)
    with (
        read_only(folder),
        pytest.raises(StoreError, match=f"is version {newest_schema()}, .* cannot be written: copy it"),
    ):
        Store.open(folder / "tuner.db", migrations=steps)
    assert version(folder / "tuner.db") == newest_schema()
    shutil.rmtree(folder)


def steps_until(last: str, folder: Path) -> Path:
    """The steps of a program as old as that version."""
    newer = [path.name for path in (MIGRATIONS / "versions").glob("v*.py") if path.name[1:5] > last]
    shutil.copytree(MIGRATIONS, folder, ignore=shutil.ignore_patterns("__pycache__", *newer))
    return folder


def test_a_database_from_before_races_keeps_its_rows_and_takes_races(tmp_path: Path) -> None:
    path, measured = tmp_path / "tuner.db", record(evidence=Evidence.MEASURED)
    with Store.open(path, migrations=steps_until("0003", tmp_path / "migrations")) as store:
        assert store.version == "0003"
    insert(path, "attempts", attempt_row(attempt(), None, "2026-11-21T10:00:00"))
    insert(path, "records", record_row(measured, None))
    with closing(sqlite3.connect(path)) as connection:
        (line,) = connection.execute("SELECT record FROM records").fetchone()
        assert "sm_mhz" not in line  # as such a program wrote it
    with Store.open(path) as store:
        assert [stored.attempt for stored in store.attempts("scan")] == [attempt()]
        assert store.records() == [measured]
        assert store.races("scan") == []
        store.append_race(race())
        assert store.races("scan") == [race()]
        assert store.check() == []
    assert version(path) == newest_schema()


def test_rows_from_before_plans_were_known_have_none(tmp_path: Path) -> None:
    Store.open(tmp_path / "tuner.db", migrations=steps_until("0001", tmp_path / "migrations")).close()
    row = {name: value for name, value in attempt_row(attempt(), None, "2026-11-21T10:00:00").items() if name != "plan"}
    insert(tmp_path / "tuner.db", "attempts", row)
    with Store.open(tmp_path / "tuner.db") as store:
        assert [stored.attempt for stored in store.attempts("scan")] == [attempt(plan="")]
        store.append([attempt(plan="f00d")])
        assert [stored.attempt.identity.plan for stored in store.attempts("scan")] == ["", "f00d"]


def test_a_database_with_a_device_twice_keeps_its_first_row(tmp_path: Path) -> None:
    path = tmp_path / "tuner.db"
    Store.open(path, migrations=steps_until("0004", tmp_path / "migrations")).close()
    for driver in ("570", "580", "570"):
        insert(path, "devices", {"name": "H200", "facts": f'{{"driver":"{driver}"}}', "created": "2026-11-21T10:00:00"})
    with Store.open(path) as store:
        assert [facts.facts["driver"] for facts in store.devices()] == ["570", "580"]
        assert [store.add_device("H200", {"driver": driver}) for driver in ("580", "570", "590")] == [2, 1, 3]


def insert(path: Path, table: str, row: dict[str, object]) -> None:
    """As an older program did, without the columns that came later."""
    with closing(sqlite3.connect(path)) as connection, connection:
        columns = [name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")]
        row = {name: value for name, value in row.items() if name in columns}
        names = ", ".join(f":{name}" for name in row)
        connection.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({names})", row)
