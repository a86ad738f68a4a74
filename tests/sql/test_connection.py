"""What a connection of ours promises beyond psycopg's."""

from __future__ import annotations

import contextlib

import psycopg
import pytest
from tests.support import value

from modak.connection import connect


@pytest.mark.parametrize("nested", [False, True])
def test_a_transaction_whose_connection_broke_does_not_end_well(dsn: str, nested: bool) -> None:
    """Also where somebody inside dealt with the error: nothing was committed, and whoever answers for it has to know."""
    with connect(dsn, autocommit=True) as watcher:
        watcher.execute("create table public.kept (n int)")

        def work() -> None:
            with connect(dsn, autocommit=True) as connection, connection.transaction():
                connection.execute("insert into public.kept values (1)")
                with contextlib.suppress(psycopg.Error), connection.transaction() if nested else contextlib.nullcontext():
                    connection.execute("select pg_terminate_backend(pg_backend_pid())")

        with pytest.raises(psycopg.OperationalError):
            work()
        assert value(watcher, "select count(*) from public.kept") == 0


def test_what_we_commit_is_on_disk(dsn: str) -> None:
    """Whatever the database's default is: a frontier that a crash takes back would be behind what the slot forgot."""
    with connect(dsn, autocommit=True) as admin:
        admin.execute("do $$ begin execute format('alter database %I set synchronous_commit = off', current_database()); end $$")
    with connect(dsn) as connection:
        assert value(connection, "show synchronous_commit") == "on"
