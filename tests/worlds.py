"""Tiered tables of every kind of key beside plain twins, for tests of reading."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from modak.app import App
from modak.catalog import profiles
from modak.connection import Connection
from modak.core.registration import Options
from modak.core.table import Name
from modak.jobs.tier import tier
from modak.registration.register import register
from tests.gateways import RunningGateway
from tests.support import reclaim_all

KEYS = {
    "bigint": ("bigint", "(n * 10)::bigint", [str(n * 1000) for n in range(6)]),
    "timestamptz": (
        "timestamptz",
        "timestamptz '2026-06-29 00:00+00' + n * interval '17 minutes 3.000007 seconds'",
        [f"2026-{m}-{d} 00:00+00" for m, d in (("06", 29), ("06", 30), ("07", "01"), ("07", "02"), ("07", "03"), ("07", "05"))],
    ),
    "timestamp": (
        "timestamp",
        "timestamp '1969-12-30 00:00' + n * interval '17 minutes 3.000007 seconds'",
        ["1969-12-30", "1969-12-31", "1970-01-01", "1970-01-02", "1970-01-03", "1970-01-05"],
    ),
    "date": (
        "date",
        "date '0001-01-01 BC' + n",
        ["0001-01-01 BC", "0001-04-10 BC", "0001-07-19 BC", "0001-10-27 BC", "0001-02-03", "0003-01-01"],
    ),
}
ROWS = 480


@dataclass(frozen=True)
class World:
    """Each table ``t_<key type>`` is registered and has a plain twin ``p_<key type>`` that says what it must hold."""

    app: App
    dsn: str
    gateway: RunningGateway


COLUMNS = """
    small smallint, n int, big bigint, f real, d double precision, num numeric(12,3), loose numeric, t text, v varchar(8), c char(5),
    b boolean, day date, at timestamptz, u uuid, raw bytea, j jsonb, tags text[], gap interval
"""
FILL = """
    select n, {key}, (n % 7)::smallint, n % 50, n * 1000003::bigint, n / 3.0, n / 7.0, n / 8.0,
           (n || '.' || repeat('1', (n % 30)::int))::numeric,
           case n % 4 when 0 then null when 1 then '' else 'Zeile ' || n || chr(228) end, 'v' || n % 5, 'c' || n % 3, n % 3 = 0,
           date '2026-01-01' + (n % 100)::int, timestamptz '2026-03-28 12:00+00' + n * interval '1 hour 0.5 seconds',
           md5(n::text)::uuid, decode(md5(n::text), 'hex'), jsonb_build_object('k', n % 5, 'x', null), array['a', n::text],
           n * interval '1 minute'
      from generate_series(0, {rows} - 1) n
"""
LATE = "small, n, big, f, d, num, loose, 'late', v, c, b, day, at, u, raw, j, tags, gap"


def build(app: App, connection: Connection, key_type: str) -> None:
    """A table of mixed columns, its twin, and one pass that makes the older partitions cold."""
    kind, values, bounds = KEYS[key_type]
    table = f"public.t_{key_type}"
    connection.execute(
        f"create table {table} (id bigint not null, key {kind} not null, {COLUMNS}, primary key (id, key)) partition by range (key)"
    )
    for number, (lower, upper) in enumerate(itertools.pairwise(bounds)):
        connection.execute(f"create table {table}_{number} partition of {table} for values from ('{lower}') to ('{upper}')")
    connection.execute(f"insert into {table} {FILL.format(key=values, rows=ROWS)}")
    connection.execute(f"create table public.p_{key_type} as select * from {table}")
    _make_cold(app, connection, f"t_{key_type}", "0" if kind == "bigint" else "1 day")


def build_large(app: App, connection: Connection) -> None:
    """Enough rows for a planner to prefer look-ups over scans."""
    connection.execute(
        "create table public.t_large (id bigint not null, key bigint not null, t text, primary key (id, key)) partition by range (key)"
    )
    for number in range(4):
        lower = number * 20_000
        connection.execute(
            f"create table public.t_large_{number} partition of public.t_large for values from ({lower}) to ({lower + 20_000})"
        )
    connection.execute("insert into public.t_large select n, n, md5(n::text) from generate_series(0, 79999) n")
    connection.execute("analyze public.t_large")
    _make_cold(app, connection, "t_large", "0")


def _make_cold(app: App, connection: Connection, table: str, lag: str) -> None:
    profile, name = profiles.get(connection, None), Name("public", table)
    register(connection, app.lake(profile), name, Options(tier_key="key", primary_key=("id",), lag=lag), profile=profile.name)
    with app.job(name) as job:
        outcome = tier(job)
        assert outcome.rows
        reclaim_all(job)


def correct(connection: Connection, key_type: str) -> None:
    """The same changes to the registered table and to its twin: updates, deletes and inserts of cold and hot rows."""
    connection.execute(f"create temporary table original as select * from public.p_{key_type} where id % 40 = 1")
    for name in (f"public.t_{key_type}", f"public.p_{key_type}"):
        connection.execute(f"update {name} set t = 'corrected', num = num + 1 where id % 17 = 3")
        connection.execute(f"delete from {name} where id % 23 = 5")
        connection.execute(f"insert into {name} select id + 10000, key, {LATE} from pg_temp.original")
    connection.execute("drop table pg_temp.original")


# {t} is the registered table or its twin; every one has an order wherever its rows could come in several.
QUERIES = [
    "select * from {t} order by id, key",
    "select count(*), sum(big), min(key), max(key), avg(num) from {t}",
    "select * from {t} where id = 40",
    "select * from {t} where id in (3, 5, 20, 300, 10001, 470) order by id",
    "select id, t from {t} where key >= (select max(key) from {t} where id < 200) order by id",
    "select t, count(*) from {t} where t like 'Zeile 1%' or t is null group by t order by t nulls first",
    "select n, count(*), sum(num), max(at) from {t} where small <> 3 and b group by n order by n",
    "select a.id, b.id from {t} a join {t} b on b.id = a.id + 100 where a.n = 7 order by 1, 2",
    "with recent as (select * from {t} where day > '2026-02-01') select v, c, count(*) from recent group by v, c order by v, c",
    "select id, row_number() over (partition by small order by id) from {t} where d between 3 and 9 order by id",
    "select * from {t} where j @> '{{\"k\": 3}}' and raw is not null order by id",
    "select * from {t} where u = md5('77')::uuid or gap > interval '7 hours' order by id",
    "select id from {t} where lower(t) = 'corrected' order by id",
    "select id, f, d, loose, num from {t} where f > 30 and loose < 100 order by id",
    "select exists (select from {t} where id = 28), (select t from {t} where id = 3)",
    "select id from {t} where md5(t) like 'a%' order by id",
    "select id from {t} where at between '2026-03-29 02:00' and '2026-03-30 01:00' order by id",
    "select day, count(*) from {t} where tags @> array['7'] or day = '2026-01-08' group by day order by day",
    "select id, key from {t} order by key desc, id desc limit 7",
    "select id, key from {t} order by key, id limit 7 offset 3",
    "select distinct v from {t} order by v",
    "select id, c, v from {t} where c = 'c1' and v in ('v1', 'v2') order by id",
    "select id from {t} where big % 7 = 2 and (n + 1) / 3 = 5 order by id",
    "select id from {t} where t > 'Zeile 3' collate \"C\" order by id",
    "select id from {t} where t > 'Zeile 3' order by id",
    "select case when b then t else v end, count(*) from {t} group by 1 order by 1 nulls last",
]
