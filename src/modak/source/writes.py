"""Writing through the view: the rule for INSERT, the triggers for the rest, and defaults that stand for the heap's own.

The functions belong to the table's owner and do what he may do, as a plain view would; a trigger that somebody puts on the heap never
runs with more.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence

from psycopg import sql

from modak.connection import Connection
from modak.core.lake_table import Shape
from modak.core.table import Column, Name, Relation
from modak.source import keys
from modak.source.expressions import canonical_key, encoded_key, raw, reference, row_image
from modak.source.keys import references
from modak.source.relation import SQL
from modak.source.routines import close
from modak.source.spill import identifier
from modak.source.view import corrected_columns

TRIGGER = "modak_write"
AFTERWARDS = "modak_missed"  # by its name before the next one, and that before the note is taken back
ASK = "modak_missed_ask"
_TEMPLATES = (
    "write", "unseat", "missed", "same", "watch", "correct", "taken", "older", "key_is_indexed", "check_keys", "insert_rule",
    "planned_once", "two_tier_view", "spill_guard", "spill_mirror", "capture", "newcomer", "unregister_first",
)  # fmt: skip
NOTES = {"modak_note_before": "before", "modak_note_after": "after"}


def function_names(table_id: int) -> tuple[str, ...]:
    own = (f"write_{table_id}", f"unseat_{table_id}", f"missed_{table_id}", f"same_{table_id}", f"watch_{table_id}", f"correct_{table_id}")
    return (*own, *keys.function_names(table_id), f"unregister_first_{table_id}")


def define(
    connection: Connection, relation: Relation, shape: Shape, heap: Name, view: Name, text_columns: Sequence[str], build: int
) -> None:
    """(Re)create functions, rule and triggers for the columns the heap has now and this build of the cold relation."""
    keys.define(connection, relation, shape, heap, text_columns, build)
    connection.execute(
        SQL.template(
            "same",
            function=sql.Identifier(function_names(shape.table_id)[3]),
            heap=identifier(heap),
            image_one=raw(row_image(shape.columns, "one")),
            image_other=raw(row_image(shape.columns, "other")),
        )
    )
    connection.execute(
        SQL.template(
            "watch",
            function=sql.Identifier(function_names(shape.table_id)[4]),
            heap=identifier(heap),
            table_id=sql.Literal(shape.table_id),
            **_asked(shape),
        )
    )
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
    _keep(connection, view, shape.table_id)
    close(connection, function_names(shape.table_id))
    note = sql.SQL("comment on function modak.{}() is {}").format(sql.Identifier(function_names(shape.table_id)[0]), sql.Literal(edition()))
    connection.execute(note)
    _give(connection, shape.table_id, relation.owner)


def _keep(connection: Connection, view: Name, table_id: int) -> None:
    """A function that takes the view's rows: as long as there is one, Postgres refuses to drop the view, and names it."""
    let_go(connection, table_id)
    connection.execute(SQL.template("unregister_first", function=sql.Identifier(function_names(table_id)[-1]), view=identifier(view)))


def let_go(connection: Connection, table_id: int) -> None:
    """The view may go: by our own hand, that is."""
    connection.execute(sql.SQL("drop function if exists modak.{}").format(sql.Identifier(function_names(table_id)[-1])))


@functools.cache
def edition() -> str:
    """What this release makes around a table, in one word. The triggers' own form counts as the number in front."""
    texts = [SQL.text("templates", f"{name}.sql") for name in _TEMPLATES]
    return f"modak 8 {hashlib.sha256(chr(0).join(texts).encode()).hexdigest()[:16]}"


def is_current(connection: Connection, table_id: int) -> bool:
    """Whether the functions are those of this release; the note on one of them tells."""
    row = connection.execute(
        "select obj_description(to_regprocedure(%s), 'pg_proc') = %s as current", [f"modak.{function_names(table_id)[0]}()", edition()]
    ).fetchone()
    return bool(row and row["current"])


def _define_unseat(
    connection: Connection, relation: Relation, shape: Shape, shared: Mapping[str, sql.Composable], text_columns: Sequence[str]
) -> None:
    key_columns = [column for column in shape.columns if column.name in shape.primary_key]
    _, unseat, _, same, watch, correct, *_ = function_names(shape.table_id)
    # Earlier releases had it with one argument.
    connection.execute(sql.SQL("drop function if exists modak.{}({})").format(sql.Identifier(unseat), shared["heap"]))
    connection.execute(
        SQL.template(
            "unseat",
            **shared,
            function=sql.Identifier(unseat),
            same=sql.Identifier(same),
            watch=sql.Identifier(watch),
            setting=_seen(shape),
            met=_met(shape),
            tier_key=sql.Identifier(shape.tier_key),
            tier_key_text=sql.Literal(shape.tier_key),
            pk_seen=raw(encoded_key(shape.primary_key, "seen")),
            canonical_seen=raw(canonical_key(shape.key_type, reference(shape.tier_key, "seen"))),
            key_image_seen=raw(row_image(key_columns, "seen")),
            corrected=corrected_columns(relation),
            lake_is_seen=keys.in_lake(relation, _place(shape), text_columns, "seen"),
        )
    )
    connection.execute(
        SQL.template(
            "correct",
            **shared,
            function=sql.Identifier(correct),
            unseat=sql.Identifier(unseat),
            pk_made=raw(encoded_key(shape.primary_key, "made")),
            image_made=raw(row_image(shape.columns, "made")),
        )
    )


def _define_write(connection: Connection, relation: Relation, shape: Shape, heap: Name, settable: Sequence[Column]) -> None:
    write, unseat, missed, same, _, correct, taken, *_ = function_names(shape.table_id)
    stored = [column for column in relation.columns if not column.generated]
    fixed = [column for column in relation.columns if column.identity == "a" or column.generated]
    sequences = _identity_sequences(connection, relation)
    shared: dict[str, sql.Composable] = {
        "heap": identifier(heap),
        "table_id": sql.Literal(shape.table_id),
        "table_text": sql.Literal(str(shape.registered)),
    }
    connection.execute(
        SQL.template(
            "missed",
            **shared,
            **_asked(shape),
            function=sql.Identifier(missed),
            missed=sql.Literal(f"modak.missed_{shape.table_id}"),
            is_gone=raw(" and ".join(f"{reference(name, 'h')} = {reference(name, 'gone')}" for name in _place(shape))),
        )
    )
    connection.execute(
        SQL.template(
            "write",
            **shared,
            function=sql.Identifier(write),
            unseat=sql.Identifier(unseat),
            correct=sql.Identifier(correct),
            new_place=raw(", ".join(reference(name, "new") for name in _place(shape))),
            old_place=raw(", ".join(reference(name, "old") for name in _place(shape))),
            place_names=raw(f"{sql.Literal(_place(shape)).as_string()}::pg_catalog.text[]"),
            taken=sql.Identifier(taken),
            same=sql.Identifier(same),
            is_old=raw(" and ".join(_equal(name) for name in _place(shape))),
            setting=_seen(shape),
            met=_met(shape),
            heap_text=sql.Literal(str(heap)),
            meets=raw(_meets(relation, shape)),
            standing_columns=references(relation.columns, "standing"),
            left_as_it_was=raw("pg_catalog.record_image_eq(changed, old)"),
            first_time=raw(f"(is_first or {_first_time('version')})"),
            first_time_here=raw(_first_time("h")),
            notes=raw(_noted(shape)),
            columns=references(relation.columns),
            heap_columns=references(relation.columns, "h"),
            stored_columns=references(stored),
            old_columns=references(relation.columns, "old"),
            new_columns=references(relation.columns, "new"),
            old_keys=keys.key_references(shape, "old"),
            new_keys=keys.key_references(shape, "new"),
            standing_keys=keys.key_references(shape, "standing"),
            is_standing=raw(" and ".join(_equal(name, "standing") for name in _place(shape))),
            is_changed=raw(" and ".join(_equal(name, "changed") for name in _place(shape))),
            old_values=references(stored, "old"),
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


def _seen(shape: Shape) -> sql.Literal:
    return sql.Literal(f"modak.seen_{shape.table_id}")


def _met(shape: Shape) -> sql.Literal:
    return sql.Literal(f"modak.met_{shape.table_id}")


def _asked(shape: Shape) -> dict[str, sql.Composable]:
    """Settings: which statements have opened cursors before they waited, and which rows these are asked for."""
    return {name: sql.Literal(f"modak.{name}_{shape.table_id}") for name in ("watched", "asked", "versions")}


def _noted(shape: Shape) -> str:
    """Always true; it notes the version of the row that a query has in its hands, for a writer who finds it gone after he waited for it,
    and prepares for that where somebody holds the row."""
    noted = f"pg_catalog.set_config({_met(shape).as_string()}, pg_catalog.concat(h.tableoid, h.ctid), true) is not null"
    watch = sql.Identifier(function_names(shape.table_id)[4]).as_string()
    return f"{noted} and (h.xmax OPERATOR(pg_catalog.=) '0'::pg_catalog.xid or modak.{watch}(h.xmax))"


def _meets(relation: Relation, shape: Shape) -> str:
    """The row is what the statement saw. CASE: the note comes first, whatever the planner thinks. The old row is compared as it is: to
    put that together column by column would take a sixth of the time that the row takes. The heap's is not: somebody may have given it
    more columns since. The function's name says that no column "old" is meant."""
    own = sql.Identifier(function_names(shape.table_id)[0]).as_string()
    here = references(relation.columns, "h").as_string()
    return f"case when {_noted(shape)} then pg_catalog.record_image_eq(row({here}), {own}.old) end"


def _first_time(row: str) -> str:
    """The statement has not written this row before; it has noted since which command it left rows as they were."""
    written = f"{row}.cmin::pg_catalog.text::pg_catalog.int8"
    since = "pg_catalog.split_part(here.entry, '/', 3)::pg_catalog.int8"  # a column may be called entry, too
    return f"({written} OPERATOR(pg_catalog.<) {since} or not modak.is_own_change({row}.xmin))"


def _assigned(columns: Sequence[Column]) -> sql.SQL:
    return raw(", ".join(f"{reference(column.name)} = {reference(column.name, 'new')}" for column in columns))


def _place(shape: Shape) -> list[str]:
    """The columns that say which row it is and where it stands."""
    return list(dict.fromkeys((*shape.primary_key, shape.tier_key)))


def _give(connection: Connection, table_id: int, owner: str) -> None:
    """To the table's owner: whoever registers may do more than he, and his triggers on the heap must not."""
    found = connection.execute(SQL.query("list_given"), {"names": list(function_names(table_id)), "owner": owner}).fetchall()
    lends = any(not row["is_superuser"] for row in found)
    lent = lends and connection.execute("select modak.lend_schema(%s, true) as lent", [table_id]).fetchone() == {"lent": True}
    for row in found:
        connection.execute(sql.SQL("alter function {} owner to {}").format(raw(row["routine"]), sql.Identifier(owner)))
    if lent:
        connection.execute("select modak.lend_schema(%s, false)", [table_id])


def _set_triggers(connection: Connection, view: Name, table_id: int) -> None:
    connection.execute(
        sql.SQL("create or replace trigger {} instead of insert or update or delete on {} for each row execute function modak.{}()").format(
            sql.Identifier(TRIGGER), identifier(view), sql.Identifier(function_names(table_id)[0])
        )
    )
    connection.execute(
        sql.SQL("create or replace trigger {} after update or delete on {} for each statement execute function modak.{}()").format(
            sql.Identifier(AFTERWARDS), identifier(view), sql.Identifier(function_names(table_id)[2])
        )
    )
    ask = "create or replace trigger {} after update or delete on {} for each statement execute function modak.ask_missed({})"
    connection.execute(sql.SQL(ask).format(sql.Identifier(ASK), identifier(view), sql.Literal(str(table_id))))
    events = "insert or update or delete"  # An INSERT goes by the rule, and fires none of these; COPY does.
    note = sql.SQL(f"create or replace trigger {{}} {{}} {events} on {{}} for each statement execute function modak.note_line({{}})")
    for name, when in NOTES.items():
        connection.execute(note.format(sql.Identifier(name), raw(when), identifier(view), sql.Literal(str(table_id))))


def _equal(column: str, row: str = "old") -> str:
    return f"{reference(column, 'h')} OPERATOR(pg_catalog.=) {reference(column, row)}"


def _unchanged(column: Column) -> str:
    """What is generated always cannot be set, in the heap's own words. DEFAULT for a computed column comes as NULL: the view has none."""
    same = f"pg_catalog.record_image_eq(row({reference(column.name, 'new')}), row({reference(column.name, 'old')}))"
    if column.generated:
        same = f"({reference(column.name, 'new')} is null or {same})"
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
    return f"coalesce({new}, modak.next_identity({int(sequences[column.name])}::pg_catalog.oid))" if column.identity == "a" else new


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
