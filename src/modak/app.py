"""Composition root: settings become connections, lakes and Spark sessions here, and nowhere else."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from modak import failpoints
from modak.connection import Connection, connect
from modak.errors import UsageError
from modak.progress import SILENT, Progress
from modak.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from modak.core.profile import Profile
    from modak.core.table import Name
    from modak.embedded.postgres import Cluster
    from modak.gateway.service import Gateway
    from modak.jobs.context import JobContext
    from modak.jobs.spark import Machine
    from modak.lake.iceberg import IcebergLake
    from modak.lake.storage import Storage


class App:
    """Everything one run of the program needs, made when it is first asked for."""

    def __init__(self, settings: Settings, progress: Progress = SILENT) -> None:
        self.settings = settings
        self.progress = progress
        self._spark: SparkSession | None = None
        if settings.failpoints:
            failpoints.arm(settings.failpoints)

    @property
    def cluster_folder(self) -> Path:
        return self.settings.data.absolute() / "postgres"

    @cached_property
    def dsn(self) -> str:
        """The given DSN, else the embedded cluster of the data folder, started if it stands still."""
        if self.settings.dsn:
            return self.settings.dsn
        if not (self.cluster_folder / "cluster.json").exists():
            raise UsageError(
                "no database was given", hint="pass --dsn or MODAK_DSN, or make an embedded Postgres with `modak postgres start`"
            )
        return self.start_cluster().dsn()

    def start_cluster(self) -> Cluster:
        from modak.embedded.postgres import Cluster

        return Cluster.start(self.cluster_folder, progress=self.progress)

    @contextlib.contextmanager
    def connection(self, *, migrated: bool = True) -> Iterator[Connection]:
        """A connection in autocommit; flows open their own transactions."""
        from modak.catalog.migrate import require_current

        with connect(self.dsn, autocommit=True) as connection:
            if migrated:
                require_current(connection)
            yield connection

    def storage(self, profile: Profile) -> Storage:
        from modak.lake.storage import resolve

        settings = self.settings
        return resolve(
            profile,
            dsn=self.dsn,
            catalog=settings.catalog,
            warehouse=settings.warehouse_root,
            credentials=settings.credentials,
        )

    def lake(self, profile: Profile) -> IcebergLake:
        from modak.lake.iceberg import IcebergLake

        return IcebergLake(self.storage(profile))

    def spark(self, *profiles: Profile) -> SparkSession:
        from modak.jobs import spark

        storages = [self.storage(profile) for profile in profiles]
        if self._spark is None:
            master = self.settings.spark
            machine = None if spark.is_connect(master) else self.machine()
            with self.progress.task("Starting Spark"):
                self._spark = spark.session(master, storages, machine)
        else:
            spark.use_storages(self._spark, storages)
        return self._spark

    @contextlib.contextmanager
    def job(self, name: Name) -> Iterator[JobContext]:
        """The context of one table's job, alone on that table for as long as the block runs."""
        from modak.catalog import profiles, tables
        from modak.jobs.context import JobContext, alone_on

        with self.connection() as connection:
            table = tables.get(connection, name)
            profile = profiles.get(connection, table.storage_profile)
            with alone_on(connection, table):
                yield JobContext(
                    connection=connection,
                    dsn=self.dsn,
                    table=table,
                    lake=self.lake(profile),
                    spark=lambda: self.spark(profile),
                    cores=os.cpu_count() or 1,
                    progress=self.progress,
                )

    def gateway(self) -> Gateway:
        """The gateway of this database, not started yet."""
        from modak.catalog import profiles
        from modak.gateway.server import Limits
        from modak.gateway.service import Gateway, Options

        def storage(profile: str) -> Storage:
            with self.connection() as connection:
                return self.storage(profiles.get(connection, profile))

        settings = self.settings
        host, port = settings.gateway
        options = Options(
            host=host,
            port=port,
            temp_directory=settings.data.absolute() / "scratch" / "gateway",
            address_for_postgres=settings.gateway_dsn_host,
            memory_limit=settings.gateway_memory,
            threads=settings.gateway_threads or os.cpu_count() or 1,
            limits=Limits(connections=settings.gateway_connections),
            certificate=settings.gateway_cert,
            key=settings.gateway_key,
        )
        return Gateway(self.dsn, storage, options)

    def machine(self) -> Machine:
        """Java and Spark's jars, found on the machine or fetched once."""
        from modak.embedded.jars import spark_jars
        from modak.embedded.java import find_java
        from modak.jobs.spark import Machine

        java = find_java(os.environ, self.settings.cache)
        jars = spark_jars(self.settings.cache, java, self.progress, s3=self.settings.warehouse_root.startswith("s3"))
        return Machine(java.path, jars, self.settings.data.absolute() / "scratch", self.settings.spark_memory)
