"""The surface: which relation carries the user's name, and everything that must look the same afterwards.

The heap keeps its OID, rows, indexes, constraints and triggers; a view takes its place and gets owner, grants, comments and defaults.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from psycopg import sql

from modak.connection import Connection
from modak.core.lake_table import Shape
from modak.core.table import Dependent, Name, Relation
from modak.source import cold, view, writes
from modak.source.relation import SQL
from modak.source.spill import identifier

FIRST_BUILD = 1

_PRIVILEGES = {"SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER", "MAINTAIN"}


@dataclass(frozen=True)
class Plan:
    """What the two-tier view of a table is made of."""

    relation: Relation
    shape: Shape
    heap: Name
    view: Name
    text_columns: tuple[str, ...]


def create_view(connection: Connection, plan: Plan) -> None:
    """The two-tier view and everything behind it. Nothing is cold yet, so its cold side has no foreign table."""
    relation, name = plan.relation, plan.view
    view.create_delta(connection, relation.oid)
    build(connection, plan, FIRST_BUILD)
    # The owner first: a grant to the role that registers would otherwise count as its owner's and go with the ownership.
    connection.execute(sql.SQL("alter view {} owner to {}").format(identifier(name), sql.Identifier(relation.owner)))
    copy_grants(connection, relation.oid, name)


def build(connection: Connection, plan: Plan, number: int) -> None:
    """A new build of the cold side, the view over it and the ways to write through it, for the columns the heap has now."""
    cold.create(connection, plan.relation, plan.shape.tier_key, plan.text_columns, number)
    view.define(connection, plan.relation, plan.shape, plan.heap, plan.view, plan.text_columns, number)
    writes.define(connection, plan.relation, plan.shape, plan.heap, plan.view, plan.text_columns, number)
    writes.set_defaults(connection, plan.relation, plan.view)
    copy_comments(connection, plan.relation, plan.view)


def remove(connection: Connection, table_id: int, number: int) -> None:
    """What stood behind a view that is gone."""
    writes.remove(connection, table_id)
    cold.drop(connection, table_id, number)
    view.drop_delta(connection, table_id)


def copy_comments(connection: Connection, relation: Relation, target: Name) -> None:
    if relation.comment is not None:
        connection.execute(sql.SQL("comment on view {} is {}").format(identifier(target), sql.Literal(relation.comment)))
    for column in relation.columns:
        if column.comment is not None:
            where = sql.Identifier(target.schema, target.name, column.name)
            connection.execute(sql.SQL("comment on column {} is {}").format(where, sql.Literal(column.comment)))


def copy_grants(connection: Connection, source_oid: int, target: Name, gone: Collection[str] = ()) -> None:
    """Make the target's grants those of the source, whatever default privileges gave it. What is equal is not touched: a grant that
    somebody passed on keeps its grantor. Columns that are gone, by now another's name perhaps, leave none."""
    target_oid = oid_of(connection, target)
    wanted = {grant for grant in _grants(connection, source_oid) if grant.column not in gone}
    for grant in sorted(_grants(connection, target_oid) - wanted):
        _change(connection, "revoke {} on {} from {} cascade", grant, target)
    for grant in sorted(wanted - _grants(connection, target_oid)):
        _change(connection, "grant {} on {} to {}" + (" with grant option" if grant.grantable else ""), grant, target)


class Grant(NamedTuple):
    column: str  # '' for the whole relation
    to_public: bool
    grantee: str
    privilege: str
    grantable: bool


def _grants(connection: Connection, oid: int) -> set[Grant]:
    found = connection.execute(SQL.query("list_grants"), {"oid": oid}).fetchall()
    return {Grant(**row) for row in found if row["privilege"] in _PRIVILEGES}


def _change(connection: Connection, statement: str, grant: Grant, target: Name) -> None:
    what: sql.Composable = sql.SQL(grant.privilege)
    if grant.column:
        what = sql.SQL("{} ({})").format(what, sql.Identifier(grant.column))
    who = sql.SQL("public") if grant.to_public else sql.Identifier(grant.grantee)
    connection.execute(sql.SQL(statement).format(what, identifier(target), who))


def oid_of(connection: Connection, name: Name) -> int:
    row = connection.execute(
        "select to_regclass(format('%%I.%%I', %s::text, %s::text))::oid::bigint as oid", [name.schema, name.name]
    ).fetchone()
    return int(row["oid"]) if row and row["oid"] is not None else 0


def definitions(connection: Connection, dependents: Sequence[Dependent]) -> list[str]:
    """CREATE OR REPLACE statements of views and functions, with full names: run after a rename, they bind to the new bearer of a name."""
    found = []
    for dependent in dependents:
        if dependent.kind == "view":
            row = connection.execute(SQL.query("define_view"), {"oid": dependent.oid}).fetchone()
        else:
            row = connection.execute(SQL.query("define_function"), {"oid": dependent.oid}).fetchone()
        if row is not None:
            found.append(str(row["definition"]))
    return found


def redefine(connection: Connection, statements: Sequence[str]) -> None:
    # Two passes would be needed for views on views; those depend on the inner view, not on the heap, and stay as they are.
    for statement in statements:
        connection.execute(sql.SQL(statement))


def rename(connection: Connection, kind: str, name: Name, to: str) -> Name:
    connection.execute(sql.SQL("alter {} {} rename to {}").format(sql.SQL(kind), identifier(name), sql.Identifier(to)))
    return Name(name.schema, to)
