"""Maintenance of a decoupled table, killed at every named point, while its clients go on writing.

The next pass ends as if nothing had happened: the same rows, few files, and nothing in the store that only a dead pass knew.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from tests.deaths import killed_worker
from tests.decoupling import Client, House, contents, house, make
from tests.lake_upkeep import EAGER, PLAIN, aged, fill, live_files, maintain, old, on_disk, set_properties

from modak.catalog import decoupled
from modak.embedded.postgres import Cluster
from modak.gateway.decoupled.sweeping import sweep
from modak.lake import reachable

pytestmark = [pytest.mark.spark, pytest.mark.inline]

POINTS = ["after_files", "after_commit", "after_merge", "before_expiry", "after_expiry", "after_removal"]


@pytest.fixture
def world(cluster: Cluster, template: str, tmp_path: Path) -> Iterator[House]:
    with house(cluster, template, tmp_path, "maintain_decoupled_crash") as made:
        yield made


def worn(world: House, client: Client) -> None:
    """There is something to do at every step: files, manifests, snapshots, and files of snapshots that were let go long ago."""
    make(client, "events", PLAIN)
    set_properties(world, **EAGER)
    fill(client, 9)
    aged(world)
    assert maintain(world).snapshots_expired > 0
    old(client)
    # More manifests than files that are small: what is packed leaves some of them to be merged.
    set_properties(world, **{"modak.maintenance.small_files": "5", "modak.maintenance.manifests": "2"})
    fill(client, 6, first=9)
    client.execute("delete from events where id = 3")
    aged(world)


@pytest.mark.parametrize("point", POINTS)
def test_the_next_pass_ends_it(world: House, point: str) -> None:
    with world.client() as client:
        worn(world, client)
        settings = world.app.settings
        if point == "after_merge":
            # Nothing is packed, so the manifests are all small and many.
            set_properties(world, **{"modak.maintenance.small_files": "100"})
        killed_worker(settings, world.dsn, None, f"maintain_decoupled.{point}", "maintain", "public.events")
        fill(client, 3, first=100)
        client.execute("update events set v = 77 where id = 4")
        set_properties(world, **{"modak.maintenance.small_files": "2"})
        before = contents(client, "events", "id")
        assert len(before) == 17
        assert maintain(world).commits >= 1
        aged(world)
        maintain(world)
        old(client)
        maintain(world)
        assert contents(client, "events", "id") == before
        assert len(live_files(world)) == 1
        with world.app.connection() as connection:
            (definition,) = decoupled.listing(connection)
        sweep(world.gateway.gateway.decoupled, definition, older_than=timedelta(0))
        known = {path.rpartition("/")[2] for path in reachable.referred(world.lake_table("public.events"))}
        assert on_disk(world) <= known
        assert client.execute("select count(*) from modak.lake_leftovers").fetchone() == (0,)
        lists = {name for name in on_disk(world, "metadata") if name.startswith("snap-")}
        assert lists <= known
