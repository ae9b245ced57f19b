"""The ledger records which configs are running that may crash their process, and how often they have done so.

A process enters a config before it runs it and removes the entry when the config has returned. An entry counts as a
death if its process reports one (`bury`) or has ended without removing the entry; the entry of a living process does
not count. `Store.enter` refuses a config that has died as often as allowed. It asks the caller to wait while so many
other processes run the config that their deaths would exceed the limit. A config is therefore started at most that
often on all machines that share the database. Deaths are counted per scope, a text such as the name of a GPU. Entries
end with their process as claims do (`tuner.store.sql.claims`).
"""

from collections import Counter
from dataclasses import dataclass
from enum import Enum

from sqlalchemy import Connection, RowMapping, delete, func, select, update

from tuner.store.sql.claims import LEASE_S, Holder, holder_of, is_dead, now
from tuner.store.sql.dialect import insert_new
from tuner.store.sql.schema import CLAIMS, LEDGER


class Admission(Enum):
    """The answer to a request to run a config."""

    ENTERED = "entered"
    BUSY = "busy"  # other processes run it, and their deaths would reach the limit: ask again later
    BANNED = "banned"


@dataclass(frozen=True, slots=True)
class Entry:
    """A config that a process is running, or was running when it died."""

    uuid: str
    holder: Holder
    note: str
    died: bool


def enter(connection: Connection, scope: str, config: str, holder: Holder, uuid: str, most: int) -> Admission:
    """Enter a config unless it has died `most` times. `uuid` identifies the entry, so that the call can be repeated."""
    if connection.dialect.name == "postgresql":  # SQLite has a single writer
        connection.execute(select(func.pg_advisory_xact_lock(func.hashtext(f"{scope} {config}"))))
    others = [entry for entry in entries(connection, scope, config) if entry.uuid != uuid]
    deaths = sum(entry.died for entry in others)
    if deaths >= most:
        return Admission.BANNED
    if len(others) >= most:
        return Admission.BUSY
    row = {"scope": scope, "config": config, "holder": holder.token, "host": holder.host, "pid": holder.pid}
    row |= {"process": holder.process, "expires": now(connection) + LEASE_S, "uuid": uuid}
    connection.execute(insert_new(connection, LEDGER, "uuid"), row)
    return Admission.ENTERED


def leave(connection: Connection, uuid: str) -> None:
    """Remove the entry of a config that has returned."""
    connection.execute(delete(LEDGER).where(LEDGER.c.uuid == uuid))


def leave_all(connection: Connection, holder: Holder) -> None:
    """Remove all entries of a holder, including deaths."""
    connection.execute(delete(LEDGER).where(LEDGER.c.holder == holder.token))


def note(connection: Connection, uuid: str, text: str) -> None:
    """Store what the process of an entry is doing, and extend the entry's lease."""
    values = {"note": text, "expires": now(connection) + LEASE_S}
    connection.execute(update(LEDGER).where(LEDGER.c.uuid == uuid).values(**values))


def bury(connection: Connection, uuid: str, when: str) -> None:
    """Count an entry as a death."""
    connection.execute(update(LEDGER).where(LEDGER.c.uuid == uuid).values(died=when))


def release_process(connection: Connection, holder: Holder) -> None:
    """Release all claims of a process that is known to have ended, on any machine."""
    same = (CLAIMS.c.host == holder.host) & (CLAIMS.c.pid == holder.pid) & (CLAIMS.c.process == holder.process)
    connection.execute(delete(CLAIMS).where(same))


def entries(connection: Connection, scope: str, config: str) -> list[Entry]:
    """Return the entries of a config, oldest first."""
    moment, asked = now(connection), (LEDGER.c.scope == scope) & (LEDGER.c.config == config)
    rows = connection.execute(select(LEDGER).where(asked).order_by(LEDGER.c.id)).mappings()
    return [Entry(row["uuid"], holder_of(row), row["note"], _died(row, moment)) for row in rows]


def deaths(connection: Connection, scope: str) -> Counter[str]:
    """Return how often each config of a scope has died."""
    moment, deaths = now(connection), Counter[str]()
    for row in connection.execute(select(LEDGER).where(LEDGER.c.scope == scope)).mappings():
        deaths[row["config"]] += _died(row, moment)
    return deaths


def forgive(connection: Connection, scope: str) -> None:
    """Remove the deaths of a scope; entries of living processes are kept."""
    moment = now(connection)
    for row in connection.execute(select(LEDGER).where(LEDGER.c.scope == scope)).mappings().all():
        if _died(row, moment):
            connection.execute(delete(LEDGER).where(LEDGER.c.id == row["id"]))


def _died(row: RowMapping, moment: float) -> bool:
    return row["died"] is not None or is_dead(row, moment)
