"""Spark dies under a worker: the pass at work is tried again, the others never notice, and nobody has to start anything."""

from __future__ import annotations

import os
import signal
import threading

import pytest
from pyspark import SparkContext
from tests import events, seam
from tests.events import EVENTS, ROWS, put_under_modak
from tests.serving import until
from tests.support import rows, value

from modak.app import App
from modak.connection import Connection
from modak.core.schedule import Limits
from modak.failpoints import armed
from modak.worker.loop import Loop

pytestmark = pytest.mark.spark


def kill_java() -> int:
    gateway = SparkContext._gateway
    assert gateway is not None
    os.kill(gateway.proc.pid, signal.SIGKILL)
    return int(gateway.proc.pid)


def test_java_is_killed(app: App, connection: Connection) -> None:
    events.create(connection)
    # Kept, so that no pass compares before it drops: what needs Spark here is tiering alone.
    put_under_modak(app, connection, keep_heap=True)
    killed: list[int] = []
    stop = threading.Event()
    loop = Loop(app, stop, 0.5, Limits())
    thread = threading.Thread(target=loop.run, daemon=True)
    with armed("tier.during_flush", lambda: killed or killed.append(kill_java())):
        thread.start()
        try:
            # In the middle of a flush: the pass fails, says that it was Spark, and waits for its next attempt.
            until(lambda: value(connection, "select count(*) from modak.problems where next_attempt is not null") == 1)
            (told,) = rows(connection, "select job, code, message from modak.problems")
            assert told[:2] == ("tier", "spark_lost")
            assert "the flush did not end, because Spark is gone: its Java process was killed by signal 9" in told[2]
            assert "lake" not in told[2]
            until(lambda: seam.states(connection, EVENTS) == {"p0": "tiered", "p1": "tiered", "p2": "hot"})
            until(lambda: value(connection, "select count(*) from modak.problems") == 0)
            # While nobody needs it: the next pass starts another one before it begins.
            until(lambda: not loop.state.running)
            killed.append(kill_java())
            events.add_partition(connection, 3, "public.events_hot")
            connection.execute("insert into public.events_hot values (6, 310, 'newest')")
            until(lambda: seam.states(connection, EVENTS).get("p2") == "tiered")
        finally:
            stop.set()
            thread.join(60)
    assert not thread.is_alive()
    assert len(set(killed)) == 2
    assert value(connection, "select count(*) from modak.problems") == 0
    failed = {key[:3] for key in loop.state.tallies() if key[2] == "failed"}
    assert failed == {("public.events", "tier", "failed")}
    assert loop.state.tallies()[("public.events", "tier", "failed")].count == 1
    assert seam.read(app, EVENTS) == {str(row[0]): row for row in (*ROWS, (6, 310, "newest"))}
