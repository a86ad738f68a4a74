"""What tests of several folders share: SCENARIOS' fixture E, a way to register it, and photographs of a database."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from psycopg.rows import tuple_row

from modak.app import App
from modak.catalog import profiles, tables
from modak.catalog.tables import Registered
from modak.connection import Connection
from modak.core.registration import Options
from modak.core.table import Name
from modak.embedded.server_binaries import find_server_binaries
from modak.errors import Refused
from modak.jobs.context import JobContext
from modak.jobs.reclaim import Reclaimed, reclaim
from modak.lake import owner
from modak.lake.port import Lake
from modak.registration.register import register
from modak.registration.unregister import Outcome, unregister

EVENTS = Name("public", "events")

EVENTS_SQL = """
    create table public.events (id bigint, event_time bigint, val text) partition by range (event_time);
    create table public.events_p0 partition of public.events for values from (0) to (100);
    create table public.events_p1 partition of public.events for values from (100) to (200);
    create table public.events_p2 partition of public.events for values from (200) to (300);
    insert into public.events values (1, 10, 'a'), (2, 20, 'b'), (3, 110, 'c'), (4, 210, 'hot'), (5, 220, 'hot');
"""


def create_events(connection: Connection) -> None:
    """SCENARIOS' fixture E."""
    connection.execute(EVENTS_SQL)


def options(tier_key: str = "event_time", primary_key: tuple[str, ...] = ("id",), **given: Any) -> Options:
    return Options(tier_key=tier_key, primary_key=primary_key, **given)


def register_table(connection: Connection, lake: Lake, name: Name = EVENTS, chosen: Options | None = None, **given: Any) -> Registered:
    return register(connection, lake, name, chosen or options(**given), profile="default")


def register_events(connection: Connection, lake: Lake, **given: Any) -> Registered:
    create_events(connection)
    return register_table(connection, lake, **given)


def unregister_table(connection: Connection, lake: Lake, name: Name = EVENTS, *, drop_lake: bool = False) -> Outcome:
    return unregister(connection, lake, tables.get(connection, name), drop_lake=drop_lake)


def default_lake(app: App, connection: Connection) -> Lake:
    return app.lake(profiles.get(connection, None))


def rows(connection: Connection, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
    return connection.cursor(row_factory=tuple_row).execute(query, parameters or None).fetchall()


def value(connection: Connection, query: str, *parameters: Any) -> Any:
    return rows(connection, query, *parameters)[0][0]


def codes(refused: Refused) -> list[str]:
    return [problem.code for problem in refused.problems]


# Everything a registration could leave behind in Postgres: relations, columns, constraints, triggers, routines, rules, comments, grants.
_PHOTOGRAPH = """
    with spaces as (
        select oid, nspname from pg_namespace where nspname !~ '^pg_(toast|temp)' and nspname not in ('pg_catalog', 'information_schema')
    )
    select 'relation' as what, format('%s.%s %s', s.nspname, c.relname, c.oid) as name,
           concat_ws('|', c.relkind, pg_get_userbyid(c.relowner), c.relacl::text, c.relpersistence, c.relrowsecurity, c.reloptions::text,
                     pg_get_expr(c.relpartbound, c.oid), obj_description(c.oid, 'pg_class'),
                     case when c.relkind in ('v', 'm') then pg_get_viewdef(c.oid) end) as detail
      from pg_class c join spaces s on s.oid = c.relnamespace
    union all
    select 'column', format('%s.%s.%s', s.nspname, c.relname, a.attname),
           concat_ws('|', a.attnum, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity, a.attgenerated, a.attacl::text,
                     pg_get_expr(d.adbin, d.adrelid), col_description(c.oid, a.attnum))
      from pg_attribute a join pg_class c on c.oid = a.attrelid join spaces s on s.oid = c.relnamespace
      left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
     where a.attnum > 0 and not a.attisdropped
    union all
    select 'constraint', format('%s.%s on %s', s.nspname, k.conname, k.conrelid::regclass), pg_get_constraintdef(k.oid)
      from pg_constraint k join spaces s on s.oid = k.connamespace
    union all
    select 'trigger', format('%s on %s', t.tgname, t.tgrelid::regclass), pg_get_triggerdef(t.oid)
      from pg_trigger t join pg_class c on c.oid = t.tgrelid join spaces s on s.oid = c.relnamespace where not t.tgisinternal
    union all
    select 'routine', format('%s.%s', s.nspname, f.oid::regprocedure), concat_ws('|', pg_get_functiondef(f.oid), f.proacl::text)
      from pg_proc f join spaces s on s.oid = f.pronamespace where f.prokind in ('f', 'p')
    union all
    select 'registration', t.table_name, t::text from modak.tables t
    union all
    select 'lake table', i.table_namespace || '.' || i.table_name, i.metadata_location from modak_lake.iceberg_tables i
    union all
    select 'advisory lock', l.objid::text, l.classid::text from pg_locks l
     where l.locktype = 'advisory' and l.database = (select d.oid from pg_database d where d.datname = current_database())
"""


def photograph(connection: Connection, warehouse: Path | None = None) -> dict[tuple[str, str], str]:
    """Everything that registering could change; two photographs are compared with ==."""
    seen = {(what, name): detail for what, name, detail in rows(connection, _PHOTOGRAPH)}
    return seen | {("file", name): "" for name in files(warehouse)}


def files(folder: Path | None) -> list[str]:
    """Without the file that says whose a lake table is: the first job writes it, whatever else it does."""
    if folder is None:
        return []
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.name != owner.FILE)


def schema_dump(dsn: str, *arguments: str) -> str:
    """pg_dump's text without what differs from run to run."""
    binary = find_server_binaries().bin_dir / "pg_dump"
    done = subprocess.run([str(binary), dsn, *arguments], capture_output=True, text=True, check=True, timeout=60)
    return "\n".join(line for line in done.stdout.splitlines() if line.strip() and not line.startswith(("--", "\\")))


def run_cli(app_or_dsn: str, *arguments: str, data: Path, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """``modak`` as a process of its own, as a user runs it."""
    environ = {name: text for name, text in os.environ.items() if not name.startswith("MODAK_") or name == "MODAK_CACHE"}
    environ |= {"MODAK_DSN": app_or_dsn, "MODAK_DATA": str(data), **(env or {})}
    program = [sys.executable, "-m", "modak.cli.main", *arguments]
    return subprocess.run(program, capture_output=True, text=True, env=environ, timeout=120, check=False)


def at_failpoint(monkeypatch: Any, module: Any, name: str, action: Callable[[], Any]) -> None:
    """Do something at the moment a failpoint of a module is passed."""
    monkeypatch.setattr(module, "failpoint", lambda passed: action() if passed == name else None)


def has_xml(connection: Connection) -> bool:
    """A server built without libxml knows the type and takes no value of it."""
    row = connection.execute("select 1 as found from pg_config where name = 'CONFIGURE' and setting like '%with-libxml%'").fetchone()
    return row is not None


def reclaim_all(job: JobContext, patience: float = 60) -> tuple[str, ...]:
    """Whoever copied rows a moment ago may still be on his way out of Postgres, and holds the horizon until then. What was dropped."""
    done = reclaim_patiently(job, patience)
    assert not done.waiting, done.waiting
    return done.dropped


def reclaim_patiently(job: JobContext, patience: float) -> Reclaimed:
    """Again and again while something waits, at most as long as that. With no patience it is tried once."""
    until, dropped = time.monotonic() + patience, tuple[str, ...]()
    while True:
        done = reclaim(job)
        dropped += done.dropped
        if not done.waiting or time.monotonic() >= until:
            return Reclaimed(dropped, done.waiting)
        time.sleep(0.05)
