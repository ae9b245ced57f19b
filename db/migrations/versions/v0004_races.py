"""Final races, round by round, with what the device was like: what their records were settled by."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_table(
        "races",
        sa.Column("id", sa.Integer, primary_key=True),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("operator", "problem", "gpu", "created", "race")),
    )
    op.create_index("ix_races_operator_problem_gpu", "races", ["operator", "problem", "gpu"])
