"""The surface: which relation carries the user's name, and everything that must look the same afterwards.

The heap keeps its OID, rows, indexes, constraints and triggers; a view takes its place and gets owner, grants, comments and defaults.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from psycopg import sql

from modak.connection import Connection
from modak.core.table import Dependent, Name, Relation
from modak.source.relation import SQL
from modak.source.spill import identifier

_PRIVILEGES = {"SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER", "MAINTAIN"}


def create_view(connection: Connection, relation: Relation, heap: Name, view: Name) -> None:
    """The view over the heap. Nothing is cold yet, so it is the plain one, which Postgres itself can write through."""
    columns = sql.SQL(", ").join(sql.Identifier(column.name) for column in relation.columns)
    connection.execute(sql.SQL("create view {} as select {} from {}").format(identifier(view), columns, identifier(heap)))
    copy_defaults(connection, relation, view)
    copy_comments(connection, relation, view)
    # The owner first: a grant to the role that registers would otherwise count as its owner's and go with the ownership.
    connection.execute(sql.SQL("alter view {} owner to {}").format(identifier(view), sql.Identifier(relation.owner)))
    copy_grants(connection, relation.oid, view)


def copy_defaults(connection: Connection, relation: Relation, view: Name) -> None:
    for column in relation.columns:
        # Identity stays with the heap, which fills it in; a default on the view would hide it.
        if column.default is not None and not column.identity:
            connection.execute(
                sql.SQL("alter view {} alter column {} set default {}").format(
                    identifier(view), sql.Identifier(column.name), sql.SQL(column.default)
                )
            )


def copy_comments(connection: Connection, relation: Relation, view: Name) -> None:
    if relation.comment is not None:
        connection.execute(sql.SQL("comment on view {} is {}").format(identifier(view), sql.Literal(relation.comment)))
    for column in relation.columns:
        if column.comment is not None:
            where = sql.Identifier(view.schema, view.name, column.name)
            connection.execute(sql.SQL("comment on column {} is {}").format(where, sql.Literal(column.comment)))


def copy_grants(connection: Connection, source_oid: int, target: Name) -> None:
    """Make the target's grants those of the source, whatever default privileges gave it. What is equal is not touched: a grant that
    somebody passed on keeps its grantor."""
    wanted, target_oid = _grants(connection, source_oid), oid_of(connection, target)
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
