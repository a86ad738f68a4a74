"""What tests of the maintenance of decoupled tables have in common: one table, its files, and older snapshots."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from modak.core.table import Name
from modak.jobs.maintain import MaintainOutcome
from modak.jobs.maintain_decoupled import maintain_decoupled
from tests.decoupling import Client, House

EVENTS = Name("public", "events")
PLAIN = [("id", "bigint"), ("v", "int"), ("note", "text")]
EAGER = {
    "modak.maintenance.snapshots": "1",
    "modak.maintenance.snapshot_age": "0 seconds",
    "modak.maintenance.manifests": "4",
}


def set_properties(world: House, **given: str) -> None:
    with world.lake_table("public.events").transaction() as change:
        change.set_properties(**given)


def maintain(world: House, **given: Any) -> MaintainOutcome:
    with world.app.decoupled_job(EVENTS, wait_seconds=10) as context:
        assert context is not None
        return maintain_decoupled(context, **given)


def live_files(world: House) -> list[Any]:
    return [task.file for task in world.lake_table("public.events").scan().plan_files()]


def on_disk(world: House, kind: str = "data") -> set[str]:
    folder = Path(world.lake_table("public.events").location().removeprefix("file://")) / kind
    return {path.name for path in folder.rglob("*") if path.is_file()}


def old(client: Client) -> None:
    """As if the snapshots had been let go long ago."""
    client.execute("update modak.lake_leftovers set since = since - interval '2 days'")


def fill(client: Client, commits: int = 12, first: int = 0) -> None:
    for number in range(first, first + commits):
        client.execute("insert into events values (%s, %s, %s)", [number, number % 5, f"row {number}"])


def aged(world: House, seconds: int = 7_200) -> None:
    """Every snapshot so much older, as a clock would make them."""
    table = world.lake_table("public.events")
    path = Path(table.metadata_location.removeprefix("file://"))
    text = json.loads(path.read_text())
    for entry in (*text["snapshots"], *text["snapshot-log"], *text["metadata-log"]):
        entry["timestamp-ms"] -= seconds * 1000
    text["last-updated-ms"] -= seconds * 1000
    older = path.with_name(path.name.replace("-", "-aged", 1))
    older.write_text(json.dumps(text))
    with world.client() as connection:
        connection.execute(
            "update modak_lake.iceberg_tables set metadata_location = %s where metadata_location = %s",
            [f"file://{older}", table.metadata_location],
        )


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)
