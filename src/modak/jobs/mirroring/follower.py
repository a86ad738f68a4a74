"""One mirrored table during a pass of the pump: where it is, what its columns are, and what was collected for it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from modak.catalog import migrate, mirrors, tables
from modak.catalog.mirrors import Mirror
from modak.catalog.tables import Registered
from modak.connection import Connection
from modak.core.changes import Collapse
from modak.core.columns import lake_follows
from modak.core.stream_shape import Shape, ShapeColumn, recognise
from modak.core.table import Column
from modak.errors import Problem, Refused
from modak.jobs import evolve
from modak.jobs.context import JobContext
from modak.lake.storage import Storage
from modak.source.pgoutput import RelationMessage
from modak.source.relation import SQL, resolve_type

SHAPES_MAX = 20


class CannotFollow(Refused):
    """The stream says something, or keeps it from us, that the lake cannot follow. The table is parked; `modak resync` copies it anew."""

    code = "cannot_follow"


def cannot_follow(table: Registered, what: str, *, code: str = "stream") -> CannotFollow:
    problem = Problem(code, what)
    return CannotFollow(f"{table.name} cannot be followed any further", [problem], hint=f"`modak resync {table.name}` copies it anew")


@dataclass
class Follower:
    """``collapse`` is None until the stream has described the table in this pass."""

    table: Registered
    mirror: Mirror
    storage: Storage
    shape: Shape = ()
    columns: tuple[Column, ...] = ()  # of the shape, in its order
    collapse: Collapse | None = None
    has_partial: bool = False  # a part of an open transaction is in the lake, where nobody sees it
    saw_truncate: bool = False
    suspect: str | None = None  # something that only a TRUNCATE in this pass explains; nothing is published before it came
    message: RelationMessage | None = None  # how the stream described the table, not looked at yet

    @property
    def has_changes(self) -> bool:
        return self.has_partial or (self.collapse is not None and self.collapse.changes > 0)

    @property
    def bytes(self) -> int:
        return self.collapse.bytes if self.collapse else 0

    def fresh(self) -> None:
        """Begin to collect anew, after what was collected has been taken."""
        key = [next(place for place, column in enumerate(self.shape) if column.name == name) for name in self.table.primary_key_cols]
        self.collapse = Collapse(tuple(key))

    def takes(self, message: RelationMessage) -> bool:
        """Whether the rows that follow have the shape of those before."""
        described = tuple((column.name, column.type_oid, column.modifier) for column in message.columns)
        return bool(self.shape) and tuple(column.described for column in self.shape) == described


def describe(follower: Follower, context: JobContext, message: RelationMessage, commit_lsn: int) -> None:
    """The rows that come next have these columns. What was collected before must be in the lake already."""
    connection, table = context.connection, follower.table
    described = [(column.name, column.type_oid, column.modifier) for column in message.columns]
    history = [tuple(ShapeColumn.from_json(column) for column in shape["columns"]) for shape in follower.mirror.shapes]
    found = recognise(described, history, catalog_shape(connection, table.table_id))
    if isinstance(found, str):
        raise cannot_follow(table, found)
    columns = tuple(
        Column(column.name, resolve_type(connection, column.type_oid, column.modifier, _display(connection, column)), number=column.number)
        for column in found
    )
    if _is_new(found, history, [int(shape["lsn"]) for shape in follower.mirror.shapes], commit_lsn):
        _evolve(follower, context, found, columns, history[-1] if history else (), commit_lsn)
    follower.shape, follower.columns = found, columns
    follower.fresh()


def _is_new(found: Shape, history: list[Shape], lsns: list[int], commit_lsn: int) -> bool:
    """A replay meets shapes that the lake has left behind already; it must not go back to them."""
    if not history:
        return True
    known = any(shape == found and lsn >= commit_lsn for shape, lsn in zip(history, lsns, strict=True))
    return found != history[-1] and commit_lsn >= lsns[-1] and not known


def _display(connection: Connection, column: ShapeColumn) -> str:
    row = connection.execute("select format_type(%s::oid, %s::int) as display", [column.type_oid, column.modifier]).fetchone()
    return str(row["display"]) if row else ""


def catalog_shape(connection: Connection, table_id: int) -> Shape:
    rows = connection.execute(SQL.query("list_columns"), {"oid": table_id}).fetchall()
    return tuple(ShapeColumn(row["name"], row["type_oid"], row["modifier"], row["number"]) for row in rows)


def _evolve(follower: Follower, context: JobContext, shape: Shape, columns: tuple[Column, ...], before: Shape, lsn: int) -> None:
    """Bring the lake's columns to a shape that is new, and remember it: a replay after a crash must not go back."""
    table, connection = follower.table, context.connection
    _check_columns(follower, context, columns, before)
    relation = replace(context.relation(), columns=columns)
    try:
        evolve.follow(context, relation)
    except Refused as refused:
        raise CannotFollow(
            f"{table.name} cannot be followed any further", refused.problems, hint=f"`modak resync {table.name}` copies it anew"
        ) from refused
    known = [*follower.mirror.shapes, {"lsn": lsn, "columns": [column.as_json() for column in shape]}][-SHAPES_MAX:]
    mirrors.save_shapes(connection, table.table_id, known)
    follower.mirror = replace(follower.mirror, shapes=known)


def _check_columns(follower: Follower, context: JobContext, columns: tuple[Column, ...], before: Shape) -> None:
    table, connection = follower.table, context.connection
    names = {column.name for column in columns}
    for name in (*table.primary_key_cols, table.tier_key_col):
        if name not in names:
            raise cannot_follow(table, f"key column {name} was renamed or dropped", code="key_column")
    old = {
        column.number: Column(column.name, resolve_type(connection, column.type_oid, column.modifier, _display(connection, column)))
        for column in before
    }
    for column in columns:
        was = old.get(column.number)
        if was is not None and was.type != column.type and not lake_follows(was, column, table.text_cols):
            what = (
                f"column {column.name} was {was.type.display} and is {column.type.display}: the lake's rows do not read as converted ones"
            )
            raise cannot_follow(table, what, code="column_type")
    added = [column.number for column in columns if column.number not in old]
    rows = connection.execute(migrate.SQL.query("list_filled_columns"), {"table_id": table.table_id, "numbers": added}).fetchall()
    if before and rows:
        what = f"column {rows[0]['name']} was added with a default, which rows in the heap have and the stream does not tell"
        raise cannot_follow(table, what, code="default")


def lake_names(follower: Follower, context: JobContext) -> dict[str, int]:
    """Where in the stream's rows the lake's columns are; a column that the stream does not have yet, or any more, is not in it."""
    known = tables.lake_field_ids(context.connection, context.table_id)
    names = {field.field_id: field.name for field in context.lake_table().schema().fields}
    places = {column.number: place for place, column in enumerate(follower.shape)}
    return {names[field_id]: places[number] for number, field_id in known.items() if number in places and field_id in names}


def first_shape(connection: Connection, table_id: int, lsn: int) -> list[dict[str, object]]:
    """The shape that a copy had: what the stream says next is compared with it."""
    return [{"lsn": lsn, "columns": [column.as_json() for column in catalog_shape(connection, table_id)]}]
