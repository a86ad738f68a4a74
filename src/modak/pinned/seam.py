"""The seam of one table, held still: a pin for the lake's side, an exported snapshot for Postgres's side, both of the same (T, S).

Two things must be true at once. The pin must be **committed**, since reclaim and expiry cannot see it before; and heap, delta and cut-line
must be read in **one** snapshot, which many sessions share, so the transaction that exported it stays open until the last read is done.
One transaction cannot be both, so there are two: the pin is committed first, then the reading transaction begins, and if its snapshot
shows another (T, S) than the pin has, the line moved in between: let go and start over.

If it shows the same, nothing the reader needs can vanish. Any advance, fold or expiry that replaces (T, S) commits after the reading
snapshot was taken, hence after the pin was; whoever then decides what to drop sees the pin. That holds whether or not the horizon of
running transactions is looked at as well. The other order, snapshot first and pin second, would lean on that horizon alone: between the
two the line may move and the partition may go.

The pin and the snapshot do not stop a user's own TRUNCATE, DROP or ALTER TABLE, which no snapshot sees through. So the reading
transaction locks the partitions it is going to read (ACCESS SHARE, as any SELECT does), before it takes its snapshot; it locks neither
the parent nor the spill, since tiering attaches and detaches other partitions meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from modak.catalog import migrate, profiles, tables
from modak.catalog.tables import Registered
from modak.connection import Connection, connect
from modak.core import bounds
from modak.core.lake_table import LakeColumn, lake_columns
from modak.core.profile import Profile
from modak.core.table import Column, Name, Relation
from modak.errors import CutlineMoved, LockNotAvailable, Refused, UsageError
from modak.pinned.pin import READ_LINE, TTL, Pin, held
from modak.source.relation import describe, parse_name
from modak.source.spill import identifier

ATTEMPTS_MAX = 20
LOCK_TIMEOUT = "10s"
# Beyond this it does not matter how many corrections there are.
DELTA_ROWS_COUNTED_MAX = 100_000

_SHOWN = """
select a.attname::text as name from pg_catalog.pg_attribute a
  join pg_catalog.pg_class c on c.oid = a.attrelid
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace
 where n.nspname = %(schema)s and c.relname = %(name)s and a.attnum > 0 and not a.attisdropped
 order by a.attnum
"""
_COUNT_DELTA = "select count(*) as n from (select from modak.delta where table_id = %(table_id)s limit %(limit)s) counted"


@dataclass(frozen=True)
class SeamColumn:
    """A column of the table, the lake's type for it, and its field there; None until a pass of tiering has brought it."""

    heap: Column
    lake: LakeColumn
    field_id: int | None

    @property
    def name(self) -> str:
        return self.heap.name


@dataclass(frozen=True)
class HeapPart:
    """A heap partition with rows at or above T; ``crosses`` T if it has some below as well."""

    name: Name
    oid: int
    crosses: bool


@dataclass(frozen=True)
class Seam:
    """Everything a reader needs to know about one table at one (T, S). ``snapshot`` is the name that other sessions adopt."""

    pin: Pin
    table: Registered
    profile: Profile
    columns: tuple[SeamColumn, ...]
    parts: tuple[HeapPart, ...]
    snapshot: str
    delta_rows: int

    @property
    def keys(self) -> tuple[SeamColumn, ...]:
        return self.named(self.table.primary_key_cols)

    @property
    def tier_key(self) -> SeamColumn:
        return self.named([self.table.tier_key_col])[0]

    def lake_names(self, fields: Mapping[int, str]) -> dict[str, str | None]:
        """What each column is called in a schema of the lake (names by field id); None if it is not there yet."""
        # Nothing remembered means that no pass of tiering made this lake table: then names are all there is.
        known = any(column.field_id is not None for column in self.columns)
        by_name = {name: name for name in fields.values()}
        return {column.name: fields.get(column.field_id or 0) if known else by_name.get(column.name) for column in self.columns}

    def named(self, names: Sequence[str]) -> tuple[SeamColumn, ...]:
        """Columns in the order asked for."""
        by_name = {column.name: column for column in self.columns}
        unknown = [name for name in names if name not in by_name]
        if unknown or len(set(names)) < len(names) or isinstance(names, str):
            hint = f"it has {', '.join(by_name)}; each may be asked for once"
            raise UsageError(f"{self.table.name} cannot give these columns", hint=hint, unknown=", ".join(unknown) or None)
        return tuple(by_name[name] for name in names)


@contextlib.contextmanager
def pinned(dsn: str, name: str, *, ttl: str = TTL) -> Iterator[tuple[Seam, Connection]]:
    """Hold a table's seam still for the length of the block. The connection is the one whose snapshot was exported."""
    wanted = parse_name(name)
    with connect(dsn, application="modak-pin", autocommit=True) as control:
        control.execute("select set_config('lock_timeout', %s, false)", [LOCK_TIMEOUT])
        migrate.require_current(control)
        for _ in range(ATTEMPTS_MAX):
            table_id = tables.get(control, wanted).table_id
            with held(dsn, control, table_id, ttl) as pin, _reading(dsn) as reading:
                with _refusals():
                    seam = _settle(control, reading, wanted, pin)
                if seam is not None:
                    yield seam, reading
                    return
    raise CutlineMoved(f"the cut-line of {wanted} moved at each of {ATTEMPTS_MAX} attempts to pin it", hint="try again", table=str(wanted))


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except psycopg.errors.LockNotAvailable as cause:
        hint = "somebody alters or truncates it, or waits to; try again when that is done"
        raise LockNotAvailable(f"a partition could not be locked for reading within {LOCK_TIMEOUT}", hint=hint) from cause
    except psycopg.errors.InsufficientPrivilege as cause:
        hint = "a reader needs SELECT on the heap's partitions and on the catalog"
        raise Refused(f"this role may not read both tiers: {cause.diag.message_primary}", hint=hint) from cause


@contextlib.contextmanager
def _reading(dsn: str) -> Iterator[Connection]:
    """A session whose one transaction may stand open and idle for as long as other sessions read under its snapshot."""
    with connect(dsn, application="modak-pinned-read", autocommit=True, unhurried=True) as connection:
        connection.execute("select set_config('lock_timeout', %s, false)", [LOCK_TIMEOUT])
        connection.execute("begin isolation level repeatable read, read only")
        try:
            yield connection
        finally:
            with contextlib.suppress(psycopg.OperationalError):
                connection.execute("rollback")


def _settle(control: Connection, reading: Connection, name: Name, pin: Pin) -> Seam | None:
    """The seam in the reading transaction's snapshot; None if it is not the pinned one, or the partitions changed meanwhile."""
    expected = _parts(*_look(control, name), pin)
    if not _lock(reading, expected):
        return None
    # Only now is the snapshot taken: LOCK TABLE takes none.
    line = reading.execute(READ_LINE, {"table_id": pin.table_id}).fetchone()
    if line is None or (line["tier_key_hi"], line["lake_snapshot_id"]) != (pin.tier_key_hi, pin.lake_snapshot_id):
        return None
    exported = reading.execute("select pg_export_snapshot() as name").fetchone()
    assert exported is not None
    with adopted(control, exported["name"]):
        table, relation = _look(control, name)
        if table.table_id != pin.table_id or _parts(table, relation, pin) != expected:
            return None
        count = control.execute(_COUNT_DELTA, {"table_id": pin.table_id, "limit": DELTA_ROWS_COUNTED_MAX}).fetchone()
        return Seam(
            pin=pin,
            table=table,
            profile=profiles.get(control, table.storage_profile),
            columns=_columns(table, _shown(control, table, relation), tables.lake_field_ids(control, pin.table_id)),
            parts=expected,
            snapshot=exported["name"],
            delta_rows=count["n"] if count else 0,
        )


@contextlib.contextmanager
def adopted(connection: Connection, snapshot: str) -> Iterator[None]:
    """A short transaction in the shared snapshot. The reading transaction itself asks for as little as it can: its locks last."""
    with connection.transaction():
        connection.execute("set transaction isolation level repeatable read, read only")
        connection.execute(sql.SQL("set transaction snapshot {}").format(sql.Literal(snapshot)))
        yield


def _look(connection: Connection, name: Name) -> tuple[Registered, Relation]:
    table = tables.get(connection, name)
    return table, describe(connection, table.heap)


def _parts(table: Registered, relation: Relation, pin: Pin) -> tuple[HeapPart, ...]:
    """The spill is not among them: its guard keeps out what is not below T, and T never sinks."""
    found = []
    for leaf in bounds.range_leaves(relation):
        lower, upper = bounds.parse_range(leaf.bound, table.key_type)
        if upper > pin.tier_key_hi:
            found.append(HeapPart(leaf.name, leaf.oid, crosses=lower < pin.tier_key_hi))
    return tuple(sorted(found, key=lambda part: part.oid))


def _lock(reading: Connection, parts: Sequence[HeapPart]) -> bool:
    if not parts:
        return True
    names = sql.SQL(", ").join(identifier(part.name) for part in parts)
    try:
        reading.execute(sql.SQL("lock table {} in access share mode").format(names))
    except psycopg.errors.UndefinedTable:
        return False
    return True


def _shown(connection: Connection, table: Registered, relation: Relation) -> tuple[Column, ...]:
    """The columns that the two-tier view shows, which are those that corrections speak of; a newer one is no column to readers yet."""
    names = [row["name"] for row in connection.execute(_SHOWN, vars(table.view)).fetchall()]
    columns = relation.columns[: len(names)]
    if [column.name for column in columns] != names:
        hint = f"`modak tier {table.name}` brings the view and the corrections along"
        raise Refused(f"the heap of {table.name} has other columns than its view", hint=hint, view=", ".join(names))
    return columns


def _columns(table: Registered, shown: Sequence[Column], field_ids: Mapping[int, int]) -> tuple[SeamColumn, ...]:
    kept, problems = lake_columns(shown, (*table.primary_key_cols, table.tier_key_col), table.text_cols)
    if problems:
        raise Refused(f"{table.name} has columns that the lake cannot take", problems, hint="its next pass of tiering says the same")
    return tuple(SeamColumn(column, lake, field_ids.get(column.number)) for column, lake in zip(shown, kept, strict=True))
