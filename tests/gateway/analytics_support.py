"""Two registered tables with rows on both sides of T and corrections, plain twins of them, and a client that may ask either."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import pq

from modak.app import App
from modak.catalog import profiles
from modak.connection import Connection
from modak.core.registration import Options
from modak.core.table import Name
from modak.gateway.analytics.answer import LakeAnswer
from modak.gateway.analytics.interceptor import LakeInterceptor
from modak.gateway.analytics.relations import Relations
from modak.gateway.interception import Parameter
from modak.gateway.wire.messages import Decoder, FieldDescription, parse_data_row
from modak.jobs import flush
from modak.jobs import tier as tiering
from modak.jobs.context import JobContext
from modak.registration.register import register
from modak.scan.engine import Engine
from modak.scan.table import ColdTables

READINGS, ORDERS, TICKS = (Name("public", name) for name in ("readings", "orders", "ticks"))
_READINGS = """
    id bigint not null, ts timestamptz not null, sensor integer, price numeric(12,2), ratio double precision, single real, note text,
    label varchar(20), code char(5), day date, at timestamp, active boolean, key uuid, raw bytea, body jsonb, tags text[], small smallint,
    free numeric, mood mood, score score
"""
_FILL = """
    insert into {table}
    select i, timestamptz '2024-01-01 00:00:00+00' + i * interval '6 hours 7 seconds', i % 7, (i * 37 % 1000) / 100.0, i / 3.0::float8,
           i / 8.0::float4, case when i % 5 = 0 then null else 'note ' || i % 11 end, 'l' || i % 3, 'c' || i % 4,
           date '2024-01-01' + i / 4, timestamp '2024-01-01' + i * interval '1 hour', nullif(i % 3, 2) = 0,
           ('00000000-0000-0000-0000-' || lpad(i::text, 12, '0'))::uuid, decode(lpad(to_hex(i), 4, '0'), 'hex'),
           jsonb_build_object('n', i), array['a', 'b' || i], i % 100, case when i % 9 = 0 then null else i / 7.0 end,
           (array['sad', 'ok', 'happy'])[i % 3 + 1]::mood, i % 50
      from generate_series(1, 470) i;
"""
_CREATE = f"""
    create type public.mood as enum ('sad', 'ok', 'happy');
    create domain public.score as integer check (value >= 0);
    create table public.readings ({_READINGS}, primary key (id, ts)) partition by range (ts);
    create table public.readings_twin ({_READINGS});
    create table public.orders (id bigint not null, day date not null, reading bigint, amount numeric(10,2), primary key (id, day))
        partition by range (day);
    create table public.orders_twin (id bigint, day date, reading bigint, amount numeric(10,2));
    create table public.ticks (id bigint primary key, note text collate "C") partition by range (id);
    create table public.ticks_0 partition of public.ticks for values from (0) to (100);
    create table public.ticks_1 partition of public.ticks for values from (100) to (200);
    insert into public.ticks select i, 't' || i from generate_series(0, 199) i;
    {_FILL.format(table="public.readings_twin")}
    insert into public.orders_twin select i, date '2024-01-01' + i % 120, i % 500, i * 1.25 from generate_series(1, 300) i;
"""
_MONTHS = ("2024-01-01", "2024-02-01", "2024-03-01", "2024-04-01", "2024-05-01")
# Run on the registered tables and on their twins alike: corrections of cold rows, cold inserts, rows that cross the line.
CORRECTIONS = (
    "update readings set note = 'corrected', price = price + 1 where id in (3, 50, 51)",
    "update readings set note = null, ratio = 'NaN' where id = 7",
    "update readings set mood = 'happy', score = 49 where id = 8",
    "delete from readings where id in (4, 60)",
    "insert into readings (id, ts, sensor, note, body) values (9001, '2024-01-15 12:00+00', 3, 'late', '{\"x\": null}')",
    "update readings set ts = '2024-03-10 10:00+00' where id = 5",
    "update readings set ts = '2024-02-02 10:00+00' where id = 400",
    "update orders set amount = amount * 2 where id = 10",
    "delete from orders where id = 11 and day < '2024-02-01'",
)


def create(app: App, connection: Connection) -> None:
    connection.execute(_CREATE)  # type: ignore[arg-type]
    for number, (low, high) in enumerate(itertools.pairwise(_MONTHS)):
        for table in ("readings", "orders"):
            zone = "+00" if table == "readings" else ""
            connection.execute(
                f"create table public.{table}_{number} partition of public.{table} for values from ('{low}{zone}') to ('{high}{zone}')"  # type: ignore[arg-type]
            )
    connection.execute("insert into public.readings select * from public.readings_twin")
    connection.execute("insert into public.orders select * from public.orders_twin")
    profile = profiles.get(connection, None)
    lake = app.lake(profile)
    register(connection, lake, READINGS, Options(tier_key="ts", primary_key=("id",), width="month"), profile=profile.name)
    register(connection, lake, TICKS, Options(tier_key="id", primary_key=("id",), width="100"), profile=profile.name)
    register(connection, lake, ORDERS, Options(tier_key="day", primary_key=("id", "day"), width="month"), profile=profile.name)


def tier(app: App, name: Name, upto: str) -> None:
    """A pass of tiering whose tasks run here, one after the other: what they write is the same, and no Spark has to start."""

    def run(context: JobContext, task: flush.FlushTask) -> list[dict[str, Any]]:
        return [task.run(number) for number in range(len(task.chunks))]

    with pytest.MonkeyPatch.context() as patch, app.job(name) as job:
        patch.setattr(flush, "_run", run)
        tiering.tier(replace(job, lock_attempts=8), upto=job.table.key_type.decode(upto))


def twin(sql: str) -> str:
    return re.sub(r"\b(readings|orders)\b", r"\1_twin", sql)


def correct(connection: Connection) -> None:
    for statement in CORRECTIONS:
        connection.execute(statement)  # type: ignore[arg-type]
        connection.execute(twin(statement))  # type: ignore[arg-type]


@dataclass
class Client:
    """A ``ClientSession`` over libpq, and what it does when it is told None: ask Postgres."""

    connection: psycopg.Connection[Any]
    in_savepoint: bool = False
    stands_for: None = None
    exported: str | None = None
    asked: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    @property
    def transaction_status(self) -> bytes:
        return {0: b"I", 2: b"T", 3: b"E"}[self.connection.info.transaction_status]

    def setting(self, name: str) -> str | None:
        return self.connection.info.parameter_status(name)

    def notify(self, text: str) -> None:
        self.notices.append(text)

    async def query(self, sql: str) -> list[tuple[str | None, ...]]:
        self.asked.append(sql)
        return _rows(self.connection.pgconn.exec_(sql.encode()))

    async def describe(self, sql: str, oids: Sequence[int]) -> tuple[tuple[int, ...], tuple[FieldDescription, ...]]:
        _rows(self.connection.pgconn.prepare(b"", sql.encode(), list(oids)))
        found = self.connection.pgconn.describe_prepared(b"")
        fields = [
            FieldDescription((found.fname(i) or b"").decode(), found.ftable(i), 0, found.ftype(i), found.fsize(i), found.fmod(i))
            for i in range(found.nfields)
        ]
        return tuple(found.param_type(i) for i in range(found.nparams)), tuple(fields)

    def postgres(self, sql: str, parameters: Sequence[Parameter] = ()) -> list[tuple[str | None, ...]]:
        values = [parameter.value for parameter in parameters]
        kinds, forms = [parameter.oid for parameter in parameters], [parameter.format for parameter in parameters]
        return _rows(self.connection.pgconn.exec_params(sql.encode(), values, kinds, forms, 0))


def _rows(result: Any) -> list[tuple[str | None, ...]]:
    if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
        raise psycopg.DatabaseError(result.error_message.decode())
    return [tuple(_text(result.get_value(row, column)) for column in range(result.nfields)) for row in range(result.ntuples)]


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


class NoPins:
    """Counts what is held."""

    def __init__(self) -> None:
        self.held: list[tuple[int, int | None]] = []
        self.seen: set[tuple[int, int | None]] = set()

    def hold(self, table_id: int, sequence_number: int | None) -> AbstractContextManager[None]:
        @contextmanager
        def holding() -> Any:
            self.held.append((table_id, sequence_number))
            self.seen.add((table_id, sequence_number))
            yield
            self.held.remove((table_id, sequence_number))

        return holding()


class World:
    """The interceptor over one database, and the same question to both sides."""

    def __init__(self, app: App, folder: Path, connection: Connection, *, memory_limit: str = "512MB", **options: Any) -> None:
        self.app = app
        self.executor = ThreadPoolExecutor(8)
        self.engine = Engine([], memory_limit=memory_limit, threads=2, temp_directory=folder / "engine")
        self.relations = Relations(app.dsn, lambda name: app.storage(profiles.get(connection, name)))
        self.pins = NoPins()
        self.lake = LakeInterceptor(
            self.relations, ColdTables(self.engine), self.pins, app.dsn, self.executor, collation_is_c=True, **options
        )

    def client(self, **settings: str) -> Client:
        options = " ".join(f"-c {name}={value}" for name, value in {"timezone": "UTC", **settings}.items())
        return Client(psycopg.connect(self.app.dsn, autocommit=True, options=options))

    def start(self, client: Client, sql: str, parameters: Sequence[Parameter] = ()) -> LakeAnswer | None:
        self.relations.refresh()
        candidate = self.lake.candidate(sql)
        return asyncio.run(self.lake.answer(candidate, client, parameters)) if candidate is not None else None

    def rows(
        self, client: Client, sql: str, parameters: Sequence[Parameter] = (), formats: Sequence[int] = ()
    ) -> list[tuple[bytes | None, ...]] | None:
        answer = self.start(client, sql, parameters)
        if answer is None:
            return None
        try:
            found = decoded(list(answer.encoded(formats)))
            assert answer.rows == len(found)
            assert answer.exhausted
            return found
        finally:
            answer.close()

    def texts(self, client: Client, sql: str, parameters: Sequence[Parameter] = ()) -> list[tuple[str | None, ...]] | None:
        found = self.rows(client, sql, parameters)
        return None if found is None else [tuple(_text(value) for value in row) for row in found]

    def close(self) -> None:
        self.lake.close()
        self.relations.close()
        self.executor.shutdown()
        self.engine.close()


def decoded(blocks: Sequence[memoryview]) -> list[tuple[bytes | None, ...]]:
    decoder = Decoder(1 << 30)
    found = []
    for block in blocks:
        decoder.feed(bytes(block))
        while (message := decoder.next()) is not None:
            found.append(tuple(parse_data_row(message)))
    return found
