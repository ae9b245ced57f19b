"""Runs the steps on the connection, inside the transaction, that the store hands over."""

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    version_table=context.config.attributes["version_table"],
    render_as_batch=True,  # SQLite cannot alter a column in place
)
context.run_migrations()
