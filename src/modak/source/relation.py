"""Read a user's table out of Postgres's catalogs."""

from __future__ import annotations

import re

from modak.connection import Connection
from modak.core.table import Column, Dependent, Leaf, Name, Relation, Trigger
from modak.core.type_map import PgType
from modak.errors import NotFound, UsageError
from modak.sqlfiles import SqlFiles

SQL = SqlFiles("modak.source")

_PART = re.compile(r'"((?:[^"]|"")+)"|([^".]+)')


def parse_name(text: str) -> Name:
    """``schema.table`` as a person types it: quotes where a part has dots or capitals, otherwise taken as it stands."""
    parts: list[str] = []
    position = 0
    while position < len(text):
        match = _PART.match(text, position)
        if match is None or (match.end() < len(text) and text[match.end()] != "."):
            raise UsageError(f"cannot read the table name {text!r}", hint='write schema.table, with "double quotes" around odd names')
        parts.append(match[1].replace('""', '"') if match[1] is not None else match[2])
        position = match.end() + 1
    if len(parts) != 2 or text.endswith("."):
        raise UsageError(f"table name {text!r} must be schema.table", hint=f"for example public.{parts[-1] if parts else 'events'}")
    return Name(parts[0], parts[1])


class TypeGone(NotFound):
    """A column was of a type that is not there any more."""

    def __init__(self, oid: int, display: str) -> None:
        super().__init__(f"type {display} vanished while it was read", hint="run the command again")
        self.oid = oid


def describe(connection: Connection, name: Name) -> Relation:
    """Everything registration wants to know about a table."""
    row = connection.execute(SQL.query("read_relation"), {"schema": name.schema, "name": name.name}).fetchone()
    if row is None:
        raise NotFound(f"there is no table {name}", hint=_nearest(connection, name))
    keys = {"oid": row["oid"]}
    unique = connection.execute(SQL.query("list_unique_keys"), keys).fetchall()
    is_table = row["kind"] in "rp"
    return Relation(
        oid=row["oid"],
        name=name,
        kind=row["kind"],
        persistence=row["persistence"],
        owner=row["owner"],
        may_alter=row["may_alter"],
        strategy=row["strategy"],
        key_columns=tuple(row["key_columns"]),
        columns=columns_of(connection, row["oid"]),
        primary_key=next((tuple(key["columns"]) for key in unique if key["is_primary"]), ()),
        unique_keys=tuple(tuple(key["columns"]) for key in unique),
        partitions=_partitions(connection, row["oid"]) if is_table else (),
        row_security=row["row_security"],
        is_partition=row["is_partition"],
        inherits=row["inherits"],
        comment=row["comment"],
        dependents=dependents(connection, row["oid"]) if is_table else (),
        triggers=tuple(Trigger(**line) for line in connection.execute(SQL.query("list_triggers"), keys).fetchall()),
        publications=tuple(line["name"] for line in connection.execute(SQL.query("list_publications"), keys).fetchall()),
        siblings=names_in(connection, name.schema),
    )


def _nearest(connection: Connection, name: Name) -> str:
    """Case is the usual mistake: say so when it is."""
    for other in sorted(names_in(connection, name.schema)):
        if other.lower() == name.name.lower() and other != name.name:
            return f"did you mean {Name(name.schema, other)}? names are taken as they stand, capitals included"
    return "give it as schema.table; `\\dt *.*` in psql lists what is there"


def names_in(connection: Connection, schema: str) -> frozenset[str]:
    """Every name of a schema that a new relation could not have."""
    rows = connection.execute(SQL.query("list_sibling_names"), {"schema": schema}).fetchall()
    return frozenset(row["name"] for row in rows)


def columns_of(connection: Connection, oid: int) -> tuple[Column, ...]:
    rows = connection.execute(SQL.query("list_columns"), {"oid": oid}).fetchall()
    return tuple(
        Column(
            name=row["name"],
            type=resolve_type(connection, row["type_oid"], row["modifier"], row["display"]),
            not_null=row["not_null"],
            default=None if row["generated"] else row["default_expression"],
            identity=row["identity"],
            generated=row["generated"],
            comment=row["comment"],
            number=row["number"],
            collation=tuple(row["collation"]) if row["collation"] else None,
            deterministic=row["deterministic"],
        )
        for row in rows
    )


def generated_columns(connection: Connection, oid: int) -> list[str]:
    """Columns that Postgres computes itself."""
    return [row["name"] for row in connection.execute(SQL.query("list_generated_columns"), {"oid": oid}).fetchall()]


def resolve_type(connection: Connection, oid: int, modifier: int, display: str) -> PgType:
    """A type with its domains peeled off and its element, if it is an array, resolved the same way."""
    row = connection.execute(SQL.query("read_type"), {"oid": oid}).fetchone()
    if row is None:
        raise TypeGone(oid, display)
    if row["kind"] == "d":
        inner = row["base_modifier"] if row["base_modifier"] >= 0 else modifier
        return resolve_type(connection, row["base_oid"], inner, display)
    element = resolve_type(connection, row["element_oid"], -1, row["display"]) if row["element_oid"] else None
    return PgType(display, row["name"], row["namespace"], row["kind"], modifier, element)


def _partitions(connection: Connection, oid: int) -> tuple[Leaf, ...]:
    rows = connection.execute(SQL.query("list_partitions"), {"oid": oid}).fetchall()
    return tuple(
        Leaf(
            oid=row["oid"],
            name=Name(row["schema_name"], row["table_name"]),
            parent_oid=row["parent_oid"],
            level=row["level"],
            is_leaf=row["is_leaf"],
            bound=row["bound"],
            strategy=row["strategy"],
            key_columns=tuple(row["key_columns"]),
            kind=row["kind"],
            persistence=row["persistence"],
            bytes=row["bytes"],
            estimated_rows=row["estimated_rows"],
        )
        for row in rows
    )


def find_by_oid(connection: Connection, oid: int) -> Name | None:
    """What a table is called now; None when it is gone."""
    row = connection.execute(SQL.query("find_table_by_oid"), {"oid": oid}).fetchone()
    return Name(row["schema_name"], row["table_name"]) if row else None


def dependents(connection: Connection, oid: int) -> tuple[Dependent, ...]:
    rows = connection.execute(SQL.query("list_dependents"), {"oid": oid}).fetchall()
    return tuple(Dependent(row["kind"], row["name"], row["on"], row["oid"], row["on_oid"]) for row in rows)
