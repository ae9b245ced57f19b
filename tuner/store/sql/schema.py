"""The tables. Each change requires a migration in db/migrations/versions; a test compares the two."""

from sqlalchemy import Boolean, Column, Float, ForeignKey, Index, Integer, MetaData, Table, Text

METADATA = MetaData(
    naming_convention={
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)
IDENTITY = ("operator", "implementation", "problem", "gpu", "source", "options", "toolkit", "policy", "plan")


def _required(*names: str) -> list[Column[str]]:
    return [Column(name, Text, nullable=False) for name in names]


def _optional(*names: str) -> list[Column[str]]:
    return [Column(name, Text) for name in names]


def _uuid() -> Column[str]:
    """Return the column that identifies an insertion, so that it can be repeated; NULL in rows of older programs."""
    return Column("uuid", Text, index=True, unique=True)


STUDIES = Table(
    "studies",
    METADATA,
    Column("id", Integer, primary_key=True),
    *_required("operator", "problem", "gpu", "command", "method", "effort", "versions", "started"),
    Column("seed", Integer, nullable=False),
    Column("budget", Integer, nullable=False),  # tries
    *_optional("ended", "why"),
    _uuid(),
)
Index(None, *(STUDIES.c[name] for name in ("operator", "problem", "gpu")))

ATTEMPTS = Table(
    "attempts",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("study", Integer, ForeignKey("studies.id")),
    *_required("created", *IDENTITY[:-1], "config"),
    *_optional("failure", "resources", "prediction", "measurement"),
    Column("seconds", Float, nullable=False),
    Column("plan", Text, nullable=False, server_default=""),  # empty in rows of schema version 1
    _uuid(),
)
Index(None, *(ATTEMPTS.c[name] for name in ("operator", "problem", "gpu", "implementation", "policy")))

VERDICTS = Table(
    "verdicts",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("attempt", Integer, ForeignKey("attempts.id"), nullable=False, index=True),
    Column("ok", Boolean, nullable=False),
    *_required("created", "verdict"),
    _uuid(),
)

RECORDS = Table(
    "records",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("study", Integer, ForeignKey("studies.id")),
    *_required("operator", "problem", "gpu", "evidence", "created", "digest", "record"),  # record: record_lines.to_line
    *(Column(name, Text, nullable=False, server_default="") for name in ("family", "sizes")),  # packed_problems.packed
)
Index(None, *(RECORDS.c[name] for name in ("operator", "problem", "gpu")))
Index(None, *(RECORDS.c[name] for name in ("operator", "family", "gpu", "sizes")))
Index(None, RECORDS.c.digest, unique=True)

RACES = Table(
    "races",
    METADATA,
    Column("id", Integer, primary_key=True),
    *_required("operator", "problem", "gpu", "created", "race"),
    _uuid(),
)
Index(None, *(RACES.c[name] for name in ("operator", "problem", "gpu")))

PROOFS = Table(
    "proofs",
    METADATA,
    Column("id", Integer, primary_key=True),
    *_required("operator", "implementation", "gpu", "driver", "source", "options", "toolkit", "problem", "created"),
    Column("ok", Boolean, nullable=False),
    *_required("verdict"),
    _uuid(),
)
Index(None, *(PROOFS.c[name] for name in ("operator", "gpu")))

DEVICES = Table(
    "devices",
    METADATA,
    Column("id", Integer, primary_key=True),
    *_required("name", "facts", "created"),
    Column("digest", Text, index=True, unique=True),  # SHA-256 of name, newline, facts
)

CLAIMS = Table(
    "claims",
    METADATA,
    Column("id", Integer, primary_key=True),
    *_required("scope", "config", "holder", "host"),
    Column("pid", Integer, nullable=False),
    *_required("process"),  # start time of the process, since its pid may be reused
    Column("expires", Float, nullable=False),  # seconds since 1970 by the database's clock
)
Index(None, CLAIMS.c.scope, CLAIMS.c.config, unique=True)

LEDGER = Table(
    "ledger",
    METADATA,
    Column("id", Integer, primary_key=True),
    *_required("scope", "config", "holder", "host"),
    Column("pid", Integer, nullable=False),
    *_required("process"),
    Column("expires", Float, nullable=False),
    Column("note", Text, nullable=False, server_default=""),  # what the process was doing
    *_optional("died"),  # when the process was found dead
    _uuid(),
)
Index(None, LEDGER.c.scope, LEDGER.c.config)

MISSES = Table(
    "misses",
    METADATA,
    Column("id", Integer, primary_key=True),
    *_required("operator", "problem", "gpu", "ran", "seen"),
    Column("calls", Integer, nullable=False),
)
Index(None, *(MISSES.c[name] for name in ("operator", "problem", "gpu")), unique=True)
