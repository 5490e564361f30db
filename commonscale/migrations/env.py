"""Alembic's entry point, for every database of the project: the caller hands in the connection."""

from alembic import context

connection = context.config.attributes["connection"]
context.configure(connection=connection, transactional_ddl=True)
context.run_migrations()
