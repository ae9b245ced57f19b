"""Claims: which process evaluates which config now, so that searches of one problem share their attempts.

A search asks `Store.claim(scope, configs, holder)` before it evaluates: of the configs those come back that it may
evaluate. The others are held by living processes, whose attempts will be in the database soon. It appends the attempt,
then calls `Store.release(scope, configs, holder)`. `Store.claimed(scope)` says what others hold. A scope is any text
that equals where results may be shared: `scope(operator, problem, gpu, policy)`; a config is any text that names it
there, as its implementation and canonical JSON. A `Holder` is made once a search, by `Holder.current()`.

A claim ends with its process. A process of the same machine is looked up by its number and start; one of another
machine, by the time until which it holds: `LEASE_S` from its last claim or `Store.renew_claims(holder)`, by the clock
of the database. A holder that evaluates one config for longer renews, or lets another try the same config.
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
    """A search in a process. `host` also tells the boot and the PID namespace; `process` is when the process began."""

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
    """Where a result may be shared: `problem` is canonical JSON, `policy` an identity's."""
    return encode([operator, problem, gpu, policy])


def claim(connection: Connection, scope: str, configs: Sequence[str], holder: Holder) -> set[str]:
    """The configs that `holder` holds from now on, among those of `configs`."""
    moment = now(connection)
    _release_dead(connection, scope, moment)
    rows = [
        {"scope": scope, "config": config, "holder": holder.token, "host": holder.host, "pid": holder.pid}
        | {"process": holder.process, "expires": moment + LEASE_S}
        for config in sorted(set(configs))  # in one order, so that two processes do not wait for each other
    ]
    if rows:
        connection.execute(insert_new(connection, CLAIMS, "scope", "config"), rows)
    renew(connection, holder)
    held = select(CLAIMS.c.config).where(CLAIMS.c.scope == scope, CLAIMS.c.holder == holder.token)
    return set(connection.execute(held).scalars()) & set(configs)


def renew(connection: Connection, holder: Holder) -> None:
    """Hold all that `holder` holds for another `LEASE_S`."""
    until = now(connection) + LEASE_S
    connection.execute(update(CLAIMS).where(CLAIMS.c.holder == holder.token).values(expires=until))


def release(connection: Connection, scope: str, configs: Iterable[str], holder: Holder) -> None:
    """Give up claims; those of others stay."""
    names, mine = list(configs), (CLAIMS.c.scope == scope) & (CLAIMS.c.holder == holder.token)
    for first in range(0, len(names), _AT_ONCE):
        connection.execute(delete(CLAIMS).where(mine, CLAIMS.c.config.in_(names[first : first + _AT_ONCE])))


def claimed(connection: Connection, scope: str) -> dict[str, Holder]:
    """Who holds which config, of the living."""
    moment = now(connection)
    rows = connection.execute(select(CLAIMS).where(CLAIMS.c.scope == scope)).mappings()
    return {row["config"]: holder_of(row) for row in rows if not is_dead(row, moment)}


def _release_dead(connection: Connection, scope: str, moment: float) -> None:
    for row in connection.execute(select(CLAIMS).where(CLAIMS.c.scope == scope)).mappings().all():
        if is_dead(row, moment):  # unless it was renewed since
            connection.execute(delete(CLAIMS).where(CLAIMS.c.id == row["id"], CLAIMS.c.expires == row["expires"]))


def is_dead(row: RowMapping, moment: float) -> bool:
    """Whether the process of a row with `host`, `pid`, `process` and `expires` has ended, or its lease has."""
    if row["host"] == _host():
        return _began(row["pid"]) != str(row["process"])
    return float(row["expires"]) < moment


def holder_of(row: RowMapping) -> Holder:
    return Holder(row["holder"], row["host"], row["pid"], row["process"])


def now(connection: Connection) -> float:
    """Seconds since 1970, by the one clock that all processes share."""
    if connection.dialect.name == "postgresql":
        return float(connection.execute(select(func.extract("epoch", func.clock_timestamp()))).scalar_one())
    return time.time()


def _host() -> str:
    """The same for processes that see each other's numbers: host name, boot, PID namespace."""
    try:
        boot, namespace = (
            Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            str(Path("/proc/self/ns/pid").readlink()),
        )
    except OSError:
        boot = namespace = ""
    return f"{gethostname()}/{boot}/{namespace}"


def _began(pid: int) -> str:
    """When a process began, in ticks since the boot; empty where it is none, and the number where nobody can tell."""
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
