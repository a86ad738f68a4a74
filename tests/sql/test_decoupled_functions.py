"""The SQL half of decoupled tables: what is refused before a gateway is asked, and the foreign table that is made (SCENARIOS 100, 103).

Where a gateway is needed, its answers come from a function that stands in for it here; tests/gateway has the real one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb
from tests.support import value

from modak.catalog import ownership
from modak.connection import Connection, connect
from modak.core.decoupled import Definition, accepted
from modak.core.type_map import PgType
from modak.errors import Problem, Refused
from modak.lake.decoupled import schema_of

STAND_IN = """
    create or replace function modak.order_gateway(p_verb text, p_request jsonb) returns jsonb language plpgsql as $$
    begin
        create table if not exists public.orders_seen (number serial, verb text, request jsonb);
        insert into public.orders_seen (verb, request) values (p_verb, p_request);
        if p_verb = 'describe' then
            return '{"columns": [{"name": "id", "type": "bigint", "field_id": 3, "required": true, "comment": "key"},
                                 {"name": "at", "type": "time without time zone", "field_id": 7, "lake": "time"}], "partition_by": []}';
        end if;
        return p_request || jsonb_build_object('ref', coalesce(p_request->>'ref', concat(p_request->>'schema', '.', p_request->>'name')));
    end $$"""
ID = {"name": "id", "type": "bigint"}
_names = (f"t{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def base(cluster: Any, template: str) -> Iterator[str]:
    with psycopg.connect(cluster.dsn("postgres"), autocommit=True) as admin:
        admin.execute(f"create database decoupled_sql template {template}")  # type: ignore[arg-type]
    yield cluster.dsn("decoupled_sql")
    with psycopg.connect(cluster.dsn("postgres"), autocommit=True) as admin:
        admin.execute("drop database decoupled_sql with (force)")


@pytest.fixture
def made(base: str) -> Iterator[Connection]:
    """A transaction of its own, with somebody who answers orders; all of it is rolled back."""
    with connect(base) as connection:
        connection.execute(STAND_IN)
        connection.execute(
            "create type public.mood as enum ('a'); create domain public.small as int; create type public.pair as (a int, b int)"
        )
        yield connection
        connection.rollback()


def rows(connection: Connection, query: str, parameters: list[Any] | None = None) -> list[dict[str, Any]]:
    return connection.execute(query, parameters).fetchall()  # type: ignore[arg-type]


def create(connection: Connection, columns: Any, *, name: str = "", partition_by: list[str] | None = None) -> str:
    name = name or next(_names)
    arguments = ["public", name, Jsonb(columns) if columns is not None else None, partition_by]
    connection.execute("select modak.create_iceberg_table(%s, %s, %s, %s)", arguments)
    return name


def orders(connection: Connection) -> list[tuple[str, dict[str, Any]]]:
    return [(row["verb"], row["request"]) for row in rows(connection, "select verb, request from public.orders_seen order by number")]


ACCEPTED = """
    smallint|int2|int|integer|int4|bigint|INT8|real|float4|double precision|float|float8|boolean|bool|timestamp|timestamp without time zone
    timestamp(3)|timestamptz|timestamp with time zone|timestamp(0) with time zone|date|time|time without time zone|uuid|bytea|text|varchar
    varchar(8)|character varying(3)|char(10)|character(2)|char|numeric(20,5)|numeric(38,0)|decimal(5)|numeric(38, 38)|json|jsonb|interval
    interval day to second(3)|pg_catalog.int4"""
REFUSED = {
    "0A000": """
    inet|cidr|oid|numeric|decimal|numeric(39,0)|numeric(4,-2)|numeric(2,4)|public.mood|mood|xml|tsvector|tsquery|int4range|int4multirange
    public.pair|int[]|text[]|public.small|small|timetz|money|name|"char"|bit(3)|point|regclass|macaddr|pg_lsn|xid""",
    "42704": "no_such_type|bigserial",
    "42601": """
    int) server x; drop table y; --|int -- |int, b int|int not null|int default 3|varchar(8|int/**/|text collate "C"|int; select 1""",
}


def listed(text: str) -> list[str]:
    return [part for line in text.strip().splitlines() for part in line.strip().split("|")]


@pytest.mark.parametrize("kind", listed(ACCEPTED))
def test_a_type_is_accepted_here_and_in_core(made: Connection, kind: str) -> None:
    name = create(made, [{"name": "c", "type": kind}])
    asked = orders(made)[-1][1]
    column = asked["columns"][0]
    assert asked["columns"] == made.execute("select columns from modak.decoupled where table_name = %s", [name]).fetchone()["columns"]  # type: ignore[index]
    assert not isinstance(accepted(PgType(column["type"], column["base"], modifier=column["modifier"])), Problem)
    definition = Definition.parse(asked | {"ref": f"public.{name}"})
    assert definition.as_json()["columns"] == asked["columns"]
    assert schema_of(definition).fields[0].name == "c"


@pytest.mark.parametrize(("state", "kind"), [(state, kind) for state, kinds in REFUSED.items() for kind in listed(kinds)])
def test_a_type_is_refused_before_anything_is_asked(made: Connection, state: str, kind: str) -> None:
    with pytest.raises(psycopg.Error) as failed, made.transaction():
        create(made, [ID, {"name": "c", "type": kind}], name="refused")
    assert failed.value.sqlstate == state, failed.value
    assert failed.value.diag.message_hint
    assert '"c"' in str(failed.value)
    assert value(made, "select to_regclass('public.refused') is null and to_regclass('public.orders_seen') is null")


@pytest.mark.parametrize(
    ("columns", "state"),
    [
        (None, "22023"), ([], "22023"), ({}, "22023"), ("id bigint", "22023"), ([{"type": "int"}], "22023"),
        ([{"name": 1, "type": "int"}], "22023"), ([{"name": "id", "type": " "}], "22023"),
        ([{"name": "id"}], "22023"), ([{"name": "", "type": "int"}], "42602"), ([{"name": "x" * 64, "type": "int"}], "42602"),
        ([{"name": "a\nb", "type": "int"}], "42602"), ([{"name": "_pos", "type": "int"}], "42602"), ([ID, ID], "42701"),
        ([ID, {"name": "ID", "type": "int"}], "42701"), ([{**ID, "nulable": False}], "22023"), ([{**ID, "not_null": "yes"}], "22023"),
        ([{**ID, "comment": 3}], "22023"), ([{**ID, "default": [1]}], "22023"), ([{"name": "ctid", "type": "int"}], "42701"),
    ],
)  # fmt: skip
def test_columns_that_cannot_be_are_refused(made: Connection, columns: Any, state: str) -> None:
    with pytest.raises(psycopg.Error) as failed, made.transaction():
        create(made, columns)
    assert failed.value.sqlstate == state, failed.value
    assert value(made, "select to_regclass('public.orders_seen') is null")


@pytest.mark.parametrize(
    ("entry", "state"),
    [
        ("nothing", "42703"), ("day(nothing)", "42703"), ("week(at)", "22023"), ("day(id)", "42804"), ("hour(d)", "42804"),
        ("bucket(id)", "22023"), ("bucket(0, id)", "22023"), ("truncate(9999999999, id)", "22023"), ("bucket(4, ok)", "42804"),
        ("truncate(4, at)", "42804"), ("j", "42804"), ("identity(f)", "42804"), ("bucket(4, f)", "42804"), ("", "42703"),
        ("id) as x; drop table y; --", "42703"),
    ],
)  # fmt: skip
def test_partitions_that_cannot_be_are_refused(made: Connection, entry: str, state: str) -> None:
    kinds = {"id": "bigint", "at": "timestamptz", "d": "date", "ok": "boolean", "j": "jsonb", "f": "real"}
    columns = [{"name": name, "type": kind} for name, kind in kinds.items()]
    with pytest.raises(psycopg.Error) as failed, made.transaction():
        create(made, columns, partition_by=[entry])
    assert failed.value.sqlstate == state, failed.value
    assert value(made, "select to_regclass('public.orders_seen') is null")
    create(made, columns)
    with pytest.raises(Refused):
        Definition.parse(orders(made)[-1][1] | {"ref": "public.x", "partition_by": [entry]})


def test_partitions_are_read_the_same_here_and_in_core(made: Connection) -> None:
    kinds = {"id": "bigint", "At time": "timestamptz", "d": "date", "t": "text", "ok": "boolean", "u": "uuid"}
    entries = ["bucket(16, id)", 'day("At time")', "YEAR( d )", "truncate(t,3)", "identity(ok)", "u"]
    create(made, [{"name": name, "type": kind} for name, kind in kinds.items()], partition_by=entries)
    definition = Definition.parse(orders(made)[-1][1] | {"ref": "public.x"})
    assert [str(field) for field in definition.partition_by] == ["bucket(16, id)", 'day("At time")', "year(d)", "truncate(3, t)", "ok", "u"]
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="twice"):
        create(made, [{"name": "at", "type": "date"}], partition_by=["day(at)", "month(at)"])


def test_the_foreign_table_is_what_the_gateway_serves(made: Connection) -> None:
    columns = [
        {"name": "id", "type": "bigint", "not_null": True, "comment": "it's the key"},
        {"name": "we ird\"'$$", "type": "varchar(8)", "nullable": False, "default": "'new'"},
        {"name": "at", "type": "timestamptz", "default": "now()"},
        {"name": "n", "type": "numeric(10,2)", "default": 1.5},
    ]
    name = create(made, columns, name='odd "na$$me')
    found = rows(
        made,
        """select format_type(a.atttypid, a.atttypmod) as type, a.attnotnull as required, a.attfdwoptions as options,
                  pg_get_expr(d.adbin, d.adrelid) as preset, col_description(a.attrelid, a.attnum) as note
             from pg_attribute a left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
            where a.attrelid = to_regclass(%s) and a.attnum > 0 order by a.attnum""",
        ['public."odd ""na$$me"'],
    )
    assert [(row["type"], row["required"], row["options"], row["preset"], row["note"]) for row in found] == [
        ("bigint", True, ["column_name=a1"], None, "it's the key"),
        ("character varying(8)", True, ["column_name=a2"], "'new'::character varying", None),
        ("timestamp with time zone", False, ["column_name=a3"], "now()", None),
        ("numeric(10,2)", False, ["column_name=a4"], "1.5", None),
    ]
    known = rows(made, "select * from modak.decoupled where table_name = %s", [name])[0]
    relation = rows(
        made,
        """select c.oid::bigint as id, f.ftoptions as options, pg_get_userbyid(c.relowner) = current_user as own, tgname::text as trigger
             from pg_class c join pg_foreign_table f on f.ftrelid = c.oid join pg_trigger t on t.tgrelid = c.oid where c.relname = %s""",
        [name],
    )[0]
    assert known["table_id"] == relation["id"]
    assert relation["own"]
    assert relation["trigger"] == "modak_begin_lake_write"
    assert set(relation["options"]) == {"schema_name=iceberg", f"table_name={relation['id']}", "batch_size=5000", "fetch_size=10000"}
    assert [column["required"] for column in known["columns"]] == [True, True, False, False]


@pytest.mark.parametrize(
    "default",
    [
        "1); drop table public.victim; --", "1; drop table public.victim", "1) , alter column id set default (2", "1 -- x", "1 /* x */",
        "$$x$$::text",
        "E'\\'); drop table public.victim; --'", "'open", '"open', "", " ", "(1", "1)", "')' || (", "U&'\\0041'",
    ],
)  # fmt: skip
def test_a_default_is_one_expression(made: Connection, default: str) -> None:
    made.execute("create table public.victim (id int)")
    with pytest.raises(psycopg.errors.SyntaxError), made.transaction():
        create(made, [{"name": "id", "type": "bigint", "default": default}])
    assert value(made, "select to_regclass('public.victim') is not null and to_regclass('public.orders_seen') is null")


@pytest.mark.parametrize("default", ["(select 1)", "id + 1", "'no number'", "no_such_function()", "1, 2"])
def test_postgres_judges_the_expression(made: Connection, default: str) -> None:
    with pytest.raises(psycopg.Error), made.transaction():
        create(made, [{"name": "id", "type": "bigint", "default": default}])
    assert value(made, "select to_regclass('public.orders_seen') is null")


def test_quotes_and_parentheses_in_strings_are_no_matter(made: Connection) -> None:
    text = "concat('a)''; drop (', \"current_user\"(), ';--')"
    name = create(made, [{"name": "t", "type": "text", "default": text}])
    assert "a)''; drop (" in value(made, f"select pg_get_expr(adbin, adrelid) from pg_attrdef where adrelid = 'public.{name}'::regclass")


def test_a_taken_name_is_refused(made: Connection) -> None:
    made.execute("create view public.taken as select 1 as a")
    for arguments, state in (
        (("public", "taken"), "42P07"),
        (("nowhere", "t"), "3F000"),
        (("public", ""), "42602"),
        ((None, "t"), "42602"),
    ):
        with pytest.raises(psycopg.Error) as failed, made.transaction():
            made.execute("select modak.create_iceberg_table(%s, %s, %s)", [*arguments, Jsonb([ID])])
        assert failed.value.sqlstate == state
    with pytest.raises(psycopg.errors.UndefinedObject), made.transaction():
        made.execute("select modak.create_iceberg_table('public', 't', %s, profile => 'nowhere')", [Jsonb([ID])])


def test_drop_says_what_is_not_there(made: Connection) -> None:
    made.execute("create table public.plain (id int)")
    for name, state in (("nothing", "42P01"), ("plain", "42809")):
        with pytest.raises(psycopg.Error) as failed, made.transaction():
            made.execute("select modak.drop_iceberg_table('public', %s)", [name])
        assert failed.value.sqlstate == state


def test_drop_orders_what_was_made(made: Connection) -> None:
    name = create(made, [ID])
    number = value(made, "select table_id from modak.decoupled")
    made.execute("select modak.drop_iceberg_table('public', %s, true)", [name])
    assert orders(made)[-1] == (
        "drop",
        {"table_id": number, "ref": f"public.{name}", "profile": "default", "purge": True, "is_attached": False},
    )
    assert value(made, "select count(*) from modak.decoupled") == 0
    create(made, [ID], name=name)
    assert f"public.{name}" in orders(made)[-1][1]["replaced"]


def test_a_foreign_table_dropped_by_itself_is_in_nobodys_way(made: Connection) -> None:
    name = create(made, [ID])
    made.execute(f"drop foreign table public.{name}")
    create(made, [ID], name=name)
    assert f"public.{name}" in orders(made)[-1][1]["replaced"]
    assert value(made, "select count(*) from modak.decoupled") == 1


def test_a_renamed_table_keeps_its_row(made: Connection) -> None:
    from modak.catalog import decoupled

    name = create(made, [ID])
    made.execute(f"alter foreign table public.{name} rename to renamed")
    assert [str(one.name) for one in decoupled.listing(made)] == ["public.renamed"]
    with pytest.raises(psycopg.errors.UniqueViolation), made.transaction():
        create(made, [ID], name=name)  # the stand-in gives it the lake table that is taken; the gateway refuses that itself
    made.execute("select modak.drop_iceberg_table('public', 'renamed')")
    assert value(made, "select count(*) from modak.decoupled") == 0


def test_attach_takes_the_columns_of_the_lake(made: Connection) -> None:
    made.execute("select modak.attach_iceberg_table('public', 'theirs', 'sales.events')")
    assert [verb for verb, _ in orders(made)] == ["describe", "attach"]
    asked = orders(made)[-1][1]
    assert (asked["ref"], asked["is_attached"]) == ("sales.events", True)
    kept = [(column["field_id"], column.get("lake"), column["required"]) for column in asked["columns"]]
    assert kept == [(3, None, True), (7, "time", False)]
    options = rows(made, "select attfdwoptions as o from pg_attribute where attrelid = 'public.theirs'::regclass and attnum > 0")
    assert [row["o"] for row in options] == [["column_name=a3"], ["column_name=a7"]]
    with pytest.raises(psycopg.errors.DuplicateObject), made.transaction():
        made.execute("select modak.attach_iceberg_table('public', 'again', 'sales.events')")
    with pytest.raises(psycopg.errors.InvalidName), made.transaction():
        made.execute("select modak.attach_iceberg_table('public', 'again', 'events')")
    made.execute("select modak.drop_iceberg_table('public', 'theirs')")
    assert orders(made)[-1][1]["is_attached"] is True


def test_the_lake_of_a_registered_table_is_not_attached(made: Connection) -> None:
    made.execute(
        "insert into modak.tables (table_id, schema_name, table_name, primary_key_cols, tier_key_col, lake_table_ref) "
        "values (1, 'public', 'cold', '{id}', 'id', 'public.cold')"
    )
    with pytest.raises(psycopg.errors.ObjectInUse, match=r"cold rows of table public\.cold"):
        made.execute("select modak.attach_iceberg_table('public', 'mine', 'public.cold')")


def test_without_a_gateway_it_is_said_so(base: str) -> None:
    with connect(base, autocommit=True) as connection:
        connection.execute("alter server modak_gateway options (set port '1', set use_remote_estimate 'false')")
        with pytest.raises(psycopg.OperationalError, match="no gateway answers") as failed:
            create(connection, [ID], name="lonely")
        assert "modak gateway" in (failed.value.diag.message_hint or "")
        assert value(connection, "select to_regclass('public.lonely') is null and not exists (select from modak.decoupled)")


def test_a_copy_does_not_write_to_the_lake(base: str) -> None:
    """Until somebody has said whose the lake is; the first that writes has claimed it."""
    with connect(base) as connection:
        connection.execute("select modak.check_lake_owner()")
        connection.execute("select modak.check_lake_owner()")
        assert ownership.claim(connection).home == ownership.here(connection)
        for change in ("database_id = 1", "system_id = '7'", "claim = null"):
            with connection.transaction(force_rollback=True):
                connection.execute(f"update modak.ownership set {change}")  # type: ignore[arg-type]
                with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="restored or copied"), connection.transaction():
                    create(connection, [ID], name="copied")
        connection.rollback()


def test_only_workers_make_tables(base: str) -> None:
    with connect(base) as connection:
        connection.execute("create role nobody_here; create role worker_here; grant modak_worker to worker_here")
        connection.execute("grant usage on schema modak to nobody_here; grant create on schema public to nobody_here, worker_here")
        connection.execute(STAND_IN)
        connection.execute("create table public.orders_seen (number serial, verb text, request jsonb)")
        connection.execute("grant all on public.orders_seen, public.orders_seen_number_seq to worker_here")
        connection.execute("set role nobody_here")
        for statement in (
            "select modak.create_iceberg_table('public', 't', '[]')",
            "select * from modak.gateway_order",
            "select * from modak.lake_commits",
            "select * from modak.storage_secret()",
            "select modak.set_storage_secret('a', 'b', null)",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege), connection.transaction():
                connection.execute(statement)  # type: ignore[arg-type]
        connection.execute("set role worker_here")
        name = create(connection, [ID])
        assert value(connection, f"select pg_get_userbyid(relowner) from pg_class where relname = '{name}'") == "worker_here"
        connection.execute("select modak.drop_iceberg_table('public', %s)", [name])
        connection.rollback()


def test_the_storage_secret_is_in_no_table(base: str) -> None:
    read = "select key, secret from modak.storage_secret()"
    with connect(base) as connection:
        connection.execute("select modak.set_storage_secret('AKIA', 'p''ass \\word=1', 'http://store:9000')")
        assert rows(connection, read) == [{"key": "AKIA", "secret": "p'ass \\word=1"}]
        assert value(connection, "select lake_config->>'s3.endpoint' from modak.storage_profiles where is_default") == "http://store:9000"
        connection.execute("set role modak_worker")
        assert rows(connection, read) == [{"key": "AKIA", "secret": "p'ass \\word=1"}]
        assert rows(connection, "select umoptions from pg_user_mappings where srvname = 'modak_storage'") == [{"umoptions": None}]
        connection.execute("reset role")
        for given in (("a", None, None), (None, "b", None), ("", "b", None), ("a", "b", "store:9000"), ("a", "b", "http://u:p@store")):
            with pytest.raises(psycopg.errors.InvalidParameterValue), connection.transaction():
                connection.execute("select modak.set_storage_secret(%s, %s, %s)", given)
        connection.execute("select modak.set_storage_secret(null, null, null)")
        assert rows(connection, read) == []
        assert value(connection, "select lake_config ? 's3.endpoint' from modak.storage_profiles where is_default") is False
        connection.rollback()


def test_new_names_stand_nowhere_else(new_database: Callable[..., str], template: str) -> None:
    with connect(new_database(template), autocommit=True) as connection:
        closed = rows(
            connection,
            """select p.proname::text as name from pg_proc p where p.pronamespace = 'modak'::regnamespace
                  and p.proname ~ 'iceberg_table|lake_|storage_secret|order_gateway'
                  and has_function_privilege('public', p.oid, 'execute')""",
        )
        assert closed == []
