"""The ledger: which configs are being run where they may take their process down, and how often they did.

A process enters a config before it runs it and leaves it when the config is back. An entry is a death once its process
says so (`bury`) or has ended without leaving: an entry of a living process is none. `Store.enter` refuses a config that
died as often as it may, and lets the caller wait while enough others run it now, so that a config is started at most
that often on all machines that share the database. A scope is any text that equals where deaths count together, such
as the name of a GPU. Entries live as claims do (`tuner.store.sql.claims`).
"""

from collections import Counter
from dataclasses import dataclass
from enum import Enum

from sqlalchemy import Connection, RowMapping, delete, func, select, update

from tuner.store.sql.claims import LEASE_S, Holder, holder_of, is_dead, now
from tuner.store.sql.dialect import insert_new
from tuner.store.sql.schema import CLAIMS, LEDGER


class Admission(Enum):
    """What becomes of a request to run a config."""

    ENTERED = "entered"
    BUSY = "busy"  # others run it, and with their deaths it would have died as often as it may: ask again
    BANNED = "banned"


@dataclass(frozen=True, slots=True)
class Entry:
    """A config that a process is at, or was at when it died."""

    uuid: str
    holder: Holder
    note: str
    died: bool


def enter(connection: Connection, scope: str, config: str, holder: Holder, uuid: str, most: int) -> Admission:
    """Enter a config unless it died `most` times; `uuid` names the entry, so that the call can be repeated."""
    if connection.dialect.name == "postgresql":  # SQLite's writer is alone
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
    """The config is back: its entry goes."""
    connection.execute(delete(LEDGER).where(LEDGER.c.uuid == uuid))


def leave_all(connection: Connection, holder: Holder) -> None:
    """Every entry of a holder goes, deaths as well."""
    connection.execute(delete(LEDGER).where(LEDGER.c.holder == holder.token))


def note(connection: Connection, uuid: str, text: str) -> None:
    """Say what the process of an entry is at; the entry lives for another lease."""
    values = {"note": text, "expires": now(connection) + LEASE_S}
    connection.execute(update(LEDGER).where(LEDGER.c.uuid == uuid).values(**values))


def bury(connection: Connection, uuid: str, when: str) -> None:
    """Count an entry as a death."""
    connection.execute(update(LEDGER).where(LEDGER.c.uuid == uuid).values(died=when))


def release_process(connection: Connection, holder: Holder) -> None:
    """Give up all claims of a process that is known to have ended, whatever machine it ran on."""
    same = (CLAIMS.c.host == holder.host) & (CLAIMS.c.pid == holder.pid) & (CLAIMS.c.process == holder.process)
    connection.execute(delete(CLAIMS).where(same))


def entries(connection: Connection, scope: str, config: str) -> list[Entry]:
    """The entries of a config, oldest first."""
    moment, asked = now(connection), (LEDGER.c.scope == scope) & (LEDGER.c.config == config)
    rows = connection.execute(select(LEDGER).where(asked).order_by(LEDGER.c.id)).mappings()
    return [Entry(row["uuid"], holder_of(row), row["note"], _died(row, moment)) for row in rows]


def deaths(connection: Connection, scope: str) -> Counter[str]:
    """How often each config of a scope died."""
    moment, found = now(connection), Counter[str]()
    for row in connection.execute(select(LEDGER).where(LEDGER.c.scope == scope)).mappings():
        found[row["config"]] += _died(row, moment)
    return found


def forgive(connection: Connection, scope: str) -> None:
    """Forget the deaths of a scope; what living processes are at stays."""
    moment = now(connection)
    for row in connection.execute(select(LEDGER).where(LEDGER.c.scope == scope)).mappings().all():
        if _died(row, moment):
            connection.execute(delete(LEDGER).where(LEDGER.c.id == row["id"]))


def _died(row: RowMapping, moment: float) -> bool:
    return row["died"] is not None or is_dead(row, moment)
