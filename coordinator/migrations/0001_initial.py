"""Slots, jobs and sites."""

import sqlalchemy as sa
from alembic import op

revision = "coordinator_0001"
down_revision = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "slots",
        sa.Column("run", sa.String(120), primary_key=True),
        sa.Column("kind", sa.String(100), primary_key=True),
        sa.Column("sender", sa.String(63), primary_key=True),
        sa.Column("receiver", sa.String(63), primary_key=True),
        sa.Column("job_id", sa.String(100), nullable=False, index=True),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("sha256", sa.LargeBinary(32), nullable=False),
        # Small payloads stand here, large ones in a file of that name.
        sa.Column("payload", sa.LargeBinary),
        sa.Column("blob", sa.String(64)),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(100), primary_key=True),
        sa.Column("spec", sa.LargeBinary, nullable=False),
        sa.Column("analyst", sa.String(63), nullable=False),
        sa.Column("state", sa.String(20), nullable=False, index=True),
        sa.Column("submitted_at_ms", sa.BigInteger, nullable=False),
        sa.Column("deadline_at_ms", sa.BigInteger, nullable=False),
        sa.Column("ended_at_ms", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("error", sa.Text, nullable=False, server_default=""),
        sa.Column("result_json", sa.Text, nullable=False, server_default=""),
        sa.Column("disclosure_json", sa.Text, nullable=False, server_default=""),
    )
    op.create_table(
        "sites",
        sa.Column("name", sa.String(63), primary_key=True),
        sa.Column("version", sa.String(40), nullable=False),
        sa.Column("last_seen_ms", sa.BigInteger, nullable=False),
        sa.Column("certificate_expires_ms", sa.BigInteger, nullable=False),
    )
