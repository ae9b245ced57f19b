"""Claims state which process is evaluating which config, so that searches of one problem share their attempts.

Before a search evaluates configs, it calls `Store.claim(scope, configs, holder)`, which returns the configs that it may
evaluate. The others are held by living processes, whose attempts will be stored soon. After storing an attempt, it
calls `Store.release(scope, configs, holder)`. `Store.claimed(scope)` returns the configs that others hold. A scope is a
text that is equal where results may be shared: `scope(operator, problem, gpu, policy)`. A config is a text that
identifies it within the scope: its implementation and canonical JSON. A search has one `Holder`, from
`Holder.current()`.

A claim ends with its process. A process of the same machine is identified by its pid and start time. A process of
another machine holds a claim for `LEASE_S` after its last claim or `Store.renew_claims(holder)`, by the clock of the
database. A holder that evaluates one config for longer must renew, or another search may try the same config.
"""

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from socket import gethostname
from uuid import uuid4

from sqlalchemy import Connection, RowMapping, delete, func, select, update

from tuner.base.canonical_json import encode
from tuner.store.sql.dialect import insert_new
from tuner.store.sql.schema import CLAIMS

LEASE_S = 600.0
_AT_ONCE = 10_000  # configs in one statement; SQLite's limit is 32,766 values


@dataclass(frozen=True, slots=True)
class Holder:
    """A search in a process. `host` includes the boot id and the PID namespace; `process` is the start time of the
    process.
    """

    token: str
    host: str
    pid: int
    process: str

    @classmethod
    def current(cls) -> "Holder":
        return cls(uuid4().hex, _host(), os.getpid(), _began(os.getpid()))

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host.partition('/')[0]}"


def scope(operator: str, problem: str, gpu: str, policy: str) -> str:
    """Return the scope in which results may be shared; `problem` is canonical JSON, `policy` that of an identity."""
    return encode([operator, problem, gpu, policy])


def claim(connection: Connection, scope: str, configs: Sequence[str], holder: Holder) -> set[str]:
    """Return those of `configs` that `holder` now holds."""
    moment = now(connection)
    _release_dead(connection, scope, moment)
    rows = [
        {"scope": scope, "config": config, "holder": holder.token, "host": holder.host, "pid": holder.pid}
        | {"process": holder.process, "expires": moment + LEASE_S}
        for config in sorted(set(configs))  # in a fixed order, so that two processes cannot deadlock
    ]
    if rows:
        connection.execute(insert_new(connection, CLAIMS, "scope", "config"), rows)
    renew(connection, holder)
    held = select(CLAIMS.c.config).where(CLAIMS.c.scope == scope, CLAIMS.c.holder == holder.token)
    return set(connection.execute(held).scalars()) & set(configs)


def renew(connection: Connection, holder: Holder) -> None:
    """Extend all claims of `holder` by `LEASE_S`."""
    until = now(connection) + LEASE_S
    connection.execute(update(CLAIMS).where(CLAIMS.c.holder == holder.token).values(expires=until))


def release(connection: Connection, scope: str, configs: Iterable[str], holder: Holder) -> None:
    """Release the holder's claims; claims of others are unchanged."""
    names, mine = list(configs), (CLAIMS.c.scope == scope) & (CLAIMS.c.holder == holder.token)
    for first in range(0, len(names), _AT_ONCE):
        connection.execute(delete(CLAIMS).where(mine, CLAIMS.c.config.in_(names[first : first + _AT_ONCE])))


def claimed(connection: Connection, scope: str) -> dict[str, Holder]:
    """Return the config and the holder of each claim whose process is alive."""
    moment = now(connection)
    rows = connection.execute(select(CLAIMS).where(CLAIMS.c.scope == scope)).mappings()
    return {row["config"]: holder_of(row) for row in rows if not is_dead(row, moment)}


def _release_dead(connection: Connection, scope: str, moment: float) -> None:
    for row in connection.execute(select(CLAIMS).where(CLAIMS.c.scope == scope)).mappings().all():
        if is_dead(row, moment):  # unless it was renewed in the meantime
            connection.execute(delete(CLAIMS).where(CLAIMS.c.id == row["id"], CLAIMS.c.expires == row["expires"]))


def is_dead(row: RowMapping, moment: float) -> bool:
    """Return whether the process of a row with `host`, `pid`, `process` and `expires` has ended, or its lease has."""
    if row["host"] == _host():
        return _began(row["pid"]) != str(row["process"])
    return float(row["expires"]) < moment


def holder_of(row: RowMapping) -> Holder:
    return Holder(row["holder"], row["host"], row["pid"], row["process"])


def now(connection: Connection) -> float:
    """Return the seconds since 1970 by the database's clock, which all processes share."""
    if connection.dialect.name == "postgresql":
        return float(connection.execute(select(func.extract("epoch", func.clock_timestamp()))).scalar_one())
    return time.time()


def _host() -> str:
    """Return a text that is equal for processes with a common process table: host name, boot id, PID namespace."""
    try:
        boot, namespace = (
            Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            str(Path("/proc/self/ns/pid").readlink()),
        )
    except OSError:
        boot = namespace = ""
    return f"{gethostname()}/{boot}/{namespace}"


def _began(pid: int) -> str:
    """Return the start time of a process in ticks since boot; empty if there is none, and the pid if it cannot be
    determined.
    """
    if not Path("/proc/self/stat").exists():
        return str(pid) if _runs(pid) else ""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state in "ZX" else rest[18]  # a zombie has ended; man 5 proc_pid_stat: field 22, starttime


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
