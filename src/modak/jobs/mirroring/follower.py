"""One mirrored table during a pass of the pump: where it is, what its columns are, and what was collected for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from modak.catalog import migrate, mirrors, tables
from modak.catalog.mirrors import Mirror
from modak.catalog.tables import Registered
from modak.connection import Connection
from modak.core.below import Below
from modak.core.changes import Collapse
from modak.core.columns import ColumnChanges, lake_follows
from modak.core.stream_shape import Shape, ShapeColumn, recognise
from modak.core.table import Column
from modak.errors import Problem, Refused
from modak.jobs import evolve
from modak.jobs.context import JobContext
from modak.jobs.mirroring import labels
from modak.jobs.mirroring.filling import fill
from modak.jobs.mirroring.head import check_place, stand
from modak.jobs.mirroring.labels import LABELS
from modak.jobs.mirroring.leaves import Leaf, Leaves
from modak.lake.storage import Storage
from modak.registration import rebuild
from modak.source.pgoutput import Delete, Insert, RelationMessage, Truncate, Update
from modak.source.relation import SQL, TypeGone, resolve_type

if TYPE_CHECKING:
    from modak.jobs.mirroring.departed import Departed
    from modak.jobs.mirroring.newcomers import Newcomers
    from modak.jobs.mirroring.rewritten import Rewritten

SHAPES_MAX = 20


class CannotFollow(Refused):
    """The stream says something, or keeps it from us, that the lake cannot follow. The table is parked; `modak resync` copies it anew."""

    code = "cannot_follow"


def cannot_follow(table: Registered, what: str | Sequence[Problem], *, code: str = "stream") -> CannotFollow:
    problems = [Problem(code, what)] if isinstance(what, str) else what
    return CannotFollow(f"{table.name} cannot be followed any further", problems, hint=f"`modak resync {table.name}` copies it anew")


@dataclass
class Follower:
    """``collapse`` is None until the stream has described the table in this pass."""

    table: Registered
    mirror: Mirror
    storage: Storage
    shape: Shape = ()
    columns: tuple[Column, ...] = ()  # of the shape, in its order
    collapse: Collapse | None = None
    part: int | None = None  # the snapshot of the last part of an open transaction, which nobody sees
    saw_truncate: bool = False
    leaves: Leaves = field(default_factory=list)  # the partitions, as the pass found them
    leaves_before: Sequence[Leaf] = ()  # as the pass before had left them
    newcomers: Newcomers | None = None  # partitions that may have brought rows; nothing is published before that is known
    rewritten: Rewritten | None = None  # the table, if its rows may have got other values; the same
    was_checked: bool = False  # and it is known: the lake has all of them
    heard: dict[int, str] = field(default_factory=dict)  # partitions that the stream spoke of in this pass
    refiled: Sequence[Leaf] = ()  # new ones that do not have their first file any more
    came: Leaves = field(default_factory=list)  # new ones since the look, that the stream spoke of
    spoken: set[int] = field(default_factory=set)  # the same, in transactions that the table has already as well
    departed: Departed | None = None  # partitions that left; their rows go when the stream has told everything about them
    suspect: str | None = None  # something that only a TRUNCATE in this pass explains; nothing is published before it came
    message: RelationMessage | None = None  # how the stream described the table, not looked at yet
    line: int | None = None  # T, of a table that shed partitions: what lies below is not the stream's to say
    below: Below | None = None  # for rows of the shape
    as_of: float | None = None  # the time that the place in the stream stands for, as the server's clock has it

    @property
    def has_changes(self) -> bool:
        return self.part is not None or (self.collapse is not None and self.collapse.changes > 0)

    @property
    def is_held(self) -> bool:
        """Whether something that the stream does not tell has to be explained first."""
        doubts = (self.suspect, self.newcomers, self.rewritten, self.departed)
        return any(doubt is not None for doubt in doubts) or bool(self.refiled) or bool(self.strangers)

    @property
    def strangers(self) -> dict[int, str]:
        """Partitions that the stream spoke of, and that no look ever found."""
        known = {leaf["oid"] for leaf in (*self.leaves, *self.leaves_before)} if self.heard else ()
        return {oid: name for oid, name in self.heard.items() if oid not in known}

    @property
    def has_truncated(self) -> bool:
        return self.saw_truncate or bool(self.collapse and self.collapse.truncated)

    @property
    def bytes(self) -> int:
        return self.collapse.bytes if self.collapse else 0

    def fresh(self) -> None:
        """Begin to collect anew, after what was collected has been taken."""
        key = [self._place(name) for name in self.table.primary_key_cols]
        self.collapse = Collapse(tuple(key))
        if self.line is not None:
            self.below = Below(self.table.key_type, self.line, self._place(self.table.tier_key_col))

    def clear_suspicion(self) -> None:
        """When the pass has seen everything that was committed when it looked at the partitions."""
        if self.suspect and not self.has_truncated:
            raise cannot_follow(self.table, self.suspect, code="partition")
        self.suspect = None

    def _place(self, name: str) -> int:
        return next(place for place, column in enumerate(self.shape) if column.name == name)

    def is_below(self, message: Insert | Update | Delete | Truncate) -> bool:
        """Rows below T come by from the spill, and from partitions that wait to be dropped. Their corrections say it all, and later."""
        if self.below is None or isinstance(message, Truncate):
            return False
        return self.below(message.old if isinstance(message, Delete) else message.new)

    def takes(self, message: RelationMessage) -> bool:
        """Whether the rows that follow have the shape of those before."""
        described = tuple((column.name, column.type_oid, column.modifier) for column in message.columns)
        return bool(self.shape) and tuple(column.described for column in self.shape) == described


def collect(collapse: Collapse, message: Insert | Update | Delete | Truncate) -> None:
    """A change of the stream among those that were collected before."""
    if isinstance(message, Insert):
        collapse.insert(message.new)
    elif isinstance(message, Update):
        collapse.update(message.new, message.old, is_whole=message.is_whole)
    elif isinstance(message, Delete):
        collapse.delete(message.old)
    else:
        collapse.truncate()


def describe(follower: Follower, context: JobContext, message: RelationMessage, commit_lsn: int) -> None:
    """The rows that come next have these columns. What was collected before must be in the lake already."""
    try:
        _describe(follower, context, message, commit_lsn)
    except TypeGone as gone:
        names = {column.name for column in message.columns if column.type_oid == gone.oid}
        which = ", ".join(sorted(names)) or "a column"
        what = f"rows were written with {which} of a type that was dropped since: they cannot be read any more"
        raise cannot_follow(follower.table, what, code="dropped_type") from gone


def _describe(follower: Follower, context: JobContext, message: RelationMessage, commit_lsn: int) -> None:
    check_place(context, follower)
    connection, table = context.connection, follower.table
    described = [(column.name, column.type_oid, column.modifier) for column in message.columns]
    history = [tuple(ShapeColumn.from_json(column) for column in shape["columns"]) for shape in follower.mirror.shapes]
    lsns = [int(shape["lsn"]) for shape in follower.mirror.shapes]
    # What the lake has learned beyond this transaction, before a crash, says nothing about it.
    before = [shape for shape, lsn in zip(history, lsns, strict=True) if lsn <= commit_lsn]
    found = recognise(described, before, catalog_shape(connection, table.table_id), is_replay=len(before) < len(history))
    if isinstance(found, str):
        raise cannot_follow(table, found)
    columns = tuple(
        Column(column.name, resolve_type(connection, column.type_oid, column.modifier, _display(connection, column)), number=column.number)
        for column in found
    )
    if _is_new(found, history, lsns, commit_lsn):
        # Of a column that is gone nothing is asked any more; its type may be gone with it.
        numbers = {column.number for column in found}
        last = tuple(column for column in (history[-1] if history else ()) if column.number in numbers)
        _evolve(follower, context, found, columns, last, commit_lsn)
    follower.shape, follower.columns = found, columns
    values = _values_to_fill(follower, commit_lsn)
    if values:
        numbered = {column.number: column for column in columns}
        follower.part = fill(context, stand(context, follower), numbered, values, follower.part) or follower.part
    follower.fresh()


def _values_to_fill(follower: Follower, commit_lsn: int) -> dict[int, str]:
    """Of columns that this transaction has first. One that is read again after a crash needs them again: nothing of it is published."""
    described = [column.as_json() for column in follower.shape]
    known = [shape for shape in follower.mirror.shapes if int(shape["lsn"]) == commit_lsn and shape["columns"] == described]
    return {int(number): str(value) for shape in known[:1] for number, value in shape.get("fill", {}).items()}


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
    rows = connection.execute(SQL.query("list_shape"), {"oid": table_id}).fetchall()
    return tuple(ShapeColumn(row["name"], row["type_oid"], row["modifier"], row["number"]) for row in rows)


def _evolve(follower: Follower, context: JobContext, shape: Shape, columns: tuple[Column, ...], before: Shape, lsn: int) -> None:
    """Bring the lake's columns to a shape that is new, and remember it: a replay after a crash must not go back."""
    connection = context.connection
    follower.table = table = _renamed(follower.table, connection, columns, before)
    context = replace(context, table=table)
    values = _check_columns(follower, context, columns, before)
    relation = replace(context.relation(), columns=columns)
    try:
        evolve.follow(context, relation)
    except Refused as refused:
        raise cannot_follow(table, refused.problems) from refused
    known = [*follower.mirror.shapes, {"lsn": lsn, "columns": [column.as_json() for column in shape], "fill": values}][-SHAPES_MAX:]
    mirrors.save_shapes(connection, table.table_id, known)
    follower.mirror = replace(follower.mirror, shapes=known)


def _renamed(table: Registered, connection: Connection, columns: tuple[Column, ...], before: Shape) -> Registered:
    """A column that the lake keeps as text is one under its new name too. Older rows do not ask: they go by what the lake has."""
    names = {column.number: column.name for column in columns}
    changed = [(old.name, names[old.number]) for old in before if old.name in table.text_cols and names[old.number] != old.name]
    return rebuild.follow_names(connection, table, ColumnChanges(renamed=tuple(changed))) if changed else table


def _check_columns(follower: Follower, context: JobContext, columns: tuple[Column, ...], before: Shape) -> dict[str, str]:
    """Raises CannotFollow, or returns the values that rows in the heap got by a column's default, by its number."""
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
    unknown = [row["name"] for row in rows if not row["is_known"]]
    if before and unknown:
        what = f"column {unknown[0]} was added with a default that differs from row to row, or got one later: the stream does not tell"
        raise cannot_follow(table, what, code="default")
    return {str(row["number"]): row["value"] for row in rows if before and row["value"] is not None}


def lake_names(follower: Follower, context: JobContext) -> dict[str, int]:
    """Where in the stream's rows the lake's columns are; a column that the stream does not have yet, or any more, is not in it."""
    known = tables.lake_field_ids(context.connection, context.table_id)
    names = {field.field_id: field.name for field in context.lake_table().schema().fields}
    places = {column.number: place for place, column in enumerate(follower.shape)}
    return {names[field_id]: places[number] for number, field_id in known.items() if number in places and field_id in names}


def first_shape(connection: Connection, table_id: int, lsn: int) -> list[dict[str, object]]:
    """The shape that a copy had, and what enums were called: what comes next is compared with it."""
    columns = [column.as_json() for column in catalog_shape(connection, table_id)]
    return [{"lsn": lsn, "columns": columns, LABELS: labels.read(connection, table_id)}]
