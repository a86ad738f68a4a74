"""What the gateway knows of registered tables: names, columns on both sides, storage. Read from the catalog and kept until it changes.

One query tells what changed (the catalog's row, the columns of heap and view, the view's rule); only that is read in full.
Whoever depends on a relation being exactly this one reads the fingerprint again in the snapshot he works in.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg

from modak.catalog.migrate import SQL as CATALOG
from modak.connection import Connection, open_connection
from modak.core.table import Name
from modak.core.tier_key import TierKeyType
from modak.core.type_map import LakeType, PgType, lake_type
from modak.errors import LakeError, ModakError, NotRegistered, Problem
from modak.scan.predicate import ColumnType
from modak.source.relation import SQL, resolve_type
from modak.sqlfiles import trusted

if TYPE_CHECKING:
    from modak.lake.storage import Storage

log = logging.getLogger("modak.gateway")

T = TypeVar("T")

REFRESH_SECONDS = 1.0
_LOCATIONS_MAX = 1_000

_CATALOG = """
  from modak.tables t
  join pg_catalog.pg_class c on c.oid = t.table_id::oid
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace
  join modak.storage_profiles p on p.profile_name = t.storage_profile
  left join pg_catalog.pg_class v on v.relnamespace = c.relnamespace and v.relname = t.view_name and v.relkind = 'v'
  left join pg_catalog.pg_rewrite r on r.ev_class = v.oid and r.rulename = '_RETURN'
"""
# What decides how rows are read. T, S, lags and how far the view's cold side reaches change often and decide nothing here.
_FINGERPRINT = """
pg_catalog.md5(pg_catalog.concat_ws('/', t.table_name, t.primary_key_cols, t.tier_key_col, t.tier_key_type, t.surface, t.mode, t.text_cols,
    t.hybrid, t.lake_table_ref, t.lake_columns, p.profile_name, p.warehouse, p.lake_config, p.credential_ref, n.nspname, c.relname,
    c.relowner, c.relrowsecurity, c.relforcerowsecurity, v.oid, v.relname, v.relowner, v.reloptions,
    (select pg_catalog.string_agg(pg_catalog.concat_ws(' ', a.attrelid, a.attnum, a.attname, a.atttypid, a.atttypmod, a.attcollation), ','
                                  order by a.attrelid, a.attnum)
       from pg_catalog.pg_attribute a where a.attrelid in (c.oid, v.oid) and a.attnum > 0 and not a.attisdropped)))
"""
_READ = f"""
select t.*, c.relname::text as heap_now, n.nspname::text as schema_now, v.oid::bigint as view_oid,
       pg_catalog.pg_get_viewdef(v.oid) as view_text,
       (select a.attname::text from pg_catalog.pg_partitioned_table k
          join pg_catalog.pg_attribute a on a.attrelid = k.partrelid and a.attnum = k.partattrs[0]
         where k.partrelid = c.oid and k.partstrat = 'r') as tier_key_now,
       array(select a.attname::text from pg_catalog.pg_attribute a
              where a.attrelid = v.oid and a.attnum > 0 and not a.attisdropped order by a.attnum) as view_columns,
       c.relrowsecurity and (c.relforcerowsecurity or v.oid is null or c.relowner <> v.relowner) as row_security,
       coalesce(v.reloptions::text ~ 'security_invoker=(true|on|1|yes)', false) as as_invoker
 {_CATALOG} where t.table_id = any (%(ids)s)
"""  # noqa: S608


_CHOOSERS = "select exists (select from pg_catalog.pg_db_role_setting s where s.setconfig::text ~* 'modak.mirrored_reads=') as found"


def fingerprints_sql(ids: Sequence[int] | None = None) -> str:
    """A query for ``table_id``, ``fingerprint`` (equal while rows are read in the same way) and ``revision`` (of the catalog's rows)."""
    only = f" where t.table_id in ({', '.join(str(int(i)) for i in ids)})" if ids is not None else ""
    return (
        f"select t.table_id, {_FINGERPRINT} as fingerprint, pg_catalog.concat_ws('/', t.xmin, v.xmin, r.xmin, p.xmin) as revision "
        f"{_CATALOG}{only}"
    )


@dataclass(frozen=True)
class RelationColumn:
    """A column of the two-tier view. ``number`` is the heap's attnum; ``field_id`` is None until the lake has the column."""

    number: int
    name: str
    pg: PgType
    lake: LakeType
    field_id: int | None
    type_oid: int
    modifier: int
    collation: tuple[str, str] | None = None


@dataclass(frozen=True)
class RegisteredRelation:
    """One registered table as readers see it. ``problem`` says why its view is not what this program would have made, if so."""

    table_id: int
    name: Name
    heap: Name
    view: Name
    view_oid: int
    surface: str
    mode: str
    primary_key: tuple[str, ...]
    tier_key: str
    key_type: TierKeyType
    columns: tuple[RelationColumn, ...]
    lake_ref: str
    profile: str
    storage: Storage
    cold_build: int
    fingerprint: str
    revision: str = ""
    problem: str | None = None
    is_hybrid: bool = False

    @property
    def is_mirror(self) -> bool:
        """A table that is whole in Postgres and whole in the lake: it has no view, and no seam."""
        return self.mode == "mirrored" and self.cold_build == 0

    def column(self, name: str) -> RelationColumn | None:
        return next((column for column in self.columns if column.name == name), None)

    def by_number(self, number: int) -> RelationColumn | None:
        return next((column for column in self.columns if column.number == number), None)

    @property
    def types(self) -> dict[str, ColumnType]:
        """For the translator and for pruning."""
        return {column.name: ColumnType(column.pg, column.lake) for column in self.columns}

    def is_two_tier(self, oid: int) -> bool:
        """Whether a SELECT that names this relation of Postgres means both tiers: the view always, the heap where it has the plain name."""
        return oid == self.view_oid or (oid == self.table_id and self.surface == "heap")


class Relations:
    """Every method may be called from any thread. Those that may ask Postgres block for a moment; ``names`` never does."""

    def __init__(self, dsn: str, storages: Callable[[str], Storage]) -> None:
        """``storages`` gives a storage profile by its name."""
        self._dsn = dsn
        self._storages = storages
        self._known: dict[int, RegisteredRelation] = {}
        self._lines: dict[int, int] = {}
        self._snapshots: dict[int, int | None] = {}
        self._locations: dict[tuple[int, int | None], str] = {}
        self._lock = threading.Lock()
        self._checked = 0.0
        self._connection: Connection | None = None
        self.has_choosers = False
        """Whether a role or the database has a choice about mirrored tables in its settings, as last seen."""

    def names(self, *, mirrors: bool = True) -> frozenset[str]:
        """Names under which registered tables are read, without their schemas; as last seen. Without ``mirrors``: only those that are
        read from the lake whether or not a session says so."""
        readable = (relation for relation in self._known.values() if mirrors or relation.is_hybrid or not relation.is_mirror)
        return frozenset(name for relation in readable for name in (relation.name.name, relation.view.name))

    def all(self) -> tuple[RegisteredRelation, ...]:
        return tuple(self._known.values())

    def refresh(self, *, force: bool = False) -> None:
        """See what changed in the catalog, at most once a second unless forced."""
        with self._lock:
            if not force and self.is_fresh:
                return
            self._ask(self._reload)
            self._checked = time.monotonic()

    @property
    def is_fresh(self) -> bool:
        """Whether ``refresh`` has nothing to do yet."""
        return bool(self._checked) and time.monotonic() - self._checked < REFRESH_SECONDS

    def by_id(self, table_id: int, build: int = 0) -> RegisteredRelation:
        """A table by its id, with columns at least as new as the given build of its cold side; those of an older one keep their numbers."""
        self.refresh()
        found = self._known.get(table_id)
        if found is None or found.cold_build < build:
            self.refresh(force=True)
            found = self._known.get(table_id)
        if found is None:
            raise NotRegistered("the table is not registered any more", hint="`modak status` lists the registered ones", table_id=table_id)
        return found

    def by_oid(self, oid: int) -> RegisteredRelation | None:
        """The table that a relation of Postgres reads in both tiers; None for any other relation, a heap of its own name included."""
        return next((relation for relation in self._known.values() if relation.is_two_tier(oid)), None)

    def resolve(self, parts: Sequence[str], search_path: Sequence[str]) -> RegisteredRelation | None:
        """By name, as last seen. An unregistered relation of the same name earlier in the path is unknown here: ask Postgres for the OID
        where that matters, and use ``by_oid``."""
        self.refresh()
        if not 1 <= len(parts) <= 2:
            return None
        schemas = search_path if len(parts) == 1 else parts[:1]
        by_name = {name: relation for relation in self._known.values() for name in (relation.name, relation.view)}
        return next((by_name[name] for schema in schemas if (name := Name(schema, parts[-1])) in by_name), None)

    def line(self, table_id: int) -> int | None:
        """T as last seen. It may have moved on since, never back."""
        return self._lines.get(table_id)

    def metadata_location(self, table_id: int, sequence_number: int | None) -> str:
        """A metadata file that knows snapshot S of a table: the one published with it if it was seen here, else the newest published."""
        known = self._locations.get((table_id, sequence_number))
        if known is not None:
            return known
        newest, location = self._cutline(table_id)
        if location is None or (sequence_number is not None and (newest is None or newest < sequence_number)):
            hint = "start the query anew, which reads the published snapshot"
            raise LakeError(f"no published metadata knows snapshot {sequence_number}", hint=hint, table_id=table_id, published=newest)
        return location

    def current_snapshot(self, table_id: int) -> int | None:
        """S as it is published now, for what may be a little newer or older than its reader: samples."""
        return self._cutline(table_id)[0]

    def recent_snapshot(self, table_id: int) -> int | None:
        """S as last seen, for what is a guess anyway: estimates."""
        return self._snapshots[table_id] if table_id in self._snapshots else self.current_snapshot(table_id)

    def _cutline(self, table_id: int) -> tuple[int | None, str | None]:
        with self._lock:
            row = self._ask(lambda connection: connection.execute(CATALOG.query("read_cutline"), {"table_id": table_id}).fetchone())
        if row is None:
            raise NotRegistered("the table is not registered any more", hint="`modak status` lists the registered ones", table_id=table_id)
        location = row["lake_props"].get("metadata_location")
        self.published(table_id, row["lake_snapshot_id"], location)
        return row["lake_snapshot_id"], location

    def published(self, table_id: int, sequence_number: int | None, metadata_location: str | None) -> None:
        """Remember what somebody read from a cut-line."""
        if metadata_location is None:
            return
        while len(self._locations) >= _LOCATIONS_MAX:
            self._locations.pop(next(iter(self._locations)), None)
        self._locations[(table_id, sequence_number)] = metadata_location

    def close(self) -> None:
        with self._lock:
            self._disconnect()

    def _ask(self, work: Callable[[Connection], T]) -> T:
        """Run it on the connection kept for this. One that broke since its last use is opened anew, once."""
        kept = self._connection is not None
        try:
            return work(self._opened())
        except psycopg.OperationalError:
            self._disconnect()
            if not kept:
                raise
            return work(self._opened())

    def _opened(self) -> Connection:
        if self._connection is None:
            self._connection = open_connection(self._dsn, application="modak-gateway", autocommit=True)
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _reload(self, connection: Connection) -> None:
        with connection.transaction():
            connection.execute("set transaction isolation level repeatable read, read only")
            found = {row["table_id"]: row for row in connection.execute(trusted(fingerprints_sql())).fetchall()}
            stale = [table_id for table_id, row in found.items() if self._is_stale(table_id, row)]
            news = self._read(connection, stale, found) if stale else {}
            lines = connection.execute("select table_id, tier_key_hi, lake_snapshot_id, lake_props from modak.cutline").fetchall()
            chosen = connection.execute(_CHOOSERS).fetchone()
        self.has_choosers = chosen is not None and bool(chosen["found"])
        # Replaced as a whole: readers hold no lock.
        self._known = {table_id: news.get(table_id) or self._known[table_id] for table_id in found if table_id in {*news, *self._known}}
        self._lines = {row["table_id"]: row["tier_key_hi"] for row in lines}
        for row in lines:
            self.published(row["table_id"], row["lake_snapshot_id"], row["lake_props"].get("metadata_location"))
        self._snapshots = {row["table_id"]: row["lake_snapshot_id"] for row in lines}

    def _is_stale(self, table_id: int, row: Mapping[str, Any]) -> bool:
        known = self._known.get(table_id)
        return known is None or (known.fingerprint, known.revision) != (row["fingerprint"], row["revision"])

    def _read(self, connection: Connection, ids: Iterable[int], marks: Mapping[int, Mapping[str, Any]]) -> dict[int, RegisteredRelation]:
        types: dict[tuple[int, int, str], PgType] = {}
        found = {}
        for row in connection.execute(trusted(_READ), {"ids": list(ids)}).fetchall():
            try:
                found[row["table_id"]] = self._relation(connection, row, marks[row["table_id"]], types)
            except ModakError as cause:
                # One table without its credentials must not hide the others; it is tried again with every refresh.
                log.warning("registered table %s.%s cannot be read: %s", row["schema_name"], row["table_name"], cause)
        return found

    def _relation(
        self, connection: Connection, row: Mapping[str, Any], marks: Mapping[str, Any], types: dict[tuple[int, int, str], PgType]
    ) -> RegisteredRelation:
        columns = _columns(connection, row, types)
        is_mirror = row["mode"] == "mirrored" and not row["cold_build"]
        problem = _mirror_problem(row, columns) if is_mirror else _problem(row, columns)
        shown = len(columns) if is_mirror else len(row["view_columns"])
        return RegisteredRelation(
            table_id=row["table_id"],
            name=Name(row["schema_now"], row["table_name"]),
            heap=Name(row["schema_now"], row["heap_now"]),
            view=Name(row["schema_now"], row["view_name"] or row["table_name"]),
            view_oid=row["table_id"] if is_mirror else row["view_oid"] or 0,
            surface=row["surface"],
            mode=row["mode"],
            primary_key=tuple(row["primary_key_cols"]),
            # Renamed in the heap by hand, it is the tier key all the same. A mirror may be partitioned by another column.
            tier_key=(None if is_mirror else row["tier_key_now"]) or row["tier_key_col"],
            key_type=TierKeyType(row["tier_key_type"]),
            # A column that the view does not show yet is no column to its readers.
            columns=tuple(columns[:shown] if problem is None else columns),
            lake_ref=row["lake_table_ref"],
            profile=row["storage_profile"],
            storage=self._storages(row["storage_profile"]),
            cold_build=row["cold_build"],
            fingerprint=marks["fingerprint"],
            revision=marks["revision"],
            problem=problem,
            is_hybrid=row["hybrid"],
        )


def _columns(connection: Connection, row: Mapping[str, Any], types: dict[tuple[int, int, str], PgType]) -> list[RelationColumn]:
    field_ids = {entry["attnum"]: entry["field_id"] for entry in row["lake_columns"]}
    found = []
    for column in connection.execute(SQL.query("list_columns"), {"oid": row["table_id"]}).fetchall():
        key = (column["type_oid"], column["modifier"], column["display"])
        if key not in types:
            types[key] = resolve_type(connection, *key)
        kept = lake_type(types[key], force_text=column["name"] in row["text_cols"])
        if isinstance(kept, Problem):
            break  # a column the lake refuses is not in the view either, nor are those after it
        found.append(
            RelationColumn(
                number=column["number"],
                name=column["name"],
                pg=types[key],
                lake=kept,
                field_id=field_ids.get(column["number"]),
                type_oid=column["type_oid"],
                modifier=column["modifier"],
                collation=tuple(column["collation"]) if column["collation"] else None,
            )
        )
    return found


def _mirror_problem(row: Mapping[str, Any], columns: Sequence[RelationColumn]) -> str | None:
    if row["row_security"]:
        return "its rows depend on who reads them"
    if row["tier_key_col"] not in [column.name for column in columns]:
        return "its tier key was renamed"
    return None


def _problem(row: Mapping[str, Any], columns: Sequence[RelationColumn]) -> str | None:
    """Why reading heap, lake and delta ourselves would not give what the view gives; None if it does."""
    shown = row["view_columns"]
    if row["view_oid"] is None:
        return "its view is gone"
    if row["row_security"] or row["as_invoker"]:
        return "its rows depend on who reads them"
    if [column.name for column in columns][: len(shown)] != shown:
        return "its view and its heap name their columns differently"
    if any(not _reads_image(row["view_text"], name) for name in shown if name != row["tier_key_col"]):
        return "its view reads corrections under other names"
    return None


def _reads_image(view_text: str, column: str) -> bool:
    """Whether a view takes this column of a correction from the key of the same name: renaming a column does not rename the key."""
    literal = "'" + column.replace("'", "''") + "'"
    if "\\" in column:
        literal = " E" + literal.replace("\\", "\\\\")
    return f"->> {literal.strip()}::text" in view_text
