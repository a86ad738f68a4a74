"""The only builder of Spark sessions: one machine, a cluster's master, or Spark Connect, all through the same public API.

No job uses ``sparkContext`` or ``_jvm``: Connect has neither, and what works there works everywhere.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modak.errors import LakeError, LakeFull, MissingComponent, ModakError, SparkLost
from modak.jobs.spark_loss import how_it_ended, is_lost, let_go
from modak.lake.failures import is_full
from modak.lake.storage import Storage, spark_properties

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOGGING = Path(__file__).parent / "log4j2.properties"

# A Connect server that is away is asked again for about a minute; in the ten of PySpark nobody would know why a job waits.
_ATTEMPTS = 6
_REACH_SECONDS = 10.0

# The end of a Python traceback: what was raised, and its message.
_RAISED = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Full|Refused|Failed|Moved|Unknown): ")

SHARED: Mapping[str, str] = {
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    # Timestamps cross as microseconds since 1970; any other zone here would shift what a cast to timestamp_ntz yields.
    "spark.sql.session.timeZone": "UTC",
    # Spark's own pattern does not know Iceberg's words for secrets: what it matches is not shown by SET, the UI and event logs.
    "spark.redaction.regex": "(?i)secret|passw|token|credential|access[-_.]?key",
}


@dataclass(frozen=True)
class Machine:
    """What a local session runs on; nothing of it matters for Spark Connect."""

    java_home: Path
    jars: Sequence[Path]
    scratch: Path
    memory: str = "1g"


def is_connect(master: str) -> bool:
    return master.startswith("sc://")


def is_local(master: str) -> bool:
    return master.startswith("local")


def local_conf(machine: Machine, master: str = "local") -> dict[str, str]:
    """Settings of the driver. A cluster's executors are elsewhere: they reach the driver by its name, and have folders of their own."""
    here = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(machine.scratch / "spark-local"),
    }
    return {
        "spark.jars": ",".join(str(jar) for jar in machine.jars),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": machine.memory,
        "spark.driver.extraJavaOptions": f'-Dlog4j2.configurationFile="{_LOGGING.as_uri()}" -Duser.timezone=UTC',
        "spark.executor.extraJavaOptions": "-Duser.timezone=UTC",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": str(machine.scratch / "spark-warehouse"),
        "spark.sql.shuffle.partitions": str(max(2, (os.cpu_count() or 1) * 2)),
    } | (here if is_local(master) else {})


def session(master: str, storages: Iterable[Storage], machine: Machine | None = None) -> SparkSession:
    """A session whose catalogs are the given storages. ``machine`` is needed for everything but Spark Connect."""
    from pyspark.sql import SparkSession

    if is_connect(master):
        found = _connected(master)
    else:
        if machine is None:
            raise MissingComponent("a local Spark session needs Java and jars", hint="this is a mistake in Modak; please report it")
        known = SparkSession._instantiatedSession
        if known is not None and is_lost(known):
            # Somebody else's of this process, whose Java died.
            let_go(known)
        _prepare_environment(machine, master)
        builder = SparkSession.builder.appName("modak").master(master)
        for name, value in {**SHARED, **local_conf(machine, master)}.items():
            builder = builder.config(name, value)
        try:
            # A session of its own on the one context: Spark keeps a loaded catalog under its name for a session's whole life.
            found = builder.getOrCreate().newSession()
        except Exception as cause:
            raise MissingComponent(
                f"Spark did not start: {cause}".splitlines()[0],
                hint="`modak setup` checks Java and the jars; MODAK_SPARK_MEMORY limits the driver's memory",
            ) from cause
    use_storages(found, storages)
    return found


def _connected(master: str) -> SparkSession:
    """A session of its own: one that somebody else of this process has may be lost without his knowing it."""
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.client import DefaultChannelBuilder
    from pyspark.sql.connect.client.retries import DefaultPolicy

    # What follows the address may be a token.
    where, hint = master.split("/;")[0], "start the Spark Connect server, or look at MODAK_SPARK; what failed is tried again by itself"
    try:
        host, _, port = DefaultChannelBuilder(master).endpoint.rpartition(":")
        with socket.create_connection((host.strip("[]"), int(port)), _REACH_SECONDS):
            pass
        found: Any = SparkSession.builder.appName("modak").remote(master).create()
    except (PySparkException, OSError) as cause:
        raise MissingComponent(f"Spark at {where} does not answer: {_told(cause)}", hint=hint) from cause
    found.client.set_retry_policies([DefaultPolicy(max_retries=_ATTEMPTS)])
    _leave_at_once(found)
    session: SparkSession = found
    return session


def _leave_at_once(spark: SparkSession) -> None:
    """PySpark cleans up models when a process ends, and tries for ten minutes if the server is gone. There are no models here."""
    cleanup = getattr(getattr(spark, "client", None), "_cleanup_ml_cache", None)
    if cleanup is not None:
        atexit.unregister(cleanup)


@contextlib.contextmanager
def spark_failures(what: str, spark: SparkSession | None = None) -> Iterator[None]:
    """Spark's exceptions, classic or Connect, become ours at this border; the first line says what, the cause keeps the rest.

    ``spark`` is the session that they are about. Where it is gone, whatever is raised is about that: a refused connection, say, which
    would else be taken for the lake's.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except ModakError:
        raise
    except Exception as cause:
        if is_lost(spark, cause):
            raise SparkLost(
                f"{what} did not end, because Spark is gone: {how_it_ended() or _told(cause)}",
                hint="nothing was published, and the next attempt starts Spark anew; MODAK_SPARK_MEMORY limits the memory of its Java",
            ) from cause
        if not isinstance(cause, PySparkException | Py4JError):
            raise
        told, hint = _told(cause), "nothing was published; the next pass starts over"
        if is_full(cause):
            raise LakeFull(f"{what} found no room left: {told}", hint=hint) from cause
        raise LakeError(f"{what} failed in Spark: {told}", hint=hint) from cause


def _told(cause: Exception) -> str:
    """What went wrong: in a task's traceback the last line, else the first one."""
    lines = [line for line in str(cause).splitlines() if line.strip()] or [type(cause).__name__]
    raised = [line for line in lines if _RAISED.match(line)]
    return (raised[-1] if raised else lines[0]).strip()


def use_storages(spark: SparkSession, storages: Iterable[Storage]) -> None:
    """Catalogs may be added to a running session; Spark loads each when it is first named."""
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    for storage in storages:
        for name, value in spark_properties(storage).items():
            spark.conf.set(name, value)


def use_again(spark: SparkSession, storages: Iterable[Storage]) -> bool:
    """For a session that was used before. False: it is lost, and nothing of it is left that could be taken for a session."""
    try:
        if not is_lost(spark):
            use_storages(spark, storages)
            return True
    except Exception as cause:
        if not is_lost(spark, cause):
            raise
    let_go(spark)
    return False


def _prepare_environment(machine: Machine, master: str) -> None:
    """PySpark reads these when it launches the JVM and its Python workers."""
    os.environ["JAVA_HOME"] = str(machine.java_home)
    # Without it the workers run whatever `python3` the machine has, which need not know our packages. On a cluster's machines the right
    # one may have another name, which only whoever set them up knows.
    if is_local(master) or not os.environ.get("PYSPARK_PYTHON"):
        os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # A SPARK_HOME of another Spark would mix versions; pyspark carries its own.
    os.environ.pop("SPARK_HOME", None)
    machine.scratch.mkdir(parents=True, exist_ok=True)
