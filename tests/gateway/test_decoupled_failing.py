"""A statement on decoupled tables that fails in the middle: what was acknowledged before it is committed, or the COMMIT fails."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from tests.decoupling import Client, House, house, make
from tests.gateway.test_decoupled_bulk import files_of

from modak.embedded.postgres import Cluster
from modak.failpoints import FailpointError, armed
from modak.gateway.decoupled import parcels
from modak.gateway.fdw import session as fdw_session

IN_FLUSH = "decoupled.in_flush"
# Joined with a table of Postgres's, so that rows are changed one by one.
SINGLY = "update account a set {} from beside b where b.id = a.id"
COUNT = "select count(*) from account"


@pytest.fixture(scope="module")
def world(cluster: Cluster, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with house(cluster, template, tmp_path_factory.mktemp("failing"), f"decoupled_failing_{os.getpid()}") as made:
        yield made


@pytest.fixture
def client(world: House) -> Iterator[Client]:
    with world.client() as connection:
        make(connection, "account", [("id", "bigint"), ("balance", "bigint"), ("at", "timestamptz"), ("price", "numeric(8,2)")])
        connection.execute("insert into account values (1, 10), (2, 20), (3, 30), (4, 40)")
        connection.execute("create table beside (id bigint)")
        connection.execute("insert into beside values (1), (2)")
        yield connection
        connection.execute("rollback")
        connection.execute("drop table beside")
        connection.execute("select modak.drop_iceberg_table('public', t.table_name, true) from modak.decoupled t")


def at_visit(number: int) -> Callable[[], None]:
    """Fails when the point is come to for the so manieth time, and not again."""
    left = [number]

    def visit() -> None:
        left[0] -= 1
        if left[0] == 0:
            raise FailpointError(IN_FLUSH)

    return visit


def balances(client: Client) -> list[tuple[Any, ...]]:
    return client.execute("select id, balance from account order by id").fetchall()


@pytest.mark.parametrize("visit", [1, 2])
@pytest.mark.parametrize("handler", ["savepoint", "exception block"])
@pytest.mark.parametrize(
    ("statement", "left"),
    [
        (SINGLY.format("balance = a.balance + 1"), [(1, 11), (2, 21), (3, 30), (4, 40)]),
        ("delete from account a using beside b where a.id = b.id", [(3, 30), (4, 40)]),
    ],
    ids=["update", "delete"],
)
def test_what_was_acknowledged_outlives_a_failed_look(
    world: House, client: Client, statement: str, left: list[tuple[int, int]], handler: str, visit: int
) -> None:
    """Changes wait until somebody looks. The look fails and is rolled back; they are not, and are done once."""
    with client.transaction():
        assert client.execute(statement).rowcount == 2  # type: ignore[arg-type]
        client.execute("insert into account values (5, 50)")
        with armed(IN_FLUSH, at_visit(visit)):
            if handler == "savepoint":
                with pytest.raises(psycopg.Error), client.transaction():
                    client.execute(COUNT)
            else:
                client.execute(f"do $$ begin perform ({COUNT}); exception when others then null; end $$")
    assert balances(client) == [*left, (5, 50)]
    assert world.lake_table("public.account").scan().to_arrow().num_rows == len(left) + 1


def test_a_look_that_failed_can_be_repeated(client: Client) -> None:
    with client.transaction():
        client.execute(SINGLY.format("balance = 0"))
        with armed(IN_FLUSH, at_visit(1)), pytest.raises(psycopg.Error), client.transaction():
            client.execute(COUNT)
        assert client.execute("select count(*), sum(balance) from account").fetchone() == (4, 70)
        with pytest.raises(psycopg.Error), client.transaction():
            client.execute(SINGLY.format("balance = 1 / (a.id - 2)"))
        client.execute("update account set balance = balance + 1 where id = 1")
    assert balances(client) == [(1, 1), (2, 0), (3, 30), (4, 40)]


def test_rows_that_came_in_bulk_are_all_there(world: House, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are in files until somebody looks, and are read back a part at a time."""
    monkeypatch.setattr(parcels, "ROW_GROUP_ROWS", 1000)
    with client.transaction():
        client.execute("insert into account (id, balance) select g, g from generate_series(5, 5004) g")
        with armed(IN_FLUSH, at_visit(3)), pytest.raises(psycopg.Error), client.transaction():
            client.execute(COUNT)
    assert client.execute("select count(*), count(distinct id) from account").fetchone() == (5004, 5004)
    with client.transaction():
        client.execute("insert into account (id, balance) select g, g from generate_series(10001, 15000) g")
        with armed(IN_FLUSH, at_visit(3)), pytest.raises(psycopg.Error), client.transaction():
            client.execute(COUNT)
        assert client.execute(COUNT).fetchone() == (10004,)
        raise psycopg.Rollback
    assert client.execute(COUNT).fetchone() == (5004,)
    known = {task.file.file_path.removeprefix("file://") for task in world.lake_table("public.account").scan().plan_files()}
    assert files_of(world, "public.account") == known


@pytest.mark.parametrize("assignment", ["at = 'infinity'", "price = 'NaN'"])
def test_what_the_lake_does_not_keep_is_an_error_of_its_own_statement(client: Client, assignment: str) -> None:
    with client.transaction():
        client.execute(SINGLY.format("balance = a.balance + 1"))
        with pytest.raises(psycopg.errors.NumericValueOutOfRange), client.transaction():
            client.execute(SINGLY.format(assignment))
        assert client.execute(COUNT).fetchone() == (4,)
    assert balances(client) == [(1, 11), (2, 21), (3, 30), (4, 40)]


def test_an_estimate_that_was_given_up_takes_no_transaction_away(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit before is being settled still, and the planner does not wait for that: whoever plans must not begin a transaction."""
    monkeypatch.setattr(fdw_session, "_ESTIMATE_SECONDS_MAX", 0.2)
    with armed("decoupled.before_confirm", lambda: time.sleep(1.5)):
        client.execute("insert into account values (5, 50)")
        with client.transaction():
            assert client.execute(COUNT).fetchone() == (5,)
            client.execute("insert into account values (6, 60)")
            time.sleep(2)
    assert client.execute(COUNT).fetchone() == (6,)


def test_statements_that_fail_and_are_caught_may_be_many(client: Client) -> None:
    """Each has opened a cursor that Postgres does not close: going back behind the savepoint does. The loop's own goes on."""
    caught = """
    do $$
    declare one record; failed int := 0;
    begin
        update account set balance = 0 where id = 1;
        for one in select id from account order by id loop
            for number in 1..40 loop
                begin
                    perform sum(100 / balance) from account where id <= one.id;
                exception when division_by_zero then failed := failed + 1;
                end;
            end loop;
        end loop;
        update account set balance = failed where id = 4;
    end $$"""
    client.execute(caught)
    assert balances(client) == [(1, 0), (2, 20), (3, 30), (4, 160)]


def test_rows_that_come_through_a_parent_are_refused(client: Client) -> None:
    """Triggers of statements are those of the table that is named. What the hint says helps."""
    client.execute("create table parent (id bigint, balance bigint, at timestamptz, price numeric(8,2)) partition by range (id)")
    try:
        client.execute("alter table parent attach partition account for values from (0) to (100)")
        assert client.execute("select sum(balance) from parent").fetchone() == (100,)
        for statement in ("insert into parent values (5, 50)", "update parent set balance = 0", "delete from parent"):
            with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="by its own name"):
                client.execute(statement)  # type: ignore[arg-type]
        client.execute("insert into account values (5, 50)")
        assert client.execute("select sum(balance) from parent").fetchone() == (150,)
    finally:
        client.execute("alter table parent detach partition account")
        client.execute("drop table parent")
