"""Several projects in one store: all there is belongs to the first one, and everybody is its member."""

import sqlalchemy as sa
from alembic import op

from penstock.feedback import schema
from penstock.feedback.records import DEFAULT

revision = "m0008"
down_revision = "m0007"


def upgrade() -> None:
    """Make the tables, and find tasks and answers by their project."""
    connection = op.get_bind()
    for table in (schema.projects, schema.members):
        table.create(connection)
    connection.execute(schema.projects.insert().values(name=DEFAULT, body="{}", added=0.0))
    everybody = sa.select(sa.literal(DEFAULT), schema.annotators.c.name)
    connection.execute(schema.members.insert().from_select(["project", "annotator"], everybody))
    for name in ("tasks", "exclusions", "answers", "progress"):
        if "project" not in {
            column["name"] for column in sa.inspect(connection).get_columns(name)
        }:  # m0006 makes it as it is now
            op.add_column(name, schema.project_column())
    for table, index in ((schema.progress, "progress_queue"), (schema.answers, "answers_of_annotator")):
        op.drop_index(index, table.name)
        next(one for one in table.indexes if one.name == index).create(connection)
