"""Writing through the view: the rule for INSERT, the triggers for the rest, and defaults that stand for the heap's own.

The functions belong to the table's owner and do what he may do, as a plain view would; a trigger that somebody puts on the heap never
runs with more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from psycopg import sql

from modak.connection import Connection
from modak.core.lake_table import Shape
from modak.core.table import Column, Name, Relation
from modak.source import keys
from modak.source.expressions import canonical_key, encoded_key, raw, reference, row_image
from modak.source.keys import references
from modak.source.relation import SQL
from modak.source.spill import identifier
from modak.source.view import corrected_columns

TRIGGER = "modak_write"
NOTES = {"modak_note_before": "before", "modak_note_after": "after"}


def function_names(table_id: int) -> tuple[str, ...]:
    return (f"write_{table_id}", f"unseat_{table_id}", *keys.function_names(table_id))


def define(
    connection: Connection, relation: Relation, shape: Shape, heap: Name, view: Name, text_columns: Sequence[str], build: int
) -> None:
    """(Re)create functions, rule and triggers for the columns the heap has now and this build of the cold relation."""
    keys.define(connection, relation, shape, heap, text_columns, build)
    _define_unseat(connection, relation, shape, keys.parts(relation, shape, heap, text_columns, build), text_columns)
    stored = [column for column in relation.columns if not column.generated]
    always = [column for column in relation.columns if column.identity == "a"]
    settable = [column for column in stored if column not in always]
    _define_write(connection, relation, shape, heap, settable)
    connection.execute(
        SQL.template(
            "insert_rule",
            heap=identifier(heap),
            view=identifier(view),
            heap_columns=references(relation.columns, identifier(heap).as_string()),
            insert_columns=references(settable),
            insert_values=raw(", ".join(_inserted(settable, always))),
        )
    )
    _set_triggers(connection, view, shape.table_id)
    for function in function_names(shape.table_id):
        _give(connection, function, relation.owner)


def _define_unseat(
    connection: Connection, relation: Relation, shape: Shape, shared: Mapping[str, sql.Composable], text_columns: Sequence[str]
) -> None:
    key_columns = [column for column in shape.columns if column.name in shape.primary_key]
    # A key that holds the tier key has one place only.
    elsewhere = SQL.template(
        "look_elsewhere",
        **shared,
        heap_has_key=raw(" and ".join(f"{reference(name, 'h')} = {reference(name, 'seen')}" for name in shape.primary_key)),
        lake_has_key=keys.in_lake(relation, shape.primary_key, text_columns, "seen"),
    )
    connection.execute(
        SQL.template(
            "unseat",
            **shared,
            function=sql.Identifier(function_names(shape.table_id)[1]),
            setting=sql.Literal(f"modak.seen_{shape.table_id}"),
            tier_key=sql.Identifier(shape.tier_key),
            tier_key_text=sql.Literal(shape.tier_key),
            pk_seen=raw(encoded_key(shape.primary_key, "seen")),
            canonical_seen=raw(canonical_key(shape.key_type, reference(shape.tier_key, "seen"))),
            key_image_seen=raw(row_image(key_columns, "seen")),
            seen_columns=references(relation.columns, "seen"),
            corrected=corrected_columns(relation),
            lake_is_seen=keys.in_lake(relation, _place(shape), text_columns, "seen"),
            look_elsewhere=raw("") if shape.tier_key in shape.primary_key else elsewhere,
        )
    )


def _define_write(connection: Connection, relation: Relation, shape: Shape, heap: Name, settable: Sequence[Column]) -> None:
    write, unseat, taken, _ = function_names(shape.table_id)
    stored = [column for column in relation.columns if not column.generated]
    fixed = [column for column in relation.columns if column.identity == "a" or column.generated]
    sequences = _identity_sequences(connection, relation)
    connection.execute(
        SQL.template(
            "write",
            function=sql.Identifier(write),
            unseat=sql.Identifier(unseat),
            taken=sql.Identifier(taken),
            heap=identifier(heap),
            table_id=sql.Literal(shape.table_id),
            table_text=sql.Literal(str(shape.registered)),
            is_old=raw(" and ".join(_equal(name) for name in _place(shape))),
            is_unchanged=raw(
                f"pg_catalog.record_image_eq(row({references(relation.columns, 'h').as_string()}), "
                f"row({references(relation.columns, 'old').as_string()}))"
            ),
            columns=references(relation.columns),
            heap_columns=references(relation.columns, "h"),
            stored_columns=references(stored),
            standing_columns=references(relation.columns, "standing"),
            old_columns=references(relation.columns, "old"),
            new_columns=references(relation.columns, "new"),
            old_keys=keys.key_references(shape, "old"),
            new_keys=keys.key_references(shape, "new"),
            new_values=references(stored, "new"),
            copied_values=raw(", ".join(_copied(column, sequences) for column in stored)),
            overriding=raw("overriding system value" if any(column.identity == "a" for column in stored) else ""),
            assignments=_assigned(settable),
            # A key that stays is not assigned: the heap's own triggers on its columns have nothing to see.
            rest_assigned=_assigned([column for column in settable if column.name not in shape.primary_key] or settable),
            planned_once=SQL.template("planned_once", function=sql.Identifier(write), is_old_in_part=raw(_equal(_place(shape)[0]))),
            check_generated=raw("\n        ".join(map(_unchanged, fixed))),
        )
    )


def _assigned(columns: Sequence[Column]) -> sql.SQL:
    return raw(", ".join(f"{reference(column.name)} = {reference(column.name, 'new')}" for column in columns))


def _place(shape: Shape) -> list[str]:
    """The columns that say which row it is and where it stands."""
    return list(dict.fromkeys((*shape.primary_key, shape.tier_key)))


def _give(connection: Connection, function: str, owner: str) -> None:
    """To the table's owner. Only a superuser can; anybody else who registers has the owner's rights already."""
    row = connection.execute("select rolsuper, rolname = %s as is_owner from pg_roles where rolname = current_user", [owner]).fetchone()
    if row and row["rolsuper"] and not row["is_owner"]:
        connection.execute(sql.SQL("alter function modak.{} owner to {}").format(sql.Identifier(function), sql.Identifier(owner)))


def _set_triggers(connection: Connection, view: Name, table_id: int) -> None:
    connection.execute(
        sql.SQL("create or replace trigger {} instead of insert or update or delete on {} for each row execute function modak.{}()").format(
            sql.Identifier(TRIGGER), identifier(view), sql.Identifier(function_names(table_id)[0])
        )
    )
    note = sql.SQL("create or replace trigger {} {} update or delete on {} for each statement execute function modak.note_line({})")
    for name, when in NOTES.items():
        connection.execute(note.format(sql.Identifier(name), raw(when), identifier(view), sql.Literal(str(table_id))))


def _equal(column: str) -> str:
    return f"{reference(column, 'h')} OPERATOR(pg_catalog.=) {reference(column, 'old')}"


def _unchanged(column: Column) -> str:
    """What is generated always cannot be set, in the heap's own words."""
    same = f"pg_catalog.record_image_eq(row({reference(column.name, 'new')}), row({reference(column.name, 'old')}))"
    name = sql.Literal(column.name).as_string()
    return f"if not {same} then raise exception 'column \"%\" can only be updated to DEFAULT', {name} using errcode = '428C9'; end if;"


def _inserted(columns: Sequence[Column], always: Sequence[Column]) -> list[str]:
    """Values of the rule. A column that is generated always takes none; the first value carries the test of that."""
    values = [reference(column.name, "new") for column in columns]
    for column in always:
        given = f"modak.not_given({reference(column.name, 'new')}::bigint, {sql.Literal(column.name).as_string()})"
        values[0] = f"case when {given} then {values[0]} end"
    return values


def _copied(column: Column, sequences: Mapping[str, int]) -> str:
    """COPY keeps a value it is given, even for a column that is generated always, and generates where there is none."""
    new = reference(column.name, "new")
    return f"coalesce({new}, modak.next_identity({int(sequences[column.name])}::oid))" if column.identity == "a" else new


def _identity_sequences(connection: Connection, relation: Relation) -> dict[str, int]:
    rows = connection.execute(SQL.query("list_identity_sequences"), {"oid": relation.oid}).fetchall()
    return {row["column_name"]: row["sequence_id"] for row in rows}


def set_defaults(connection: Connection, relation: Relation, view: Name) -> None:
    """Defaults of the heap on the view; that of an identity by default is the next value of its sequence."""
    sequences = _identity_sequences(connection, relation)
    for column in relation.columns:
        default = f"modak.next_identity({int(sequences[column.name])}::oid)" if column.identity == "d" else column.default
        action = sql.SQL("set default {}").format(raw(default)) if default is not None else sql.SQL("drop default")
        connection.execute(sql.SQL("alter view {} alter column {} {}").format(identifier(view), sql.Identifier(column.name), action))


def remove(connection: Connection, table_id: int) -> None:
    """Forget the functions; the view and its trigger are gone by now."""
    for function in function_names(table_id):
        connection.execute(sql.SQL("drop function if exists modak.{} cascade").format(sql.Identifier(function)))
