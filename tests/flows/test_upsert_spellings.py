"""Upserts of one key that is written in two ways: the second waits for the first, as if both were written alike."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.flows.test_write_races import SECONDS_MAX, Statements, connect, statements  # noqa: F401
from tests.support import register_table
from tests.writing import Session

from modak.connection import Connection
from modak.core.registration import Options
from modak.core.table import Name
from modak.lake.iceberg import IcebergLake

SPELLINGS = [
    ("bigint", "900", "0900"),
    ("uuid", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"),
    ("timestamptz", "2026-05-01 10:00+00", "2026-05-01T12:00:00+02"),
    ("numeric(10,2)", "1.50", "1.5"),
    ("public.positive", "7", "+7"),
    ("text", "it''s", "it''s"),
    ("public.mood", "good", "good"),
]


@pytest.mark.parametrize(("kind", "one", "other"), SPELLINGS, ids=[kind for kind, _, _ in SPELLINGS])
def test_two_upserts_of_one_key_in_two_spellings_leave_one_row(
    connection: Connection,
    lake: IcebergLake,
    connect: Callable[[], Session],  # noqa: F811
    statements: Statements,  # noqa: F811
    kind: str,
    one: str,
    other: str,
) -> None:
    connection.execute("create type public.mood as enum ('good', 'bad')")
    connection.execute("create domain public.positive as bigint check (value > 0)")
    connection.execute(f"""
        create table public.spelled (key {kind} not null, at bigint not null, val text, primary key (key, at)) partition by range (at);
        create table public.spelled_0 partition of public.spelled for values from (0) to (1000)
    """)
    register_table(connection, lake, Name("public", "spelled"), Options(tier_key="at", primary_key=("key",), lag="0", width="1000"))
    first = connect()
    upsert = "select modak_upsert('public.spelled', jsonb_build_object('key', '{}', 'at', {}, 'val', '{}'))"
    first.execute(upsert.format(one, 210, "first").encode())
    second = statements.start(upsert.format(other, 220, "second"))
    assert not second.done()
    first.commit()
    assert second.result(SECONDS_MAX) == 1
    assert connection.execute("select at, val from public.spelled").fetchall() == [{"at": 220, "val": "second"}]
