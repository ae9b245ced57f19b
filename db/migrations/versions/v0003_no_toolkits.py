"""No table of toolkits: nothing ever wrote one, since a result names the toolkit that made it."""

from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.drop_table("toolkits")
