"""Migration of a database to this program's schema. An empty database is initialised, a newer one is refused."""

import sqlite3
from contextlib import closing
from pathlib import Path

from sqlalchemy import Connection, inspect, text

from tuner.errors import StoreError
from tuner.store.read import MIGRATIONS, VERSION_TABLE, newest_schema, refuse_code
from tuner.store.sql.database import Database, Place


def migrate(database: Database, folder: Path = MIGRATIONS) -> None:
    """Migrate a database to the newest schema of `folder`, or leave it unchanged.

    Raises StoreError if its schema is newer, if it is not a tuner database, or if it is older and not writable.
    """
    place, version = database.place, schema_version(database, folder)
    if version == newest_schema(folder):
        return
    if not place.writable:
        state = f"version {version}" if version else "empty"
        raise StoreError(
            f"the database {place.label} is {state}, this program needs version {newest_schema(folder)}, and it "
            "cannot be written: copy it to a folder that can, and name it with --db"
        )

    def work(connection: Connection) -> None:
        _lock(connection)
        version = _version(connection, place, folder)  # another process may have migrated it meanwhile
        if version != newest_schema(folder):
            if version and place.path is not None:
                _back_up(place.path, version)
            _upgrade(connection, folder)

    database.write(work)


def schema_version(database: Database, folder: Path = MIGRATIONS) -> str:
    """Return the version of a database's schema; empty without tables. Raises StoreError if it is newer, or not a tuner
    database.
    """
    return database.read(lambda connection: _version(connection, database.place, folder))


def _version(connection: Connection, place: Place, folder: Path) -> str:
    """Return the version of the schema; empty if there are no tables."""
    if connection.dialect.name == "sqlite":
        try:
            refuse_code(connection.exec_driver_sql)
        except StoreError as error:
            raise StoreError(f"cannot use the database {place.label}: {error}") from error
    tables = inspect(connection).get_table_names()
    if not tables:
        return ""
    if VERSION_TABLE not in tables:
        raise StoreError(f"{place.label} is {_whose(tables)}, not a tuner database: name another with --db")
    version = str(connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar())
    if not version.isdigit() or int(version) > int(newest_schema(folder)):
        raise StoreError(
            f"the database {place.label} has schema version {version}, and this program knows "
            f"up to {newest_schema(folder)}: update tuner, or name another database with --db; nothing was changed"
        )
    return version


def _whose(tables: list[str]) -> str:
    if {"studies", "trials", "version_info"} <= set(tables):
        return "a study storage of Optuna"
    return f"a database of something else (tables {', '.join(sorted(tables)[:3])} …)"


def _lock(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":  # with SQLite, the writer holds the lock from BEGIN IMMEDIATE on
        connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('tuner schema'))"))


def _back_up(path: Path, version: str) -> None:
    """Copy the database into its folder; an existing copy is kept."""
    target = path.with_name(f"{path.name}.bak-{version}")
    count = 2
    while target.exists():
        target, count = path.with_name(f"{path.name}.bak-{version}.{count}"), count + 1
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(target)) as copy:
        source.backup(copy)


def _upgrade(connection: Connection, folder: Path) -> None:
    from alembic import command  # takes half a second to import, and is needed only for a migration
    from alembic.config import Config

    config = Config(attributes={"connection": connection, "version_table": VERSION_TABLE})
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    command.upgrade(config, "head")
