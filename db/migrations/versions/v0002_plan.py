"""How a config is launched, as a part of what decides whether its attempt may be reused."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("attempts", sa.Column("plan", sa.Text, nullable=False, server_default=""))
