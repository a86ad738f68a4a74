"""Decoupled tables by plain SQL, with a plain table of Postgres's beside each: whatever is done to both, both are the same."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator

import psycopg
import pyarrow as pa
import pytest
from tests.decoupling import EVERY_TYPE, Client, House, contents, house, make

from modak.embedded.postgres import Cluster

ROW = """
select g, (g % 300)::smallint, (g * 7)::int, (g / 3.0)::real, g / 7.0::float8, (g * 1.125)::numeric(12,3), g % 3 = 0, 'text ' || g || 'ü',
       case when g % 4 > 0 then 's' || g % 100 end, 'p' || g % 9, decode(lpad(to_hex(g), 8, '0'), 'hex'), md5(g::text)::uuid,
       date '2024-01-01' + (g % 400)::int, time '00:00' + (g % 86400) * interval '1 second',
       timestamp '2024-01-01' + g * interval '1 minute',
       timestamptz '2024-01-01 00:00+00' + g * interval '1 hour', g * interval '1 day 01:02:03', json_build_object('k', g),
       jsonb_build_object('k', g, 'list', array[1, g])
  from generate_series({first}::bigint, {last}::bigint) g
"""


@pytest.fixture(scope="module")
def world(cluster: Cluster, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with house(cluster, template, tmp_path_factory.mktemp("decoupled"), "decoupled_sql") as made, made.client() as client:
        client.execute("create table public.heap (id bigint primary key, word text, at timestamptz)")
        client.execute(
            "insert into heap select g, 'w' || g, timestamptz '2024-02-01 00:00+00' + g * interval '1 s' from generate_series(1, 40) g"
        )
        client.execute("create table public.doubled as select h.id, h.word from heap h, generate_series(1, 3)")
        yield made


@pytest.fixture(scope="module")
def filled(world: House) -> Iterator[Client]:
    """A pair that nobody changes for good: tests of single statements roll back."""
    with world.client() as connection:
        connection.execute("create schema kept; set search_path = kept, public")
        pair(connection, schema="kept")
        fill(connection, 1, 30)
        connection.execute("delete from events where id in (28, 29); delete from twin where id in (28, 29)")
        yield connection


@pytest.fixture
def client(world: House) -> Iterator[Client]:
    with world.client() as connection:
        yield connection
        connection.execute(
            "select modak.drop_iceberg_table('public', t.table_name, true) from modak.decoupled t where t.schema_name = 'public'"
        )
        connection.execute("drop table if exists public.twin")


def pair(client: Client, *, schema: str = "public", partition_by: list[str] | None = None) -> None:
    make(client, "events", EVERY_TYPE, partition_by, schema=schema)
    columns = ", ".join(f"{name} {kind}" for name, kind in EVERY_TYPE)
    client.execute(f"create table {schema}.twin ({columns}, check (id is not null))")  # type: ignore[arg-type]


def fill(client: Client, first: int, last: int) -> None:
    both(client, "insert into {t} " + ROW, first=first, last=last)


def both(client: Client, statement: str, **values: int) -> None:
    """The same on both, with the same number of rows met."""
    counts = [client.execute(statement.format(t=table, **values)).rowcount for table in ("events", "twin")]  # type: ignore[arg-type]
    assert counts[0] == counts[1], statement


def alike(client: Client) -> None:
    assert contents(client, "events", "id") == contents(client, "twin", "id")


STATEMENTS = [
    "update {t} set whole = whole + 1, note = note || '!' where id % 3 = 0",
    "update {t} set price = price * 1.1 where id between 5 and 15",
    "update {t} set price = price + 1, whole = small + whole, real_ = 1.5 where id > 20",
    "update {t} set price = price / 3 where id > 25",
    "update {t} set price = small * 1.0005 where id < 25",
    "update {t} set short = 'done' where flag",
    "update {t} set tree = tree || '{{\"z\": 9}}' where tree ->> 'k' = '7'",
    "update {t} set span = span + interval '1 hour', clock = clock + interval '1 minute' where id < 4",
    "update {t} set note = upper(md5(note)) where id in (2, 4, 6)",
    "update {t} set padded = 'x' where padded = 'p3'",
    "update {t} t set note = h.word, moment = h.at from heap h where h.id = t.id and h.id % 5 = 0",
    "update {t} t set whole = whole + 1, note = d.word from doubled d where d.id = t.id and d.id % 4 = 0",
    "delete from {t} t using doubled d where d.id = t.id and d.id % 6 = 0",
    "update {t} set id = id + 100000 where id = 9",
    "update {t} set raw = null, key = null, doc = null where id = 11",
    "delete from {t} where id % 11 = 0",
    "delete from {t} t using heap h where h.id = t.id and h.id % 7 = 0",
    "delete from {t} where moment < '2024-01-01 05:00+00'",
    "delete from {t} where note like 'text 1%'",
    "insert into {t} (id, note) values (1000001, 'a'), (1000002, null)",
    "insert into {t} (id, short, tree) select id, 'h', to_jsonb(word) from heap where id < 5",
    "insert into {t} select * from twin where id between 20 and 22",
]


@pytest.mark.parametrize("statement", STATEMENTS)
def test_every_statement_does_what_it_does_to_a_table(filled: Client, statement: str) -> None:
    """Upon rows of the lake, and upon what it left itself."""
    with filled.transaction(force_rollback=True):
        for _ in range(2):
            both(filled, statement)
            alike(filled)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak), pytest.param(3, marks=pytest.mark.soak)])
def test_random_transactions(world: House, client: Client, seed: int) -> None:
    """Statements, savepoints and rollbacks in any order; looked at inside the transaction and after it, from another session too."""
    choice = random.Random(seed)
    pair(client, partition_by=["day(moment)", "bucket(4, id)"] if seed % 2 else None)
    next_id = 1
    for _ in range(6):
        client.execute("begin")
        depth = 0
        for _ in range(choice.randint(1, 6)):
            action = choice.random()
            if action < 0.3:
                fill(client, next_id, next_id + choice.randint(0, 40))
                next_id += 60
            elif action < 0.75:
                both(client, choice.choice(STATEMENTS))
            elif action < 0.85:
                depth += 1
                client.execute(f"savepoint s{depth}")  # type: ignore[arg-type]
            elif depth:
                client.execute(f"rollback to s{choice.randint(1, depth)}")  # type: ignore[arg-type]
            if choice.random() < 0.5:
                alike(client)
        client.execute(choice.choice(["commit", "commit", "rollback"]))
        with world.client() as other:
            alike(other)


QUERIES = [
    "select count(*), sum(price), min(day), max(moment), avg(whole) from {t}",
    "select flag, count(*), sum(whole) from {t} group by flag order by flag",
    "select id, note from {t} where moment >= '2024-01-01 10:00+00' and price < 30 order by id limit 7 offset 2",
    "select a.id, b.note from {t} a join {t} b on b.whole = a.whole where a.id < 6 order by 1, 2",
    "select t.id, h.word from {t} t join heap h using (id) order by 1",
    "select tree -> 'list' ->> 1, doc ->> 'k' from {t} where tree @> '{{\"k\": 5}}'",
    "select distinct short from {t} order by 1",
    "select id from {t} where note ~ '^text 1' order by 1",
    "select row_number() over (order by id), id from {t} order by id",
    "select id from {t} where id in (select id from heap where word like 'w1%') order by 1",
    "select t from {t} t where id = 3",
    "select clock, span, padded || '|', short from {t} order by id",
    "select date_trunc('month', moment), count(*) from {t} group by 1 order by 1",
    "select distinct jsonb_array_elements_text(tree -> 'list') from {t} order by 1",
    "select count(*) from (select unnest(array[id, whole]) as one from {t} order by one) as many",
    "select a.id, generate_series(a.id, b.id) from {t} a join {t} b on b.id = a.id + 2 where a.note <> ' ORDER BY ' order by 2, 1 limit 9",
]


@pytest.mark.parametrize("query", QUERIES)
def test_every_query_reads_as_from_a_table(filled: Client, query: str) -> None:
    """From the lake alone, and with changes of the transaction's own."""

    def read(table: str) -> object:
        return filled.execute(query.format(t=table)).fetchall()  # type: ignore[arg-type]

    assert read("events") == read("twin")
    with filled.transaction(force_rollback=True):
        both(filled, "delete from {t} where id % 5 = 0")
        both(filled, "insert into {t} (id, note, whole) values (500, 'own', 7)")
        assert read("events") == read("twin")


@pytest.mark.parametrize("mode", ["auto", "force_generic_plan"])
def test_a_limit_that_is_not_known_yet(filled: Client, mode: str) -> None:
    """Postgres plans once for all values: after some runs by itself, and for a LIMIT that it has to compute first."""
    with filled.transaction(force_rollback=True):
        filled.execute(f"set local plan_cache_mode = {mode}")  # type: ignore[arg-type]
        for table in ("events", "twin"):
            filled.execute(f"prepare pages_{table}(bigint, bigint) as select id from {table} order by id limit $1 offset $2")  # type: ignore[arg-type]
        for run in range(12):
            found, wanted = (filled.execute(f"execute pages_{table}({run}, {run % 5})").fetchall() for table in ("events", "twin"))  # type: ignore[arg-type]
            assert found == wanted
        assert filled.execute("select id from events order by id limit (select 2)").fetchall() == [(1,), (2,)]
        assert filled.execute("select count(*) from (select id from events offset (select 20)) shown").fetchone() == (8,)
        filled.execute("deallocate all")


@pytest.mark.parametrize(
    ("statement", "sqlstate"),
    [
        ("insert into events (id) values (null)", "23502"),
        ("update events set id = null where id = 1", "23502"),
        ("update events set id = (select null::bigint from heap where heap.id = 1)", "23502"),
        ("update events set id = (real_ + null)::bigint where md5(note) <> ''", "23502"),
        ("insert into events (id, short) values (5, 'longer than eight')", "22001"),
        ("update events set short = note || 'and more' where id = 1", "22001"),
        ("insert into events (id, moment) values (5, 'infinity')", "22003"),
        ("update events set price = 1e12 where id = 1", "22003"),
        ("update events set price = price * 1000000000", "22003"),
        ("update events set price = whole * 1000000000", "22003"),
        ("insert into events (id) values (1) on conflict (id) do nothing", "42P10"),
        ("alter table events add column more int; select more from events", "42703"),
    ],
)
def test_what_is_refused_changes_nothing(filled: Client, statement: str, sqlstate: str) -> None:
    with pytest.raises(psycopg.Error) as refused, filled.transaction():
        filled.execute(statement)  # type: ignore[arg-type]
    assert refused.value.sqlstate == sqlstate
    assert sqlstate != "23502" or 'column "id" of relation "events"' in str(refused.value)
    alike(filled)


@pytest.mark.parametrize("shown", ["hex", "escape"])
def test_bytes_of_a_session_that_escapes_them(filled: Client, shown: str) -> None:
    r"""postgres_fdw hands them over as its client would see them, so that one backslash is \\, which is nothing in hexadecimal."""
    raw = [r"'\x'", r"'\x5c'", r"'\x5c6162'", r"'\x005cff7f27220a'", "'plain'", r"'\x5c7861'", r"'\x5c313031'"]
    with filled.transaction(force_rollback=True):
        filled.execute(f"set local bytea_output = {shown}")  # type: ignore[arg-type]
        for number, value in enumerate(raw):
            both(filled, "insert into {t} (id, raw) values (500 + {n}, {v})".format(t="{t}", n=number, v=value))
            both(filled, "update {t} set raw = {v} where id = {n}".format(t="{t}", n=number + 1, v=value))
            both(
                filled,
                "update {t} set raw = h.raw from (select {v}::bytea as raw offset 0) h where id = {n}".format(
                    t="{t}", n=number + 11, v=value
                ),
            )
            query = f"select id from {{t}} where raw = {value} or raw = (select {value}::bytea) order by id"
            found, wanted = (filled.execute(query.format(t=table)).fetchall() for table in ("events", "twin"))  # type: ignore[arg-type]
            assert found == wanted
        both(filled, "insert into {t} (id, raw) select id + 600, raw from twin where id < 20")
        both(filled, "insert into {t} (id, raw) select g, decode(repeat('5c', g % 3), 'hex') from generate_series(1000, 2000) g")
        filled.execute("set local bytea_output = hex")
        alike(filled)


def test_returning(client: Client) -> None:
    make(client, "events", [("id", "bigint"), ("v", "int"), ("note", "varchar(5)")])

    def rows(statement: str) -> object:
        return client.execute(statement).fetchall()  # type: ignore[arg-type]

    assert rows("insert into events values (1, 10, 'a'), (2, 20, 'b') returning id, note, v * 2") == [(1, "a", 20), (2, "b", 40)]
    assert rows("update events set v = v + 1 returning id, v") == [(1, 11), (2, 21)]
    assert rows("update events set note = md5(note) where false returning *") == []
    assert rows("update events e set v = h.id from heap h where h.id = e.id and h.id = 1 returning e.id, e.v, h.word") == [(1, 1, "w1")]
    assert rows("delete from events where id = 1 returning *") == [(1, 1, "a")]
    assert rows("with gone as (delete from events returning id) select * from gone") == [(2,)]


JOINED = [
    "update {t} t set v = t.v + p.v from {p} p where p.id = t.id and t.id < 9 returning t.id, p.note",
    "update {t} t set v = p.v from {p} p where p.id = t.id returning p.note, t.note, p.v, t.v * 2 + p.id, t.v",
    "update {t} t set note = p.note from {p} p where p.id = t.id and p.v > 130 returning p, t.id",
    "update {t} t set note = p.note from {p} p where p.id = t.id and p.v > 130 returning t, p.note || t.note, t",
    "update {t} t set note = q.note from {p} p join {p} q on q.id = p.id + 1 where p.id = t.id returning t.id, p.note, q.note, q.id",
    "update {t} t set v = s.v from {t} s where s.id = t.id + 1 returning t.*, s.*",
    "update {t} t set v = 7 from {p} p where p.v = t.v + 100 and p.id = t.id returning p.*",
    "update {t} t set v = t.v + 1 from {p} p where p.id <= t.id and t.id < 5 returning t.id, t.v",
    "update {t} t set v = t.v + 1 from doubled d where d.id = t.id and d.id < 5 returning t.id, t.v, d.word",
    "delete from {t} t using {p} p where p.id = t.id and p.id % 2 = 0 returning t.id, p.note, p.v + t.v",
    "delete from {t} t using {p} p where p.id = t.id and p.id % 3 = 0 returning p, p.note, t.note",
    "delete from {t} t using {p} p where p.id < t.id returning t.id",
    "delete from {t} t using doubled d where d.id = t.id and d.id % 2 = 0 returning t.id, t.v, d.word",
    "delete from {t} t using {p} p where p.id = t.id and p.note ~ '1$' returning t, 'a RETURNING b' || p.id",
]


@pytest.fixture(scope="module")
def joined(world: House) -> Iterator[Client]:
    """Two decoupled tables, t and p, and their twins."""
    with world.client() as connection:
        connection.execute("create schema joined; set search_path = joined, public")
        for name in ("t", "p"):
            make(connection, name, [("id", "bigint"), ("v", "int"), ("note", "text")], schema="joined")
            connection.execute(f"create table {name}_twin (id bigint, v int, note text)")  # type: ignore[arg-type]
            rows = f"select g, g + {0 if name == 't' else 100}, '{name}, ''of'' ' || g from generate_series(1, 40) g"
            for table in (name, f"{name}_twin"):
                connection.execute(f"insert into {table} {rows}")  # type: ignore[arg-type]
        yield connection


@pytest.mark.parametrize("statement", JOINED)
def test_returning_of_joined_tables(joined: Client, statement: str) -> None:
    """Each column is its own table's, and a row that several others meet is changed once."""

    def done(t: str, p: str) -> list[object]:
        rows = joined.execute(statement.format(t=t, p=p)).fetchall()  # type: ignore[arg-type]
        return [sorted(map(repr, rows)), contents(joined, t), contents(joined, p)]

    with joined.transaction(force_rollback=True):
        assert done("t", "p") == done("t_twin", "p_twin")
        assert done("t", "p") == done("t_twin", "p_twin")


PUSHED = [
    ("select id from {t} where v > 5 and note = 'x'", ["a2 > 5", "a3 = 'x'"], None),
    ("select count(*), sum(v), min(note) from {t} where id < 9", ["count(*)", "sum(a2)", "min(a3)", "a1 < 9"], "Aggregate"),
    ("select v, count(*) from {t} group by v having count(*) > 1", ["GROUP BY", "HAVING"], "Aggregate"),
    ("select t.id, p.note from {t} t join {p} p on p.id = t.id where p.v > 3", ["INNER JOIN", "r2.a2 > 3"], "Join"),
    ("select t.id from {t} t left join {p} p on p.id = t.id", ["LEFT JOIN"], "Join"),
    ("select p.v, sum(t.v) from {t} t join {p} p on p.id = t.id group by p.v", ["INNER JOIN", "GROUP BY"], "Aggregate"),
    ("select id from {t} order by id limit 3 offset 2", ["ORDER BY a1", "LIMIT 3", "OFFSET 2"], "Limit"),
    ("select id from {t} where v is not null order by v desc, id limit 5", ["ORDER BY a2 DESC", "LIMIT 5"], "Limit"),
    ("select v, count(*) from {t} group by v order by 2 desc limit 4", ["GROUP BY", "ORDER BY", "LIMIT 4"], "Limit"),
    ("update {t} set v = v + 1 where id < 3", ["UPDATE iceberg", "a1 < 3"], None),
    ("delete from {t} t using {p} p where p.id = t.id and p.v = 1", ["DELETE FROM iceberg", "USING iceberg"], "Join"),
]


@pytest.fixture(scope="module")
def stocked(world: House) -> Iterator[Client]:
    """So many rows, and so few groups, that there is no doubt who should do the work."""
    with world.client() as connection:
        connection.execute("create schema stocked; set search_path = stocked, public")
        for name in ("t", "p"):
            make(connection, name, [("id", "bigint"), ("v", "int"), ("note", "text")], schema="stocked")
            connection.execute(f"insert into {name} select g, g % 50, 'note ' || g % 9 from generate_series(1, 5000) g")  # type: ignore[arg-type]
        yield connection


@pytest.mark.parametrize(("statement", "remote", "local"), PUSHED)
def test_the_work_is_the_lakes(stocked: Client, statement: str, remote: list[str], local: str | None) -> None:
    """What Postgres hands over, by its plan: all in one statement, and nothing of it is done a second time here."""
    rows = stocked.execute("explain (verbose, costs off) " + statement.format(t="t", p="p")).fetchall()  # type: ignore[arg-type]
    plan = [line for (line,) in rows]
    (sent,) = [line for line in plan if "Remote SQL:" in line]
    assert all(part in sent for part in remote), plan
    nodes = [line.strip().removeprefix("->").strip() for line in plan if ":" not in line]
    assert local is None or not any(local in node for node in nodes), plan


def test_a_cancel_reaches_what_postgres_evaluates(world: House, joined: Client) -> None:
    """An UPDATE that the engine has no words for runs in a session of the gateway's, and ends with the client's wish."""
    running = "select count(*) from pg_stat_activity where datname = current_database() and query like 'with changed%' and state = 'active'"
    failures: list[psycopg.Error] = []
    with world.client() as victim, world.client() as other:
        victim.execute("set search_path = joined, public")

        def change() -> None:
            try:
                victim.execute("update t a set v = 1 from t b, t c, t d where (a.note || b.note || c.note || d.note) ~ '(.*)*x$'")
            except psycopg.Error as failure:
                failures.append(failure)

        thread = threading.Thread(target=change)
        thread.start()
        wait_until(lambda: other.execute(running).fetchone() == (1,))
        victim.cancel_safe()
        thread.join()
        assert [failure.sqlstate for failure in failures] == ["57014"]
        wait_until(lambda: other.execute(running).fetchone() == (0,))


def wait_until(done: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not done():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_rows_are_held_by_their_bytes(filled: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Much larger than what is kept in memory at a time: nothing else changes."""
    monkeypatch.setattr("modak.gateway.decoupled.pending._BUFFERED_BYTES_MAX", 1_000)
    monkeypatch.setattr("modak.gateway.decoupled.evaluation._FETCH_BYTES", 1_000)
    for statement in STATEMENTS:
        with filled.transaction(force_rollback=True):
            both(filled, statement)
            alike(filled)


@pytest.mark.soak
def test_large_rows(client: Client) -> None:
    make(client, "events", [("id", "bigint"), ("note", "text")])
    client.execute("insert into events select g, repeat(chr(65 + g % 26), 1000000) from generate_series(1, 300) g")
    client.execute("update events set note = reverse(note) || 'x' where id % 3 = 0")
    found = client.execute("select count(*), sum(length(note)), count(distinct left(note, 1)) from events").fetchone()
    assert found == (300, 300_000_100, 26)


def test_truncate_copy_and_functions(client: Client, world: House) -> None:
    pair(client)
    fill(client, 1, 20)
    with client.transaction():
        client.execute("insert into events (id) values (77)")
        client.execute("truncate events")
        client.execute("insert into events (id) values (78)")
        assert client.execute("select id from events").fetchall() == [(78,)]
    assert client.execute("select id from events").fetchall() == [(78,)]
    with client.cursor().copy("copy events (id, note) from stdin") as copy:
        for number in range(200):
            copy.write_row((number, f"copied {number}"))
    assert client.execute("select count(*), max(note) from events where note like 'copied%'").fetchone() == (200, "copied 99")
    client.execute(
        """create or replace function keep(n bigint, d jsonb) returns bigint language plpgsql as $$
        declare found bigint; begin
            insert into events (id, tree) values (n, d);
            update events set note = d ->> 'word' where id = n;
            begin
                insert into events (id) values (n + 1);
                raise exception 'not this one';
            exception when raise_exception then null;
            end;
            select count(*) into found from events where id >= n;
            return found;
        end $$"""
    )
    assert client.execute("""select keep(5000, '{"word": "kept"}')""").fetchone() == (1,)
    with world.client() as other:
        assert other.execute("select id, note, tree from events where id >= 5000").fetchall() == [(5000, "kept", {"word": "kept"})]


def test_a_savepoint_from_before_the_first_write(client: Client) -> None:
    make(client, "events", [("id", "bigint")])
    with client.transaction():
        client.execute("savepoint a")
        client.execute("insert into events values (1)")
        client.execute("savepoint b")
        client.execute("insert into events values (2)")
        client.execute("release b")
        client.execute("rollback to a")
        client.execute("insert into events values (3)")
    assert client.execute("select id from events").fetchall() == [(3,)]


def test_a_table_that_is_made_and_dropped_in_one_transaction(client: Client) -> None:
    with client.transaction():
        make(client, "fresh", [("id", "bigint")])
        client.execute("insert into fresh values (1)")
        client.execute("savepoint a")
        client.execute("select modak.drop_iceberg_table('public', 'fresh')")
        client.execute("rollback to a")
        client.execute("insert into fresh values (2)")
        client.execute("savepoint b")
        make(client, "gone", [("id", "bigint")])
        client.execute("rollback to b")
        make(client, "vain", [("id", "bigint")])
        client.execute("insert into vain values (1)")
        client.execute("select modak.drop_iceberg_table('public', 'vain')")
    assert client.execute("select id from fresh order by 1").fetchall() == [(1,), (2,)]
    assert client.execute("select table_name from modak.decoupled where schema_name = 'public'").fetchall() == [("fresh",)]


def test_one_snapshot_for_each_transaction(client: Client, world: House) -> None:
    make(client, "events", [("id", "bigint"), ("v", "int")])
    assert len(world.lake_table("public.events").snapshots()) == 0
    client.execute("insert into events select g, 0 from generate_series(1, 1000) g")
    with client.transaction():
        client.execute("insert into events values (2000, 1)")
        client.execute("update events set v = 5 where id < 10")
        client.execute("delete from events where id > 990")
    with client.transaction():
        client.execute("insert into events values (1, 1)")
        raise psycopg.Rollback
    client.execute("select * from events")
    table = world.lake_table("public.events")
    assert len(table.snapshots()) == 2
    assert table.scan().to_arrow().num_rows == 990
    assert client.execute("select count(*), sum(v) from events").fetchone() == (990, 9 * 5)
    assert client.execute("select count(*) from modak.lake_commits").fetchone() == (0,)


MOMENTS = (
    *("2024-01-01 00:00:00.5", "2024-06-30 23:59:59.9999995", "1999-12-31 23:59:58.5", "1999-12-31 23:59:59.499999"),
    "0044-03-15 00:00:00.25 BC",
)


def test_an_assignment_rounds_to_the_digits_of_its_column(client: Client, world: House) -> None:
    """postgres_fdw leaves the rounding out of the UPDATE that it sends. Postgres rounds what it reads, and nobody else does."""
    columns = [("id", "bigint"), ("ts", "timestamp"), ("tz", "timestamptz"), ("clock", "time")]
    columns += [(f"{name}{digits}", f"{kind}({digits})") for name, kind in columns[1:] for digits in (0, 2, 5, 6)]
    make(client, "events", columns)
    client.execute(f"create table twin ({', '.join(f'{name} {kind}' for name, kind in columns)})")  # type: ignore[arg-type]
    changed = ", ".join(f"{name}{digits} = {name}" for name in ("ts", "tz", "clock") for digits in (0, 2, 5, 6))
    for table in ("events", "twin"):
        for number, moment in enumerate(MOMENTS):
            given = [number, moment, moment, moment.split()[1]]
            client.execute(f"insert into {table} (id, ts, tz, clock) values (%s, %s, %s, %s)", given)  # type: ignore[arg-type]
        client.execute(f"insert into {table} (id) values (100)")  # type: ignore[arg-type]
        for statement in (changed, "tz0 = ts", "ts0 = ts2", "ts2 = ts0", "ts0 = '2024-01-01 00:00:01'", "ts5 = null"):
            client.execute(f"update {table} set {statement} where id % 2 = 0 or ts > '1990-01-01'")  # type: ignore[arg-type]
        client.execute(f"update {table} set ts0 = ts, tz5 = tz")  # type: ignore[arg-type]
    plan = str(client.execute("explain (costs off) update events set ts0 = ts, tz5 = tz").fetchall())
    assert "Foreign Update" in plan, plan
    assert contents(client, "events", "id") == contents(client, "twin", "id")
    kept = world.lake_table("public.events").scan().to_arrow().sort_by("id")
    for name in (f"{kind}{digits}" for kind in ("ts", "tz") for digits in (0, 2, 5, 6)):
        wanted = client.execute(f"select (extract(epoch from {name}) * 1000000)::bigint from twin order by id").fetchall()  # type: ignore[arg-type]
        assert kept.column(name).cast(pa.int64()).to_pylist() == [value for (value,) in wanted], name
    for name in (f"clock{digits}" for digits in (0, 2, 5, 6)):
        wanted = client.execute(f"select {name}::text from twin order by id").fetchall()  # type: ignore[arg-type]
        assert kept.column(name).to_pylist() == [value for (value,) in wanted], name
