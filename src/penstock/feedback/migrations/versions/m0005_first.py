"""The schema that ``schema.create`` makes; later changes are migrations after this one."""

revision = "m0005"
down_revision = None


def upgrade() -> None:
    """A new store has its tables from ``schema.create``."""
