"""Where the heap kept the plain name: that name means both tiers on the gateway's port, and what Postgres answers is rewritten."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import events
from tests.gateway import analytics_support as support
from tests.gateway.analytics_support import Client, World

from modak.app import App
from modak.connection import Connection


@pytest.fixture
def tiered(app: App, connection: Connection) -> App:
    events.create(connection)
    events.put_under_modak(app, connection, surface="heap")
    support.tier(app, events.EVENTS, "200")
    connection.execute("delete from public.p0")  # what Postgres alone would still show under the plain name
    return app


@pytest.fixture
def world(tiered: App, tmp_path: Path, connection: Connection) -> Iterator[World]:
    made = World(tiered, tmp_path, connection, heap_names=True)
    yield made
    made.close()


@pytest.fixture
def client(world: World) -> Iterator[Client]:
    made = world.client()
    yield made
    made.connection.close()


def test_both_names_mean_both_tiers(world: World, client: Client, connection: Connection) -> None:
    connection.execute("delete from modak.delta")  # of the delete above, which the capture trigger took for a correction
    for name in ("events", "events_all", "public.events"):
        assert world.texts(client, f"select count(*), sum(id) from {name}") == [("5", "15")], name
    assert client.postgres("select count(*) from events") == [("3",)]


def test_columns_that_the_view_does_not_show_are_not_there(world: World, client: Client, connection: Connection) -> None:
    connection.execute("delete from modak.delta")
    connection.execute("alter table public.events add column extra integer")
    world.relations.refresh(force=True)
    answer = world.start(client, "select * from events order by id")
    assert answer is not None
    assert [one.name for one in answer.fields] == ["id", "event_time", "val"]
    answer.close()


def test_what_is_declined_is_forwarded_with_the_views_name(world: World, client: Client) -> None:
    sql = "select pg_sleep(0), e.id from events e, public.events, generate_series(1, 2) g, pg_class c where e.id = events.id"
    candidate = world.lake.candidate(sql)
    assert candidate is not None
    assert asyncio.run(world.lake.answer(candidate, client, ())) is None
    assert asyncio.run(world.lake.forwarded(candidate, client)) == sql.replace(
        "events e, public.events,", '"public"."events_all" e, "public"."events_all" AS "events",'
    )
    assert world.lake.candidate("select 'events' from pg_class") is None


def test_without_that_the_plain_name_is_postgres(tiered: App, tmp_path: Path, connection: Connection) -> None:
    plain = World(tiered, tmp_path, connection)
    client = plain.client()
    assert plain.start(client, "select count(*) from events") is None
    assert plain.start(client, "select count(*) from events_all") is not None
    client.connection.close()
    plain.close()
