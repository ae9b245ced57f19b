"""The tables. A change here comes with a step in db/migrations/versions; a test compares the two."""

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


STUDIES = Table(
    "studies",
    METADATA,
    Column("id", Integer, primary_key=True),
    *_required("operator", "problem", "gpu", "command", "method", "effort", "versions", "started"),
    Column("seed", Integer, nullable=False),
    Column("budget", Integer, nullable=False),  # tries
    *_optional("ended", "why"),
)

ATTEMPTS = Table(
    "attempts",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("study", Integer, ForeignKey("studies.id")),
    *_required("created", *IDENTITY[:-1], "config"),
    *_optional("failure", "resources", "prediction", "measurement"),
    Column("seconds", Float, nullable=False),
    Column("plan", Text, nullable=False, server_default=""),  # empty in rows from before it was known
)
Index(None, *(ATTEMPTS.c[name] for name in ("operator", "problem", "gpu", "implementation", "policy")))

VERDICTS = Table(
    "verdicts",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("attempt", Integer, ForeignKey("attempts.id"), nullable=False, index=True),
    Column("ok", Boolean, nullable=False),
    *_required("created", "verdict"),
)

RECORDS = Table(
    "records",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("study", Integer, ForeignKey("studies.id")),
    *_required("operator", "problem", "gpu", "evidence", "created", "digest", "record"),  # record: tuned.to_line
)
Index(None, *(RECORDS.c[name] for name in ("operator", "problem", "gpu")))
Index(None, RECORDS.c.digest, unique=True)

RACES = Table(
    "races",
    METADATA,
    Column("id", Integer, primary_key=True),
    *_required("operator", "problem", "gpu", "created", "race"),
)
Index(None, *(RACES.c[name] for name in ("operator", "problem", "gpu")))

DEVICES = Table("devices", METADATA, Column("id", Integer, primary_key=True), *_required("name", "facts", "created"))
