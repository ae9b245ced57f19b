"""What many processes on one server need: rows that are stored once, claims on configs, and studies by problem."""

from hashlib import sha256

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    for table in ("studies", "attempts", "verdicts", "races"):
        op.add_column(table, sa.Column("uuid", sa.Text))
        op.create_index(f"ix_{table}_uuid", table, ["uuid"], unique=True)
    op.create_index("ix_studies_operator_problem_gpu", "studies", ["operator", "problem", "gpu"])
    op.add_column("devices", sa.Column("digest", sa.Text))
    _keep_each_device_once()
    op.create_index("ix_devices_digest", "devices", ["digest"], unique=True)
    op.create_table(
        "claims",
        sa.Column("id", sa.Integer, primary_key=True),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("scope", "config", "holder", "host")),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("process", sa.Text, nullable=False),
        sa.Column("expires", sa.Float, nullable=False),
    )
    op.create_index("ix_claims_scope_config", "claims", ["scope", "config"], unique=True)


def _keep_each_device_once() -> None:
    connection = op.get_bind()
    digests: set[str] = set()
    for number, name, facts in connection.execute(sa.text("SELECT id, name, facts FROM devices ORDER BY id")).all():
        digest = sha256(f"{name}\n{facts}".encode()).hexdigest()
        if digest in digests:
            connection.execute(sa.text("DELETE FROM devices WHERE id = :id"), {"id": number})
        else:
            digests.add(digest)
            connection.execute(sa.text("UPDATE devices SET digest = :d WHERE id = :id"), {"d": digest, "id": number})
