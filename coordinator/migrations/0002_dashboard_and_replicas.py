"""When messages came, how far jobs are, observers and incidents; payloads and keys that replicas share."""

import sqlalchemy as sa
from alembic import op

revision = "coordinator_0002"
down_revision = "coordinator_0001"


def upgrade() -> None:
    """Only additions, and one index for another: a replica of the release before goes on beside one of this."""
    # 0: came before there was a clock here.
    op.add_column("slots", sa.Column("stored_at_ms", sa.BigInteger, nullable=False, server_default="0"))
    # What a timeline shows is read from the index alone, past the payloads.
    op.create_index(
        "ix_slots_arrivals", "slots", ["job_id", "run", "kind", "sender", "receiver", "size_bytes", "stored_at_ms"]
    )
    op.drop_index("ix_slots_job_id", "slots")
    # A serialized Progress, by the replica that drives the job.
    op.add_column("jobs", sa.Column("progress", sa.LargeBinary))
    # The rounds of an ended job, which outlive its messages.
    op.add_column("jobs", sa.Column("rounds_json", sa.Text, nullable=False, server_default=""))
    op.add_column("sites", sa.Column("left_at_ms", sa.BigInteger, nullable=False, server_default="0"))
    op.create_table(
        "observers",
        sa.Column("name", sa.String(63), primary_key=True),
        # SHA-256 of a token that was shown once.
        sa.Column("token_sha256", sa.LargeBinary(32), nullable=False, unique=True),
        sa.Column("made_at_ms", sa.BigInteger, nullable=False),
        sa.Column("expires_at_ms", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "incidents",
        # The same thing of the same one again is counted here.
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("at_ms", sa.BigInteger, nullable=False, index=True),
        sa.Column("what", sa.String(100), nullable=False),
        sa.Column("who", sa.String(200), nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("remedy", sa.Text, nullable=False),
        sa.Column("times", sa.Integer, nullable=False),
    )
    op.create_table(
        "payload_pieces",
        # Of a payload that stands in the database instead of a file.
        sa.Column("blob", sa.String(64), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("stored_at_ms", sa.BigInteger, nullable=False),
        sa.Column("content", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "key_sets",
        # Collective public keys for later jobs; nothing secret.
        sa.Column("name", sa.String(200), primary_key=True),
        sa.Column("content", sa.LargeBinary, nullable=False),
    )
