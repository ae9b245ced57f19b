"""Studies, attempts, verdicts, records, devices and toolkits."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "studies",
        sa.Column("id", sa.Integer, primary_key=True),
        *_texts("operator", "problem", "gpu", "command", "method", "effort", "versions", "started"),
        sa.Column("seed", sa.Integer, nullable=False),
        sa.Column("budget", sa.Integer, nullable=False),
        *_texts("ended", "why", nullable=True),
    )
    op.create_table(
        "attempts",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("study", sa.Integer, sa.ForeignKey("studies.id", name="fk_attempts_study")),
        *_texts("created", "operator", "implementation", "problem", "gpu", "source", "options", "toolkit", "policy"),
        *_texts("config"),
        *_texts("failure", "resources", "prediction", "measurement", nullable=True),
        sa.Column("seconds", sa.Float, nullable=False),
    )
    op.create_table(
        "verdicts",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("attempt", sa.Integer, sa.ForeignKey("attempts.id", name="fk_verdicts_attempt"), nullable=False),
        sa.Column("ok", sa.Boolean, nullable=False),
        *_texts("created", "verdict"),
    )
    op.create_table(
        "records",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("study", sa.Integer, sa.ForeignKey("studies.id", name="fk_records_study")),
        *_texts("operator", "problem", "gpu", "evidence", "created", "digest", "record"),
    )
    for name in ("devices", "toolkits"):
        op.create_table(name, sa.Column("id", sa.Integer, primary_key=True), *_texts("name", "facts", "created"))
    _index("attempts", "operator", "problem", "gpu", "implementation", "policy")
    _index("verdicts", "attempt")
    _index("records", "operator", "problem", "gpu")
    _index("records", "digest", unique=True)


def _texts(*names: str, nullable: bool = False) -> list[sa.Column]:
    return [sa.Column(name, sa.Text, nullable=nullable) for name in names]


def _index(table: str, *columns: str, unique: bool = False) -> None:
    op.create_index(f"ix_{table}_{'_'.join(columns)}", table, list(columns), unique=unique)
