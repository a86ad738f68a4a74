"""The ways to the maintenance of decoupled tables: the command, the policy, and the worker by itself."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from tests.decoupling import Client, House, house, make
from tests.lake_upkeep import EVENTS, PLAIN, fill, live_files, maintain, set_properties, wait_for
from tests.support import run_cli

from modak.core.profile import Profile
from modak.core.schedule import Limits
from modak.core.table import Name
from modak.embedded.postgres import Cluster
from modak.worker.health import HealthCheck
from modak.worker.lake_only import LakeOnly
from modak.worker.loop import Loop
from modak.worker.metrics import Metrics
from modak.worker.samples import Samples
from modak.worker.state import LoopState

pytestmark = [pytest.mark.spark, pytest.mark.inline]


@pytest.fixture(scope="module")
def world(cluster: Cluster, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with house(cluster, template, tmp_path_factory.mktemp("maintained"), f"decoupled_ways_{os.getpid()}") as made:
        yield made


@pytest.fixture
def client(world: House) -> Iterator[Client]:
    with world.client() as connection:
        yield connection
        connection.execute("rollback")
        connection.execute("select modak.drop_iceberg_table('public', t.table_name, true) from modak.decoupled t")
        connection.execute("drop table if exists twin")


def test_the_command_and_the_properties(world: House, client: Client) -> None:
    make(client, "events", PLAIN)
    fill(client, 9)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        # A dry run needs no Spark.
        return run_cli(world.dsn, *arguments, "--dry-run", data=world.app.settings.data)

    shown = run("--json", "maintain", "public.events")
    assert shown.returncode == 0, shown.stderr
    (line,) = json.loads(shown.stdout)
    assert (line["table"], line["files_rewritten"], line["dry_run"]) == ("public.events", 9, True)
    set_properties(world, **{"modak.maintenance.small_files": "nine"})
    refused = run("maintain", "public.events")
    assert refused.returncode != 0
    assert "'nine' is not a whole number" in refused.stderr
    assert run("maintain", "public.nowhere").returncode != 0
    for option, hint in (("--orphans", "remove_orphan_files"), ("--request", "does it now")):
        told = run_cli(world.dsn, "maintain", "public.events", option, data=world.app.settings.data)
        assert (told.returncode, hint in told.stderr) == (1, True), told.stderr
    set_properties(world, **{"modak.maintenance.small_files": "10"})
    assert maintain(world, dry_run=True).files_rewritten == 0


def test_the_policy_is_the_tables_own(world: House, client: Client) -> None:
    make(client, "events", PLAIN)
    fill(client, 1)

    def run(*pairs: str) -> tuple[int, dict[str, Any], str]:
        done = run_cli(world.dsn, "--json", "policy", "public.events", *pairs, data=world.app.settings.data)
        return done.returncode, json.loads(done.stdout or "{}"), done.stderr

    set_properties(world, **{"history.expire.max-snapshot-age-ms": "60000", "write.target-file-size-bytes": str(64 << 20)})
    _, shown, _ = run()
    assert (shown["maintenance.snapshot_age"], shown["maintenance.target_mb"], shown["maintenance.orphan_age"]) == (60, 64, 86_400)
    code, shown, _ = run("maintenance.snapshot_age=2 days", "maintenance.small_files=4")
    assert (code, shown["maintenance.snapshot_age"], shown["maintenance.small_files"]) == (0, 172_800, 4)
    assert world.lake_table("public.events").properties["modak.maintenance.small_files"] == "4"
    code, shown, _ = run("maintenance.snapshot_age=")
    assert (code, shown["maintenance.snapshot_age"], shown["maintenance.small_files"]) == (0, 60, 4)
    for wrong, told in (
        ("lag=3", "unknown policy key 'lag'"),
        ("maintenance.speed=9", "unknown maintenance key"),
        ("maintenance.small_files=x", "whole number"),
    ):
        code, _, said = run("maintenance.compact=off", wrong)
        assert code == 2
        assert told in said
    assert "modak.maintenance.compact" not in world.lake_table("public.events").properties
    assert client.execute("select count(*) from events").fetchone() == (1,)


def test_the_worker_comes_of_itself(world: House, client: Client) -> None:
    make(client, "events", PLAIN)
    fill(client, 9)
    stop = threading.Event()
    loop = Loop(world.app, stop, 0.1, Limits(maintain_seconds=0.5))
    thread = threading.Thread(target=loop.run, daemon=True)
    thread.start()
    try:
        wait_for(lambda: len(live_files(world)) == 1)
        set_properties(world, **{"modak.maintenance.small_files": "nine"})
        wait_for(lambda: "not a whole number" in loop.state.failures.get("public.events", ""))
        # Whoever looks knows why, and when it is tried again.
        wait_for(lambda: (told(client) or [("", 0)])[0][1] > 1)
        shown = run_cli(world.dsn, "status", "public.events", data=world.app.settings.data)
        assert re.search(r"! public.events maintain: .*'nine' is not a whole number.* \(attempt [0-9]+, next one 20", shown.stderr), (
            shown.stderr
        )
        assert "public.events" in loop.state.next_attempt
        set_properties(world, **{"modak.maintenance.small_files": "8"})
        wait_for(lambda: not loop.state.failures)
        assert told(client) == []
        set_properties(world, **{"modak.maintenance.enabled": "off"})
        fill(client, 9, first=9)
        time.sleep(2)
        assert len(live_files(world)) == 10
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()


def told(client: Client) -> list[Any]:
    """Code and attempts of what is wrong with decoupled tables."""
    return client.execute("select code, attempts from modak.lake_problems where next_attempt > first_seen").fetchall()


def test_what_fails_is_tried_later_and_later(world: House, client: Client) -> None:
    make(client, "events", PLAIN)
    fill(client, 1)
    set_properties(world, **{"modak.maintenance.small_files": "nine"})
    only = LakeOnly(world.app, LoopState(), 3600.0)
    waits = []
    with world.app.connection() as connection:
        assert only.due(connection, time.monotonic()) == [EVENTS]
        for _ in range(7):
            only.maintain(EVENTS)
            waits.append(round(only._known[EVENTS].next - time.monotonic(), -1))
        assert waits == [20, 40, 80, 160, 300, 300, 300]
        assert told(client) == [("usage", 7)]
        assert 'modak_problems{job="maintain",table="public.events"} 1.0' in Metrics(world.app.connection).text().decode()
        health = HealthCheck(world.app.connection, LoopState(), Samples())()
        assert (health.is_fine, health.problems) == (True, 1)
        assert only.due(connection, time.monotonic() + 200) == []
        assert only.due(connection, time.monotonic() + 400) == [EVENTS]
        # What was done by hand is done; what nobody wants is nobody's problem either.
        set_properties(world, **{"modak.maintenance.small_files": "8"})
        maintain(world)
        assert told(client) == []
        set_properties(world, **{"modak.maintenance.small_files": "nine"})
        only.maintain(EVENTS)
        assert told(client) == [("usage", 1)]
        set_properties(world, **{"modak.maintenance.small_files": "8", "modak.maintenance.enabled": "off"})
        only.maintain(EVENTS)
        assert (told(client), only.state.failures, only._known[EVENTS].failures) == ([], {}, 0)
        # Nor is what is left of a table that nobody looks after any more.
        client.execute("insert into modak.upkeep_problems (table_id, job, code, message, next_attempt) "
                       "select table_id, 'maintain', 'lake', 'x', now() + interval '1 hour' from modak.decoupled")  # fmt: skip
        assert LakeOnly(world.app, LoopState(), None).due(connection, 0.0) == []
        assert told(client) == []


def test_no_pass_begins_when_the_leadership_is_over(world: House, client: Client) -> None:
    make(client, "events", PLAIN)
    make(client, "later", PLAIN)
    fill(client, 9)
    only = LakeOnly(world.app, LoopState(), 3600.0, epoch=-1, is_over=lambda: True)
    with world.app.connection() as connection:
        names = only.due(connection, 1000.0)
        assert len(names) == 2
        only.maintain_all(names)
        assert (len(live_files(world)), only.state.tallies()) == (9, {})
    # One that was replaced while it was at work says nothing: whoever leads now finds it himself.
    set_properties(world, **{"modak.maintenance.small_files": "nine"})
    only.maintain(EVENTS)
    assert (told(client), only.state.failures) == ([], {})
    with world.app.decoupled_job(EVENTS, epoch=7) as context:
        assert context is not None
        # The next leader ends sessions of this name.
        assert context.connection.info.parameter_status("application_name") == "modak worker 7"


def test_attached_tables_are_somebody_elses(world: House, client: Client) -> None:
    catalog = world.app.lake(Profile("default")).catalog
    catalog.create_namespace_if_not_exists("public")
    catalog.create_table("public.events", pa.schema([("id", pa.int64()), ("v", pa.int32()), ("note", pa.string())]))
    client.execute("select modak.attach_iceberg_table('public', 'events', 'public.events')")
    fill(client, 9)
    only = LakeOnly(world.app, LoopState(), 5.0)
    with world.app.connection() as connection:
        assert only.due(connection, 0.0) == []
    assert maintain(world).files_written == 1  # by name
    assert client.execute("select count(*) from events").fetchone() == (9,)


def test_when_a_table_is_due(world: House, client: Client) -> None:
    make(client, "events", PLAIN)
    only = LakeOnly(world.app, LoopState(), 3600.0)
    with world.app.connection() as connection:
        assert only.due(connection, 1000.0) == [EVENTS]
        assert only.due(connection, 1100.0) == []
        make(client, "later", PLAIN)
        assert only.due(connection, 1161.0) == [Name("public", "later")]
        assert only.due(connection, 1600.0) == [EVENTS]
        assert only.due(connection, 1761.0) == [Name("public", "later")]
        assert LakeOnly(world.app, LoopState(), None).due(connection, 0.0) == []
