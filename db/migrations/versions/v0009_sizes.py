"""The sizes of each record's problem beside it, so that an application reads those of a family at once."""

import json

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
_AT_ONCE = 10_000


def upgrade() -> None:
    for name in ("family", "sizes"):
        op.add_column("records", sa.Column(name, sa.Text, nullable=False, server_default=""))
    _fill(op.get_bind())
    op.create_index("ix_records_operator_family_gpu_sizes", "records", ["operator", "family", "gpu", "sizes"])


def _fill(connection: sa.Connection) -> None:
    select = sa.text("SELECT id, problem FROM records WHERE id > :after ORDER BY id LIMIT :count")
    update = sa.text("UPDATE records SET family = :family, sizes = :sizes WHERE id = :id")
    after = 0
    while rows := connection.execute(select, {"after": after, "count": _AT_ONCE}).all():
        connection.execute(update, [{"id": number, **_packed(problem)} for number, problem in rows])
        after = rows[-1][0]


def _packed(problem: str) -> dict[str, str]:
    """What `tuner.store.packed` makes of a problem; empty for a text that is none."""
    try:
        fields = dict(json.loads(problem))
    except (ValueError, TypeError):
        return {"family": "", "sizes": ""}
    numbers = {name: value for name, value in sorted(fields.items()) if type(value) is int and 0 <= value < 2**62}
    family = json.dumps({**fields, **dict.fromkeys(numbers)}, sort_keys=True, separators=(",", ":"))
    return {"family": family, "sizes": " ".join(map(str, numbers.values()))}
