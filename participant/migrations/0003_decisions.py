"""Who decided on a job, when, and whether the audit log has it."""

import sqlalchemy as sa
from alembic import op

revision = "participant_0003"
down_revision = "participant_0002"


def upgrade() -> None:
    """Three columns; what was decided before says nobody."""
    with op.batch_alter_table("jobs") as table:
        table.add_column(sa.Column("decided_by", sa.String(20), nullable=False, server_default=""))
        table.add_column(sa.Column("decided_at_ms", sa.BigInteger, nullable=False, server_default="0"))
        table.add_column(sa.Column("noted", sa.Boolean, nullable=False, server_default=sa.false()))
