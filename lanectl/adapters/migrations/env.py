"""Run by Alembic for each upgrade: on the connection, and in the transaction, of `database.py`."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"])
context.run_migrations()
