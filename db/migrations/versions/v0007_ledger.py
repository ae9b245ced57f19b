"""The ledger: what processes are at, and what they died of, for all sessions that share the database."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.create_table(
        "ledger",
        sa.Column("id", sa.Integer, primary_key=True),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("scope", "config", "holder", "host")),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("process", sa.Text, nullable=False),
        sa.Column("expires", sa.Float, nullable=False),
        sa.Column("note", sa.Text, nullable=False, server_default=""),
        sa.Column("died", sa.Text),
        sa.Column("uuid", sa.Text),
    )
    op.create_index("ix_ledger_scope_config", "ledger", ["scope", "config"])
    op.create_index("ix_ledger_uuid", "ledger", ["uuid"], unique=True)
