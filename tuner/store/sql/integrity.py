"""Checks of a database that can be opened: damaged pages, and rows with invalid values."""

from collections.abc import Callable

from sqlalchemy import Connection, RowMapping, Table, select, text

from tuner.errors import StoreError
from tuner.store.sql import rows
from tuner.store.sql.schema import ATTEMPTS, DEVICES, PROOFS, RACES, RECORDS, STUDIES, VERDICTS

_READERS: tuple[tuple[Table, Callable[[RowMapping], object]], ...] = (
    (STUDIES, rows.study_of),
    (ATTEMPTS, rows.attempt_of),
    (VERDICTS, rows.verdict_of),
    (RECORDS, rows.record_of),
    (RACES, rows.race_of),
    (PROOFS, rows.proof_of),
    (DEVICES, rows.facts_of),
)


def damage(connection: Connection, pragma: str) -> list[str]:
    """Return the first 20 lines of SQLite's `quick_check` or `integrity_check`; empty if it finds no damage."""
    if connection.dialect.name != "sqlite":
        return []
    lines = (line for said in connection.execute(text(f"PRAGMA {pragma}(20)")).scalars() for line in said.splitlines())
    return [line for line in lines if line != "ok" and not line.startswith("***")]


def unreadable(connection: Connection) -> list[str]:
    """Yield a message for each row that cannot be read."""
    messages = []
    for table, read in _READERS:
        for row in connection.execute(select(table)).mappings():
            try:
                read(row)
            except StoreError as error:
                messages.append(str(error))
    return messages
