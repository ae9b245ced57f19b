"""Misses of applications that log to a server: one row per problem, with the sum of its calls."""

from collections.abc import Sequence

from sqlalchemy import Connection, RowMapping, func, select
from sqlalchemy.dialects import postgresql, sqlite

from tuner.base.canonical_json import decode
from tuner.base.fields import check_printable, fields_from
from tuner.errors import StoreError
from tuner.store.misses import RAN, Missed
from tuner.store.sql.schema import MISSES

MOST = 1_000_000  # maximum number of rows; further problems are not added
_KEY = [MISSES.c[name] for name in ("operator", "problem", "gpu")]


def add(connection: Connection, misses: Sequence[Missed], seen: str) -> None:
    """Add calls to rows, in a fixed order, so that two processes cannot deadlock."""
    if connection.execute(select(func.count()).select_from(MISSES)).scalar_one() >= MOST:
        raise StoreError(f"the database has {MOST:,} misses: search them and delete the rows of `misses`")
    insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    new = insert(MISSES)
    adding = new.on_conflict_do_update(
        index_elements=_KEY,
        set_={"calls": MISSES.c.calls + new.excluded.calls, "ran": new.excluded.ran, "seen": new.excluded.seen},
    )
    for missed in sorted(misses, key=lambda missed: (missed.operator, missed.problem, missed.gpu)):
        key = {"operator": missed.operator, "problem": missed.problem, "gpu": missed.gpu}
        connection.execute(adding, key | {"ran": missed.ran, "calls": missed.calls, "seen": seen})


def read(connection: Connection) -> tuple[list[Missed], list[str]]:
    """Return the misses, most frequent first, and a message for each invalid row."""
    misses, refused = [], []
    for row in connection.execute(select(MISSES).order_by(MISSES.c.calls.desc(), MISSES.c.id)).mappings():
        try:
            misses.append(_missed(row))
        except (ValueError, TypeError) as error:
            refused.append(f"row {row['id']} of misses is none ({type(error).__name__}: {error})")
    return misses, refused


def _missed(row: RowMapping) -> Missed:
    fields_from(decode(row["problem"]))
    check_printable([row["operator"], row["gpu"]])
    if row["ran"] not in RAN or row["calls"] < 1:
        raise ValueError(f"{row['calls']!r} calls that ran {row['ran']!r}")
    return Missed(row["operator"], row["problem"], row["gpu"], row["ran"], row["calls"])
