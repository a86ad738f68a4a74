"""Alter: change the columns of a registered table, and everything that stands on them, in one transaction.

The lake follows at the next pass (``modak.jobs.evolve``): columns are matched by number and field id, so cold rows read right meanwhile.
Whatever cannot be followed is refused before the heap is touched, as far as the action tells; the rest by rolling back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import psycopg
from psycopg import sql

from modak.catalog import tables
from modak.catalog.tables import Registered
from modak.connection import PINNED_SETTINGS, Connection
from modak.core import alter_action
from modak.core.alter_action import Action, Kind
from modak.core.columns import ColumnChanges, compare, lake_follows
from modak.core.partition import PartitionState
from modak.core.registration import Options, column_problems, proven_unique
from modak.core.table import Column, Name, Relation
from modak.errors import LockNotAvailable, Problem, Refused
from modak.failpoints import failpoint
from modak.lake.port import Lake
from modak.registration import missing_view, rebuild
from modak.source.locks import ATTEMPTS_MAX, bounded, lock_view, retried
from modak.source.relation import columns_of, describe
from modak.source.sessions import lock_holders
from modak.source.spill import identifier

_REHEARSAL = "modak_rehearsal"


@dataclass(frozen=True)
class Altered:
    """The registration as it is now, and what became of the columns."""

    table: Registered
    changes: ColumnChanges
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Cold:
    """What is not in the heap alone. ``copies`` are partitions that stand in the heap and in the lake."""

    snapshot: bool
    corrections: bool
    copies: tuple[str, ...]


def alter(connection: Connection, lake: Lake, table: Registered, text: str, *, attempts: int = ATTEMPTS_MAX) -> Altered:
    """Run ``ALTER TABLE <heap> <text>``. The connection is in autocommit, and the caller alone on the table (``App.job``)."""
    if table.mode == "mirrored":
        raise Refused(f"{table.name} is mirrored and stands alone", hint=f"alter table {table.name} {text}; the mirror follows what it can")
    missing_view.refuse(connection, table)
    actions = alter_action.parse(text)
    _refuse([problem for action in actions for problem in _not_here(action, table)], table)
    relation, state = describe(connection, table.heap), _look(connection, lake, table)
    _refuse_if_busy(connection, table)
    _refuse([*_keys(actions, table), *_computed(actions, state)], table)
    _refuse(_retypes(connection, table, relation, actions) if state.snapshot else [], table)
    done = retried(
        lambda: _step(connection, table, relation, actions, state),
        f"the columns of {table.name} were not changed",
        attempts=attempts,
        holders=lambda: lock_holders(connection, [table.view, table.heap], readers=True),
        hint="nothing was changed; try again when these transactions have ended",
    )
    return replace(done, notes=tuple(_notes(actions, done.changes, state)))


def _step(connection: Connection, table: Registered, seen: Relation, actions: Sequence[Action], state: _Cold) -> Altered:
    with bounded(connection):
        if all(action.kind is Kind.CONSTRAINT for action in actions):
            # No column changes: Postgres takes the lock that the constraint needs, and the view stays as it is.
            _run(connection, table, identifier(table.heap), actions)
            _check(connection, table, seen, state)
            return Altered(table, ColumnChanges())
        lock_view(connection, table.view)
        connection.execute(sql.SQL("lock table {} in access exclusive mode").format(identifier(table.heap)))
        before = describe(connection, table.heap)
        if before.columns != seen.columns:
            raise LockNotAvailable(f"{table.name} was changed by somebody else meanwhile", hint="run the command again")
        _refuse_if_behind(connection, table, before)
        # A column can neither go nor change its type while a view stands on it.
        goes = any(action.kind in (Kind.DROP, Kind.RETYPE) for action in actions)
        shown = [column.name for column in describe(connection, table.view).columns]
        aside = rebuild.step_aside(connection, table) if goes else None
        _run(connection, table, identifier(table.heap), actions)
        after, changes = _check(connection, table, before, state)
        now = rebuild.follow_names(connection, table, changes)
        if aside is not None:
            rebuild.take_place(connection, now, after, aside, changes)
        else:
            rebuild.rename_view_columns(connection, table.view, shown, [column.name for column in after.columns])
            rebuild.rebuild(connection, now, after)
        with _refusing(f"corrections of cold rows do not follow the change of {table.name}"):
            rebuild.follow_images(connection, now, after, changes, rebuild.spills(now, after))
        failpoint("alter.before_commit")
    return Altered(replace(now, cold_build=now.cold_build + 1), changes)


def _run(connection: Connection, table: Registered, target: sql.Identifier, actions: Sequence[Action]) -> None:
    """The user's own SQL, with names found as he would expect: in the table's schema, then in public."""
    head = sql.SQL("alter table {} ").format(target).as_string(connection)
    path = sql.SQL("{}, public, pg_temp").format(sql.Identifier(table.schema_name)).as_string(connection)
    connection.execute("select set_config('search_path', %s, true)", [path])
    with _refusing(f"Postgres refused the change of {table.name}"):
        # Binary: a way to Postgres on which a second statement is an error.
        connection.execute((head + ", ".join(action.text for action in actions)).encode(), binary=True)
    connection.execute("select set_config('search_path', %s, true)", [PINNED_SETTINGS["search_path"]])


@contextlib.contextmanager
def _refusing(message: str) -> Iterator[None]:
    """Postgres's own refusals as ours; a lock that was not free is not one of them."""
    try:
        yield
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure):
        raise
    except psycopg.Error as cause:
        diag = cause.diag
        if diag.sqlstate is None or diag.sqlstate[:2] in ("08", "53", "57", "58", "XX"):
            raise
        said = ": ".join(part for part in (diag.message_primary, diag.message_detail) if part)
        raise Refused(f"{message}: {said}", hint="nothing was changed", sqlstate=diag.sqlstate) from cause


def _refuse(problems: Sequence[Problem], table: Registered) -> None:
    if problems:
        raise Refused(f"the columns of {table.name} were not changed", problems, hint="nothing was changed")


def _look(connection: Connection, lake: Lake, table: Registered) -> _Cold:
    found = lake.find(table.lake_table_ref)
    line = tables.cutline(connection, table.table_id)
    copies = [part for part in tables.partitions(connection, table.table_id) if part.state is PartitionState.TIERED]
    return _Cold(
        snapshot=line.snapshot is not None or (found is not None and found.snapshot_id is not None),
        corrections=tables.count(connection, "count_delta", table.table_id) > 0,
        copies=tuple(str(Name(part.schema, part.name)) for part in copies),
    )


def _refuse_if_busy(connection: Connection, table: Registered) -> None:
    problems = []
    if tables.count(connection, "count_open_operations", table.table_id):
        problems.append(Problem("busy", "an operation was interrupted", f"`modak tier {table.name}` settles it first"))
    if tables.count(connection, "count_staged", table.table_id):
        problems.append(Problem("busy", "loads are staged with the columns as they are", "let them be adopted first"))
    _refuse(problems, table)


def _refuse_if_behind(connection: Connection, table: Registered, relation: Relation) -> None:
    """A column that was renamed by hand, in heap or view, and that no pass has followed yet."""
    names = [column.name for column in relation.columns]
    built = rebuild.built_columns(connection, table)
    shown = [column.name for column in describe(connection, table.view).columns]
    known = shown if built is None else [column.name for column in built]
    if names[: len(known)] != known or names[: len(shown)] != shown:
        problem = Problem("columns", f"the view {table.view} was made for {', '.join(known)}", f"run `modak tier {table.name}` first")
        _refuse([problem], table)


def _not_here(action: Action, table: Registered) -> Iterator[Problem]:
    if action.kind is Kind.OTHER:
        way = alter_action.instead(action, str(table.heap))
        yield Problem("action", f"{action.text!r} changes neither columns nor constraints", way)


def _keys(actions: Sequence[Action], table: Registered) -> Iterator[Problem]:
    verbs = {Kind.DROP: "dropped", Kind.RETYPE: "given another type", Kind.EXPRESSION: "computed anew"}
    roles = {**dict.fromkeys(table.primary_key_cols, "identifies rows"), table.tier_key_col: "is the tier key"}
    for action in actions:
        if action.kind in verbs and action.column in roles:
            message = f"column {action.column} {roles[action.column]} and cannot be {verbs[action.kind]}"
            yield Problem("key_column", message, "unregister the table, change it, and register it again")


def _computed(actions: Sequence[Action], state: _Cold) -> Iterator[Problem]:
    """New values for hot rows only would make two tables of one."""
    for action in actions:
        if (action.using or action.kind is Kind.EXPRESSION) and (state.snapshot or state.corrections):
            message = f"{action.text!r} computes new values, and cold rows would keep the old ones"
            yield Problem("computed", message, "add a new column instead, and update it")


def _retypes(connection: Connection, table: Registered, relation: Relation, actions: Sequence[Action]) -> list[Problem]:
    """Types that rows in the lake cannot follow, found on an empty copy of the table."""
    wanted = [action for action in actions if action.kind is Kind.RETYPE]
    if not wanted:
        return []
    after = _rehearse(connection, table, wanted)
    pairs = zip(relation.columns, after, strict=True)
    return [_unfollowed(was, now) for was, now in pairs if not lake_follows(was, now, table.text_cols)]


def _unfollowed(was: Column, now: Column) -> Problem:
    message = f"column {was.name}: rows in the lake have {was.type.display}, which cannot become {now.type.display} with every value kept"
    return Problem("column_type", message, "wider types of one kind can be followed, and anything kept as text can become text")


def _rehearse(connection: Connection, table: Registered, actions: Sequence[Action]) -> tuple[Column, ...]:
    """The columns as they would be. Rolled back always."""
    with connection.transaction() as transaction:
        connection.execute(sql.SQL("create temporary table {} (like {})").format(sql.Identifier(_REHEARSAL), identifier(table.heap)))
        _run(connection, table, sql.Identifier("pg_temp", _REHEARSAL), actions)
        row = connection.execute("select to_regclass(%s)::oid::bigint as oid", [f"pg_temp.{_REHEARSAL}"]).fetchone()
        found = columns_of(connection, int(row["oid"]) if row else 0)
        raise psycopg.Rollback(transaction)
    return found


def _check(connection: Connection, table: Registered, before: Relation, state: _Cold) -> tuple[Relation, ColumnChanges]:
    """The same rules as at registration, on what the table has become."""
    after = describe(connection, table.heap)
    changes = compare(before.columns, after.columns)
    new = changes.new_names
    keys = tuple(new.get(name, name) for name in table.primary_key_cols)
    tier_key = new.get(table.tier_key_col, table.tier_key_col)
    texts = tuple(new.get(name, name) for name in table.text_cols if before.column(name) not in changes.dropped)
    problems = column_problems(after, Options(tier_key=tier_key, primary_key=keys, text_columns=texts))
    problems += [
        Problem("key_column", f"column {now.name} is part of a key and cannot be given another type")
        for _, now in changes.retyped
        if now.name in (*keys, tier_key)
    ]
    problems += [
        Problem("null_key", f"primary key column {name} must stay NOT NULL")
        for name in keys
        if (column := after.column(name)) and not column.not_null
    ]
    if proven_unique(before, table.primary_key_cols) and not proven_unique(after, keys):
        problems.append(Problem("primary_key", f"nothing would keep ({', '.join(keys)}) unique", "add another unique constraint first"))
    problems += _added(changes.added, state)
    _refuse(problems, table)
    return after, changes


def _added(columns: Sequence[Column], state: _Cold) -> Iterator[Problem]:
    """A new column is NULL in every row that is cold."""
    for column in columns:
        if state.snapshot and (column.not_null or column.generated):
            what = "computed" if column.generated else "NOT NULL"
            yield Problem("added_column", f"column {column.name} is {what}, and cold rows have no value for it", "add it without that")
        elif state.copies and column.default is not None:
            message = f"column {column.name}: its default would stand in {', '.join(state.copies)}, but not in the lake's copy of them"
            yield Problem(
                "added_column", message, "add the column first and set its default then, or run `modak tier` until they are dropped"
            )


def _notes(actions: Sequence[Action], changes: ColumnChanges, state: _Cold) -> Iterator[str]:
    if not state.snapshot:
        return
    for column in changes.added:
        if column.default is not None:
            yield f"cold rows have NULL in {column.name}: its default is for rows in the heap and for those to come"
    if any(action.kind is Kind.CONSTRAINT and action.text.lower().startswith(("add", "validate")) for action in actions):
        yield "the constraint holds in the heap: cold rows were not checked"
