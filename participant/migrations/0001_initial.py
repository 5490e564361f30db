"""The journal and the jobs of a site."""

import sqlalchemy as sa
from alembic import op

revision = "participant_0001"
down_revision = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "journal",
        sa.Column("run", sa.String(120), primary_key=True),
        sa.Column("kind", sa.String(100), primary_key=True),
        sa.Column("sender", sa.String(63), primary_key=True),
        sa.Column("receiver", sa.String(63), primary_key=True),
        sa.Column("job_id", sa.String(100), nullable=False, index=True),
        sa.Column("payload", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(100), primary_key=True),
        sa.Column("spec", sa.LargeBinary, nullable=False),
        sa.Column("analyst", sa.String(63), nullable=False),
        # open, done or failed
        sa.Column("state", sa.String(20), nullable=False),
        # "", pending, approved or refused
        sa.Column("approval", sa.String(20), nullable=False, server_default=""),
        sa.Column("reason", sa.Text, nullable=False, server_default=""),
        sa.Column("deadline_at_ms", sa.BigInteger, nullable=False),
        sa.Column("received_at_ms", sa.BigInteger, nullable=False),
        sa.Column("error", sa.Text, nullable=False, server_default=""),
    )
