"""Verdicts of a device on compiled configs, by GPU, driver, compiler and source."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    names = ("operator", "implementation", "gpu", "driver", "source", "options", "toolkit", "problem", "created")
    op.create_table(
        "proofs",
        sa.Column("id", sa.Integer, primary_key=True),
        *(sa.Column(name, sa.Text, nullable=False) for name in names),
        sa.Column("ok", sa.Boolean, nullable=False),
        sa.Column("verdict", sa.Text, nullable=False),
        sa.Column("uuid", sa.Text),
    )
    op.create_index("ix_proofs_operator_gpu", "proofs", ["operator", "gpu"])
    op.create_index("ix_proofs_uuid", "proofs", ["uuid"], unique=True)
