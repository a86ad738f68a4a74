"""``modak.spark.load_sink``: a stream into a registered table, run again from its checkpoint in every way that Spark does it. T is 200."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from tests.adopting import run_adopt
from tests.loading import World, content, world
from tests.support import rows as select

from modak.connection import Connection, connect
from modak.core.profile import Profile
from modak.embedded.postgres import Cluster
from modak.errors import NotRegistered, UsageError
from modak.spark import load_sink

pytestmark = pytest.mark.spark

SCHEMA = "id long, event_time long, val string, n int"


@pytest.fixture
def made(cluster: Cluster, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(cluster, template, tmp_path_factory, ["pairs"]) as found:
        yield found


@pytest.fixture
def connection(made: World) -> Iterator[Connection]:
    with connect(made.dsn, autocommit=True) as opened:
        yield opened


class Stream:
    """Files that come into a folder, each a micro-batch, and a query that reads what is there and ends."""

    def __init__(self, made: World, folder: Path) -> None:
        self._made, self._folder, self._count = made, folder, 0
        self._spark: SparkSession = made.app.spark(Profile("default")).newSession()
        (folder / "in").mkdir()

    def add(self, *rows: tuple[int, int, str]) -> None:
        self._count += 1
        lines = [json.dumps({"id": number, "event_time": place, "val": text, "n": 0}) for number, place, text in rows]
        file = self._folder / "in" / f"{self._count:03}.json"
        file.write_text("\n".join(lines))
        # Spark takes files in the order of their times.
        os.utime(file, (self._count, self._count))

    def run(self, **options: Any) -> None:
        reader = self._spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        sink = load_sink(self._made.dsn, "public.pairs", label="files", settings=self._made.app.settings, **options)
        writer = reader.json(str(self._folder / "in")).writeStream.foreachBatch(sink)
        query = writer.option("checkpointLocation", str(self._folder / "checkpoint")).trigger(availableNow=True).start()
        assert query.awaitTermination(120)

    def forget_commit(self, batch: int) -> None:
        """As if Spark had died between the sink's success and its own note of it: the batch is run again."""
        for name in (f"{batch}", f".{batch}.crc"):
            (self._folder / "checkpoint" / "commits" / name).unlink(missing_ok=True)


@pytest.fixture
def stream(made: World, tmp_path: Path) -> Stream:
    return Stream(made, tmp_path)


def shown(connection: Connection) -> dict[int, str]:
    return {row["id"]: row["val"] for row in content(connection, "pairs") if row["id"] >= 10}


def labels(connection: Connection) -> list[str]:
    return [str(row[0]) for row in select(connection, "select label from modak.load_labels order by version")]


def test_every_batch_is_applied_once(stream: Stream, made: World, connection: Connection) -> None:
    stream.add((10, 210, "a"), (11, 220, "a"), (12, 30, "cold"))
    stream.add((10, 210, "b"), (13, 230, "b"))
    stream.run(parts=2)
    assert shown(connection) == {10: "b", 11: "a", 12: "cold", 13: "b"}
    before = labels(connection)
    assert all(label.startswith("files-") and "-of-2" in label for label in before)
    stream.run(parts=2)
    assert labels(connection) == before
    # A change made since then is not undone by a batch that is run again, in other parts or not.
    connection.execute("update public.pairs set val = 'since then' where id = 10")
    stream.forget_commit(1)
    stream.run(parts=3)
    assert labels(connection) == before
    assert shown(connection)[10] == "since then"
    stream.add(*((100 + number, 20, "volume") for number in range(40)))
    stream.run(parts=2, spool_threshold=5)
    run_adopt(made.app, "pairs")
    assert sum(text == "volume" for text in shown(connection).values()) == 40


def test_a_batch_that_failed_half_way_is_finished(stream: Stream, connection: Connection) -> None:
    connection.execute("alter table public.pairs_hot add constraint known check (val <> 'refused')")
    stream.add(*((10 + number, 210, "refused" if number == 7 else "taken") for number in range(20)))
    with pytest.raises(StreamingQueryException, match="known"):
        stream.run(parts=8)
    before = labels(connection)
    connection.execute("alter table public.pairs_hot drop constraint known")
    stream.run(parts=8)
    assert set(before) <= set(labels(connection))
    assert len(set(labels(connection))) == len(labels(connection))
    assert len(shown(connection)) == 20


def test_what_a_sink_cannot_be(made: World, stream: Stream, connection: Connection) -> None:
    with pytest.raises(NotRegistered):
        load_sink(made.dsn, "public.nothing", label="x", settings=made.app.settings)
    for wrong in ({"label": ""}, {"label": "x" * 250}, {"label": "x", "parts": 0}):
        with pytest.raises(UsageError):
            load_sink(made.dsn, "public.pairs", settings=made.app.settings, **wrong)  # type: ignore[arg-type]
