"""The only builder of Spark sessions: one machine, a cluster's master, or Spark Connect, all through the same public API.

No job uses ``sparkContext`` or ``_jvm``: Connect has neither, and what works there works everywhere.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from modak.errors import LakeError, MissingComponent
from modak.lake.storage import Storage, spark_properties

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOGGING = Path(__file__).parent / "log4j2.properties"

SHARED: Mapping[str, str] = {
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    # Timestamps cross as microseconds since 1970; any other zone here would shift what a cast to timestamp_ntz yields.
    "spark.sql.session.timeZone": "UTC",
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


def local_conf(machine: Machine) -> dict[str, str]:
    return {
        "spark.jars": ",".join(str(jar) for jar in machine.jars),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": machine.memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f'-Dlog4j2.configurationFile="{_LOGGING.as_uri()}" -Duser.timezone=UTC',
        "spark.executor.extraJavaOptions": "-Duser.timezone=UTC",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": str(machine.scratch / "spark-warehouse"),
        "spark.local.dir": str(machine.scratch / "spark-local"),
        "spark.sql.shuffle.partitions": str(max(2, (os.cpu_count() or 1) * 2)),
    }


def session(master: str, storages: Iterable[Storage], machine: Machine | None = None) -> SparkSession:
    """A session whose catalogs are the given storages. ``machine`` is needed for everything but Spark Connect."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("modak")
    if is_connect(master):
        found = builder.remote(master).getOrCreate()
    else:
        if machine is None:
            raise MissingComponent("a local Spark session needs Java and jars", hint="this is a mistake in Modak; please report it")
        _prepare_environment(machine)
        builder = builder.master(master)
        for name, value in {**SHARED, **local_conf(machine)}.items():
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


@contextlib.contextmanager
def spark_failures(what: str) -> Iterator[None]:
    """Spark's exceptions, classic or Connect, become ours at this border; the first line says what, the cause keeps the rest."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as cause:
        first = next((line for line in str(cause).splitlines() if line.strip()), type(cause).__name__)
        raise LakeError(f"{what} failed in Spark: {first.strip()}", hint="nothing was published; the next pass starts over") from cause


def use_storages(spark: SparkSession, storages: Iterable[Storage]) -> None:
    """Catalogs may be added to a running session; Spark loads each when it is first named."""
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    for storage in storages:
        for name, value in spark_properties(storage).items():
            spark.conf.set(name, value)


def _prepare_environment(machine: Machine) -> None:
    """PySpark reads these when it launches the JVM and its Python workers."""
    os.environ["JAVA_HOME"] = str(machine.java_home)
    # Without it the workers run whatever `python3` the machine has, which need not know our packages.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # A SPARK_HOME of another Spark would mix versions; pyspark carries its own.
    os.environ.pop("SPARK_HOME", None)
    machine.scratch.mkdir(parents=True, exist_ok=True)
