"""Misses of applications: the problems that no record of their own served, and how often."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.create_table(
        "misses",
        sa.Column("id", sa.Integer, primary_key=True),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("operator", "problem", "gpu", "ran", "seen")),
        sa.Column("calls", sa.Integer, nullable=False),
    )
    op.create_index("ix_misses_operator_problem_gpu", "misses", ["operator", "problem", "gpu"], unique=True)
