"""Large messages stand in files; their rows say which, and their hash."""

import sqlalchemy as sa
from alembic import op

revision = "participant_0002"
down_revision = "participant_0001"


def upgrade() -> None:
    """Two columns, empty for what is already there."""
    with op.batch_alter_table("journal") as table:
        table.add_column(sa.Column("blob", sa.String(64), nullable=True))
        table.add_column(sa.Column("sha256", sa.LargeBinary, nullable=True))
        table.alter_column("payload", existing_type=sa.LargeBinary, nullable=True)
