"""Worker and gateway on a database that nobody prepared: they bring the catalog with them, and touch no other than an older one."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from tests.support import run_cli, value

from modak.catalog.migrate import current_version, migrate, prepare, require_current
from modak.connection import connect
from modak.errors import CatalogError, CatalogMissing, CatalogNewer

NewDatabase = Callable[..., str]


@pytest.fixture
def empty(new_database: NewDatabase) -> str:
    return new_database()


def start(command: str, dsn: str, folder: Path, **settings: str) -> subprocess.Popen[str]:
    environment = {name: text for name, text in os.environ.items() if not name.startswith("MODAK_") or name == "MODAK_CACHE"}
    environment |= {"MODAK_DSN": dsn, "MODAK_DATA": str(folder)} | settings
    arguments = [sys.executable, "-m", "modak.cli.main", command, "--listen", "127.0.0.1:0"]
    return subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_all_at_once_on_an_empty_database(empty: str, tmp_path: Path) -> None:
    started = [start(command, empty, tmp_path) for command in ("worker", "gateway", "worker")]
    said = [process.stdout.readline() if process.stdout else "" for process in started]
    for process in started:
        process.send_signal(signal.SIGTERM)
    logged = [process.communicate(timeout=60)[1] for process in started]
    assert all(re.match(r"(http|gateway) on 127", line) for line in said), logged
    assert [process.returncode for process in started] == [0, 0, 0], logged
    # One of them made it.
    assert sum("the catalog is there" in text for text in logged) == 1, logged
    with connect(empty) as connection:
        require_current(connection)


@pytest.mark.parametrize("command", ["worker", "gateway"])
def test_a_log_in_json_has_nothing_else_in_it(empty: str, tmp_path: Path, command: str) -> None:
    started = start(command, empty, tmp_path, MODAK_LOG="json")
    assert " on 127" in (started.stdout.readline() if started.stdout else "")
    started.send_signal(signal.SIGTERM)
    lines = [json.loads(line) for line in started.communicate(timeout=60)[1].splitlines()]
    assert started.returncode == 0
    assert any(line["message"].startswith("the catalog is there") for line in lines)


@pytest.mark.parametrize("command", ["worker", "gateway"])
def test_an_address_that_is_taken_is_an_error_and_no_traceback(empty: str, tmp_path: Path, command: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        failed = run_cli(empty, command, "--listen", address, data=tmp_path)
    assert (failed.returncode, failed.stdout, "Traceback" in failed.stderr) == (1, "", False)
    assert f"error: cannot listen on {address}" in failed.stderr
    assert f"hint: set another address with MODAK_{'HTTP' if command == 'worker' else 'GATEWAY'}" in failed.stderr


def test_an_older_catalog_is_brought_up_to_date_and_this_one_left_alone(empty: str) -> None:
    with connect(empty, autocommit=True) as connection:
        migrate(connection, upto=1)
        done = prepare(connection)
        assert done is not None
        assert done.version == current_version()
        require_current(connection)
        # Routines of another program of the same version: two programs would replace them for ever.
        connection.execute("update modak.schema_meta set routines_checksum = 'of a program beside this one'")
        assert prepare(connection) is None


@pytest.mark.parametrize("command", ["worker", "gateway"])
def test_a_newer_catalog_is_refused_and_untouched(empty: str, tmp_path: Path, command: str) -> None:
    with connect(empty, autocommit=True) as connection:
        migrate(connection)
        connection.execute("update modak.schema_meta set version = 9999")
        failed = run_cli(empty, command, "--listen", "127.0.0.1:0", data=tmp_path)
        assert (failed.returncode, "version 9999" in failed.stderr) == (1, True)
        assert "hint: upgrade Modak" in failed.stderr
        with pytest.raises(CatalogNewer):
            prepare(connection)
        assert value(connection, "select version from modak.schema_meta") == 9999


@pytest.fixture
def weak(empty: str) -> Iterator[str]:
    """A role that may connect, and nothing else."""
    with psycopg.connect(empty, autocommit=True) as admin:
        admin.execute("create role weak_daemon login password 'weak'; revoke create on schema public from public")
        yield re.sub(r"//[^@]*@", "//weak_daemon:weak@", empty)
        admin.execute("drop owned by weak_daemon; drop role weak_daemon")


@pytest.mark.parametrize("command", ["worker", "gateway"])
def test_a_role_that_may_not_is_told_what_to_do(weak: str, tmp_path: Path, command: str) -> None:
    failed = run_cli(weak, command, "--listen", "127.0.0.1:0", data=tmp_path)
    assert (failed.returncode, "error: this role may not install the catalog" in failed.stderr) == (1, True)
    assert "hint: run `modak migrate` as a role that may" in failed.stderr
    assert "weak:" not in failed.stderr


def test_a_server_that_only_reads_says_where_it_is_done(empty: str) -> None:
    with connect(empty, autocommit=True) as connection:
        connection.execute("set default_transaction_read_only = on")
        with pytest.raises(CatalogMissing, match="no Modak catalog") as refused:
            prepare(connection)
    assert "on its primary" in str(refused.value.hint)
    assert isinstance(refused.value, CatalogError)
