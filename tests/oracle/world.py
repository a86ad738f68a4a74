"""A tiered table ``public.t`` and its plain twin ``public.twin``, for keys of either shape."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from modak.app import App
from modak.catalog import profiles
from modak.connection import Connection
from modak.core.registration import Options
from modak.core.table import Name
from modak.registration.register import register

TABLE = Name("public", "t")
COLUMNS = ("id", "ts", "n", "val", "amount", "doc")
PLACES = 100  # tier keys of a partition
SHARED = range(1, 7)  # ids that every client changes; those of a client's own begin far above
CONTESTED, CONTESTED_IDS = 5, 10_000  # so many places at a time whose rows everybody inserts and deletes; their ids tell the place
_EPOCH = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
_ORIGIN = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_STEP = dt.timedelta(days=1) / PLACES

# The same statements in a function, with plans that stay between transactions.
_BUMP = """
    create function public.bump_{t}(ids bigint[], more int) returns bigint language plpgsql as $$
    declare
        one record;
        changed bigint := 0;
    begin
        for one in select id, ts from public.{t} where id = any(ids) order by id, ts loop
            update public.{t} set n = n + more where id = one.id and ts = one.ts;
            if found then
                changed := changed + 1;
            end if;
        end loop;
        return changed;
    end $$
"""


@dataclass(frozen=True)
class Shape:
    """A kind of key. A *place* is a tier key as the test counts them; a hundred of them make a partition."""

    name: str
    type: str
    primary_key: tuple[str, ...]
    width: str
    lag: str

    def key(self, place: int) -> Any:
        return place if self.type == "bigint" else _EPOCH + place * _STEP

    def canonical(self, place: int) -> int:
        return place if self.type == "bigint" else (self.key(place) - _ORIGIN) // dt.timedelta(microseconds=1)

    def place(self, canonical: int) -> int:
        """The place of a canonical key, as the catalog has it."""
        return canonical if self.type == "bigint" else (canonical - self.canonical(0)) // (self.canonical(1) - self.canonical(0))

    def length(self, places: int) -> str:
        """So many places as a policy says it."""
        return str(places) if self.type == "bigint" else f"{places // PLACES} days"

    def later(self, places: int) -> Any:
        """What added to a tier key moves it by so many places."""
        return places if self.type == "bigint" else places * _STEP


SHAPES = {
    "key with the tier key": Shape("key with the tier key", "timestamptz", ("id", "ts"), "day", "1 day"),
    "key without it": Shape("key without it", "bigint", ("id",), str(PLACES), "100"),
}


@dataclass
class World:
    """``floor``: places below it have expired, or are about to. ``top``: the first place without a partition."""

    app: App
    shape: Shape
    floor: int = 0
    top: int = 0
    buried: set[int] = field(default_factory=set)

    @property
    def dsn(self) -> str:
        return self.app.dsn


def create(app: App, connection: Connection, shape: Shape, partitions: int) -> World:
    """Registered, with rows in every partition; nothing is cold yet."""
    world = World(app, shape)
    columns = f"id bigint not null, ts {shape.type} not null, n int not null default 7, val text, amount numeric(12,2), doc jsonb"
    connection.execute(f"create table public.t ({columns}, primary key (id, ts)) partition by range (ts)")
    connection.execute(f"create table public.twin ({columns}, primary key ({', '.join(shape.primary_key)}))")
    grow(connection, world, partitions, "t")
    for number in SHARED:
        for table in ("t", "twin"):
            place = number * world.top // len(SHARED) - 1
            connection.execute(f"insert into public.{table} values (%s, %s, 0, 'shared', 0, null)", [number, shape.key(place)])
    profile = profiles.get(connection, None)
    options = Options(tier_key="ts", primary_key=shape.primary_key, lag=shape.lag, width=shape.width)
    register(connection, app.lake(profile), TABLE, options, profile=profile.name)
    for table in ("t", "twin"):
        connection.execute(_BUMP.format(t=table))
    return world


def grow(connection: Connection, world: World, partitions: int, heap: str = "t_hot") -> None:
    for number in range(world.top // PLACES, world.top // PLACES + partitions):
        low, high = (world.shape.key(edge * PLACES) for edge in (number, number + 1))
        connection.execute(f"create table public.t_{number} partition of public.{heap} for values from ('{low}') to ('{high}')")
        world.top += PLACES


def line(connection: Connection, world: World) -> int:
    """T as a place."""
    row = connection.execute("select tier_key_hi from modak.cutline").fetchone()
    assert row is not None
    return world.shape.place(row["tier_key_hi"])


def raise_floor(connection: Connection, world: World, floor: int) -> None:
    """Rows below are as good as expired: the twin forgets them now, and a retention pass makes the table follow while clients go on."""
    low = world.shape.key(floor)
    for table in ("t", "twin"):
        connection.execute(f"update public.{table} set ts = %s where id = any(%s) and ts < %s", [low, list(SHARED), low])
    gone = connection.execute("delete from public.twin where ts < %s returning id", [low]).fetchall()
    world.buried |= {row["id"] for row in gone}
    world.floor = floor


def rows_of(connection: Any, world: World, table: str, columns: Iterable[str] = COLUMNS) -> list[tuple[Any, ...]]:
    query = f"select {', '.join(columns)} from public.{table} where ts >= %s order by id, ts"
    found = connection.execute(query, [world.shape.key(world.floor)]).fetchall()
    return [tuple(row.values()) if isinstance(row, dict) else row for row in found]


def first_difference(found: list[tuple[Any, ...]], expected: list[tuple[Any, ...]]) -> str | None:
    """The first row that is not what it should be, by value; None where all are."""
    if found == expected:
        return None
    have, want = {repr(row[:2]): row for row in found}, {repr(row[:2]): row for row in expected}
    for key in sorted(have.keys() | want.keys()):
        if have.get(key) != want.get(key):
            return f"key {key}: {have.get(key, 'missing')} instead of {want.get(key, 'nothing')}"
    twice = [row for row in found if found.count(row) > 1]
    return f"{len(found)} rows instead of {len(expected)}; twice: {twice[:1]}"
