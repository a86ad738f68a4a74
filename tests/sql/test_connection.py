"""What a connection of ours promises beyond psycopg's."""

from __future__ import annotations

import contextlib
import subprocess
import sys

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


_INTERRUPTED = """
import os, signal, sys, threading, time
import psycopg
from modak.connection import connect

signal.signal(signal.SIGINT, signal.default_int_handler)
psycopg.Connection._try_cancel = lambda *_, **__: time.sleep(1)  # a slow cancel: the lock's timeout comes first
with connect(sys.argv[1], autocommit=True) as connection:
    connection.execute("set lock_timeout = 500")
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        connection.execute("select from public.held")
    except KeyboardInterrupt:
        print("interrupted")
"""


def test_an_interrupt_is_not_lost_in_the_failure_of_the_query_it_ends(dsn: str) -> None:
    with connect(dsn) as holder:
        holder.execute("create table public.held ()")
        holder.commit()
        holder.execute("lock table public.held")
        done = subprocess.run([sys.executable, "-c", _INTERRUPTED, dsn], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "interrupted\n", done.stderr
