"""psql through the gateway: what people type, and what the program asks for on their behalf."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from relay_support import FakeLake, Gateway, counted

from modak.embedded.server_binaries import find_server_binaries

PSQL = str(find_server_binaries().bin_dir / "psql")


@pytest.fixture
def gateway(new_database: Callable[..., str]) -> Iterator[Gateway]:
    started = Gateway(new_database(), FakeLake())
    yield started
    started.stop()


@pytest.fixture
def psql(gateway: Gateway) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(script: str, *arguments: str, dsn: str | None = None) -> subprocess.CompletedProcess[str]:
        command = [PSQL, "-X", "-q", *(arguments or ("-At",)), dsn or gateway.conninfo()]
        return subprocess.run(command, input=script, capture_output=True, text=True, timeout=30, check=False)

    return run


SCHEMA = """
    create table items (id int primary key, name text not null default 'x', price numeric(10,2) check (price > 0));
    create index on items (name);
    create view cheap as select * from items where price < 10;
    insert into items values (1, 'one', 1.50), (2, 'two', 20);
"""


def test_backslash_commands_answer_as_on_postgres_itself(gateway: Gateway, psql: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    psql(SCHEMA)
    script = "\\d\n\\dt\n\\d+ items\n\\d cheap\n\\di\n\\df pg_sle*\n\\du\n\\dn\n\\l\n\\encoding\n"
    relayed, direct = psql(script, "-e"), psql(script, "-e", dsn=gateway.dsn)
    assert relayed.stderr == direct.stderr == ""
    assert relayed.stdout == direct.stdout
    assert "items_name_idx" in relayed.stdout
    assert str(gateway.port) in psql("\\conninfo\n", "-e").stdout


def test_several_statements_errors_and_transactions(psql: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = psql("select 1\\; select 2;\nselect 1/0;\nbegin; select 3; rollback;\nselect nothing;\nselect 4;\n")
    assert done.stdout.split() == ["1", "2", "3", "4"]
    assert done.stderr.splitlines()[0] == "ERROR:  division by zero"
    assert 'column "nothing" does not exist' in done.stderr
    assert "LINE 1: select nothing;" in done.stderr


def test_copy_both_ways(psql: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    source = tmp_path / "rows.csv"
    source.write_text("".join(f"{number},row {number}\n" for number in range(20_000)))
    copied = tmp_path / "copied.csv"
    done = psql(
        "create table t (n int, s text);\n"
        f"\\copy t from '{source}' csv\n"
        "copy t from stdin;\n20000\tby hand\n\\.\n"
        "select count(*), sum(n) from t;\n"
        f"\\copy (select * from t where n < 20000 order by n) to '{copied}' csv\n"
        "copy (select s from t where n = 20000) to stdout;\n"
    )
    assert done.stderr == ""
    assert done.stdout.split("\n")[:2] == ["20001|200010000", "by hand"]
    assert copied.read_text() == source.read_text()


def test_a_copy_that_fails_leaves_a_session_that_works(psql: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    rows = "".join(f"{number}\n" for number in range(5000))
    done = psql(f"create table t (n int);\ncopy t from stdin;\n1\nnot a number\n{rows}\\.\nselect count(*) from t;\n")
    assert 'invalid input syntax for type integer: "not a number"' in done.stderr
    assert done.stdout.split() == ["0"]


def test_the_lake_answers_among_the_rest(gateway: Gateway, psql: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = psql(f"select 'before';\n{counted('3', 'rows=2')};\n{counted('2', 'decline')};\n{counted('1', 'fail')};\nselect 'after';\n")
    assert done.stdout.split() == ["before", "1|lake1", "2|lake2", "1|postgres1", "2|postgres2", "after"]
    assert "ERROR:  division by zero isn't done here\nDETAIL:  place=the lake\nHINT:  mend it's cause" in done.stderr
    assert all(answer.closed for answer in gateway.lake.answers)
