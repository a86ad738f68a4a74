"""The two-tier view of a table, dropped by somebody: noticed, named, and made anew. Heap, lake, corrections and catalog are there still."""

from __future__ import annotations

from psycopg import sql

from modak.catalog import migrate, tables
from modak.catalog.tables import Registered
from modak.connection import Connection
from modak.core.columns import ColumnChanges
from modak.core.partition import PartitionState
from modak.core.registration import Options, column_problems
from modak.core.table import Name, Relation
from modak.errors import NotFound, Problem, Refused, ViewMissing
from modak.failpoints import failpoint
from modak.registration import rebuild, surface
from modak.source.locks import ATTEMPTS_MAX, bounded, retried
from modak.source.relation import describe, find_by_oid
from modak.source.sessions import lock_holders
from modak.source.spill import identifier


def find(connection: Connection, table: Registered) -> ViewMissing | None:
    row = connection.execute(migrate.SQL.query("find_missing_view"), {"table_id": table.table_id}).fetchone()
    return ViewMissing(row["message"], hint=row["hint"]) if row else None


def refuse(connection: Connection, table: Registered) -> None:
    """Without the view no pass goes on: what it would build on is not there."""
    found = find(connection, table)
    if found is not None:
        raise found


def restore(connection: Connection, table: Registered, *, attempts: int = ATTEMPTS_MAX) -> None:
    """The view again, with owner and grants of the heap. Connection in autocommit, and the caller alone on the table (``App.job``)."""
    found = find(connection, table)
    if found is None:
        return
    heap = find_by_oid(connection, table.table_id)
    if heap is None:
        raise NotFound(f"the heap of {table.name} is gone", hint=f"`modak unregister {table.name}` forgets it")
    if surface.oid_of(connection, table.view):
        # Somebody else's relation has the name.
        raise found

    def step() -> None:
        with bounded(connection):
            _make(connection, tables.get(connection, table.name), describe(connection, heap))
            failpoint("restore_view.before_commit")

    retried(step, f"view {table.view}", attempts=attempts, holders=lambda: lock_holders(connection, [heap]))


def _make(connection: Connection, table: Registered, relation: Relation) -> None:
    added = _added(connection, table, relation)
    rebuild.rebuild(connection, table, relation)
    # The owner first, as at registration.
    connection.execute(sql.SQL("alter view {} owner to {}").format(identifier(table.view), sql.Identifier(relation.owner)))
    surface.copy_grants(connection, relation.oid, table.view)
    copies = [part for part in tables.partitions(connection, table.table_id) if part.state is PartitionState.TIERED]
    standing = [*rebuild.spills(table, relation), *(Name(part.schema, part.name) for part in copies)]
    rebuild.follow_images(connection, table, relation, added, standing)


def _added(connection: Connection, table: Registered, relation: Relation) -> ColumnChanges:
    """Columns that came to the heap meanwhile. Any other change Postgres would have refused under the view; corrections and lake speak of
    the columns as they were, and have to be found again first."""
    built = rebuild.built_columns(connection, table)
    known, there = [column.name for column in built or relation.columns], [column.name for column in relation.columns]
    if there[: len(known)] != known:
        problem = Problem("columns", f"the view was made for {', '.join(known)}; the heap has {', '.join(there)}")
        hint = "give the heap's columns their old names and places back, make the view anew, and change them with `modak alter`"
        raise Refused(f"the view {table.view} was not made anew: the columns of the heap changed", [problem], hint=hint)
    options = Options(tier_key=table.tier_key_col, primary_key=table.primary_key_cols, text_columns=table.text_cols)
    problems = column_problems(relation, options)
    if problems:
        raise Refused(f"{table.name} has columns that the lake cannot take", problems, hint="drop them, then make the view anew")
    return ColumnChanges(added=relation.columns[len(known) :])
