"""Whoever owns a decoupled table can have its foreign table ask for anything; orders and other people's names it does not get."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from tests.decoupling import House, house, make

from modak.connection import connect
from modak.embedded.postgres import Cluster
from modak.gateway.fdw.authority import Authority, NotEntitled, said_in

Session = psycopg.Connection[tuple[Any, ...]]


@pytest.fixture(scope="module")
def home(cluster: Cluster, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with house(cluster, template, tmp_path_factory.mktemp("owners"), f"owners_{os.getpid()}") as made:
        yield made


@pytest.fixture
def keeper(home: House) -> Iterator[Session]:
    """Somebody who was given a table, and is nothing else in this database."""
    role = f"keeper_{os.getpid()}"
    with home.client() as admin:
        make(admin, "treasure", [("id", "bigint"), ("word", "text")])
        make(admin, "mine", [("a", "text"), ("b", "text"), ("c", "text"), ("d", "text"), ("e", "text")])
        admin.execute("insert into treasure values (1, 'secret')")
        admin.execute(f"create role {role} login password 'x'; grant create on schema public to {role}")  # type: ignore[arg-type]
        admin.execute(f"alter foreign table mine owner to {role}")  # type: ignore[arg-type]
        try:
            with psycopg.connect(make_conninfo(home.dsn, user=role, password="x"), autocommit=True) as session:
                yield session
        finally:
            admin.execute("select modak.drop_iceberg_table('public', 'treasure', true)")
            admin.execute(f"drop owned by {role}; drop role {role}")  # type: ignore[arg-type]


def disguise(session: Session, table: str, names: list[str]) -> None:
    """His own table, with another one's name and columns at the gateway."""
    session.execute(f"alter foreign table mine options (set schema_name 'modak', set table_name '{table}')")  # type: ignore[arg-type]
    for own, name in zip("abcde", names, strict=False):
        session.execute(f"alter foreign table mine alter column {own} options (set column_name '{name}')")  # type: ignore[arg-type]


def hexed(value: Any) -> str:
    return (value if isinstance(value, str) else json.dumps(value)).encode().hex()


ORDERS = {
    "greet": {},
    "describe": {"ref": "public.treasure", "profile": "default"},
    "list": {"namespace": "public", "profile": "default"},
    "drop": {"table_id": 1, "ref": "public.treasure", "profile": "default", "purge": True},
    "begin": {"xid": "3", "isolation": "read committed", "table_id": 1, "operation": "INSERT"},
    "parcel": {"id": "x", "table_id": 1},
}


@pytest.mark.parametrize("verb", ORDERS)
def test_an_owner_gives_no_orders(home: House, keeper: Session, verb: str) -> None:
    disguise(keeper, "order", ["verb", "request", "answer", "token"])
    for said in ("", " and d = 'made up'", " and d is null"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="orders to the gateway"):
            keeper.execute(f"select c from mine where a = '{verb}' and b = '{hexed(ORDERS[verb])}'{said}")  # type: ignore[arg-type]
    with home.client() as admin:
        assert admin.execute("select * from treasure").fetchall() == [(1, "secret")]


def test_an_owner_asks_in_nobodys_name(keeper: Session) -> None:
    disguise(keeper, "query", ["kind", "sql", "caller", "path", "token"])
    asked = f"a = 'explain' and b = '{hexed('select 1')}' and c = '{hexed('postgres')}' and d = '{hexed(['public'])}'"
    for said in ("", " and e = 'made up'"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="orders to the gateway"):
            keeper.execute(f"select a from mine where {asked}{said}")  # type: ignore[arg-type]


def test_nobody_is_told_the_word(home: House, keeper: Session) -> None:
    with home.client() as admin:
        admin.execute(f"grant modak_worker, modak_reader, modak_writer to keeper_{os.getpid()}")  # type: ignore[arg-type]
    keeper.execute("reset all")
    for relation in ("gateway", "gateway_access", "gateway_order", "gateway_query"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            keeper.execute(f"select * from modak.{relation}")  # type: ignore[arg-type]
    # A worker's orders go through the view, which does not show it either.
    greeting = "select answer from modak.gateway_orders where verb = 'greet' and request = '7b7d'"
    assert keeper.execute(greeting).fetchall() == [("{}",)]
    with home.client() as admin, connect(home.dsn) as connection:
        word = str(connection.execute("select token from modak.gateway_access").fetchone())
        plan = keeper.execute(f"explain (verbose, analyze) {greeting}")  # type: ignore[arg-type]
        assert word.split("'")[3] not in str(plan.fetchall())
        admin.execute(f"revoke modak_worker, modak_reader, modak_writer from keeper_{os.getpid()}")  # type: ignore[arg-type]


def test_another_password_is_another_word(home: House) -> None:
    """Also where another gateway has made it: what this one knows is asked for again."""
    with home.client() as admin:
        make(admin, "before", [("id", "bigint")])
        admin.execute("update modak.gateway set verifier = verifier || ' '")
        admin.execute("select modak.drop_iceberg_table('public', 'before', true)")
        admin.execute("update modak.gateway set verifier = rtrim(verifier)")
        assert admin.execute("select * from modak_explain('select 1')").fetchall()


def test_a_word_is_known_asked_for_and_refused() -> None:
    asked: list[int] = []

    def read() -> str | None:
        asked.append(1)
        return "right" if len(asked) < 3 else None

    authority = Authority(read)
    assert not authority.knows("right")
    authority.check("right")
    authority.check("right")
    assert len(asked) == 1
    for wrong in ("wrong", None, ""):
        with pytest.raises(NotEntitled):
            authority.check(wrong)


def test_a_word_is_said_once() -> None:
    assert said_in("SELECT answer FROM modak.\"order\" WHERE ((verb = 'x')) AND ((token = $1::text))", ["w"]) == "w"
    assert said_in("SELECT answer FROM modak.\"order\" WHERE ((token = 'a')) AND ((token = 'b'))", []) is None
    assert said_in("SELECT answer FROM modak.\"order\" WHERE ((verb = 'x')) OR ((token = 'a'))", []) is None
    assert said_in('SELECT answer FROM modak."order"', []) is None
