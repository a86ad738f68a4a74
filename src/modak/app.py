"""Composition root: settings become connections, lakes and Spark sessions here, and nowhere else."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from modak import failpoints
from modak.connection import Connection, connect, masked
from modak.errors import MissingComponent, UsageError
from modak.progress import SILENT, Progress
from modak.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from modak.core.profile import Profile
    from modak.core.table import Name
    from modak.embedded.postgres import Cluster
    from modak.gateway.service import Gateway
    from modak.jobs.context import JobContext
    from modak.jobs.maintain_decoupled import DecoupledContext
    from modak.jobs.spark import Machine
    from modak.lake.iceberg import IcebergLake
    from modak.lake.storage import Storage
    from modak.registration.ownership import Known
    from modak.rest.app import RestCatalog


log = logging.getLogger("modak.app")


class App:
    """Everything one run of the program needs, made when it is first asked for."""

    def __init__(self, settings: Settings, progress: Progress = SILENT) -> None:
        self.settings = settings
        self.progress = progress
        self._spark: SparkSession | None = None
        self._spark_lock = threading.Lock()
        self._spark_reaches_s3 = False
        self._known_owners: Known | None = None
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

    @property
    def cluster_address_file(self) -> Path:
        """Where whoever may read the data folder finds the embedded cluster's DSN, password included: its port is a free one."""
        return self.settings.data.absolute() / "postgres.dsn"

    def start_cluster(self) -> Cluster:
        from modak.embedded.files import write_atomically
        from modak.embedded.postgres import Cluster

        cluster = Cluster.start(self.cluster_folder, progress=self.progress)
        file, text = self.cluster_address_file, f"{cluster.dsn()}\n"
        if not file.exists() or file.read_text() != text:
            write_atomically(file, text)
        return cluster

    def shown_addresses(self, dsn: str, *, whole: bool) -> dict[str, str]:
        """The database's address for people and scripts. A DSN that somebody gave keeps its password to itself, and our own
        gives it to whoever asks for the ``whole``."""
        if self.settings.dsn:
            return {"postgres": masked(dsn)}
        return {"postgres": dsn if whole else masked(dsn), "postgres_file": str(self.cluster_address_file)}

    @contextlib.contextmanager
    def connection(self, *, migrated: bool = True, application: str = "modak", unhurried: bool = False) -> Iterator[Connection]:
        """A connection in autocommit; flows open their own transactions."""
        from modak.catalog.migrate import require_current

        with connect(self.dsn, autocommit=True, application=application, unhurried=unhurried) as connection:
            if migrated:
                require_current(connection)
            yield connection

    def prepare_catalog(self) -> None:
        """What a daemon needs before anything else; a catalog that it cannot work with is said now, and not by every request."""
        from modak.catalog.migrate import prepare

        with self.connection(migrated=False, unhurried=True) as connection:
            done = prepare(connection)
        if done is not None and done.applied:
            self.progress.say(f"the catalog is there (version {done.version})")

    def storage(self, profile: Profile) -> Storage:
        from modak.lake.storage import resolve

        def stored() -> dict[str, str]:
            from modak.catalog import profiles

            with self.connection() as connection:
                return profiles.stored_credentials(connection)

        settings = self.settings
        return resolve(
            profile,
            dsn=self.dsn,
            catalog=settings.catalog,
            warehouse=settings.warehouse,
            folder=settings.warehouse_folder,
            credentials=settings.credentials,
            stored=stored,
        )

    def lake(self, profile: Profile) -> IcebergLake:
        from modak.lake.iceberg import IcebergLake

        return IcebergLake(self.storage(profile))

    def spark(self, *profiles: Profile) -> SparkSession:
        """The session of this process. One that was lost since its last use is replaced."""
        from modak.jobs import spark

        storages = [self.storage(profile) for profile in profiles]
        # Jobs of several tables run side by side on one session.
        with self._spark_lock:
            if self._spark is not None and not self._serves_again(self._spark, storages):
                log.warning("Spark is gone, and is started again")
                self._spark = None
            if self._spark is None:
                master = self.settings.spark
                self._spark_reaches_s3 = spark.is_connect(master) or self._uses_s3(storages)
                machine = None if spark.is_connect(master) else self.machine(s3=self._spark_reaches_s3)
                with self.progress.task("Starting Spark"):
                    self._spark = spark.session(master, storages, machine)
            return self._spark

    def _serves_again(self, known: SparkSession, storages: Sequence[Storage]) -> bool:
        from modak.jobs import spark, spark_loss

        if any(storage.is_remote for storage in storages) and not self._spark_reaches_s3 and not spark_loss.is_lost(known):
            raise MissingComponent(
                "Spark runs in this process without the jars for object stores: there was no profile in one when it started",
                hint="start this process again; nothing was changed",
            )
        return spark.use_again(known, storages)

    @contextlib.contextmanager
    def job(self, name: Name, *, epoch: int | None = None, wait_seconds: float = 0.0, in_a_row: bool = False) -> Iterator[JobContext]:
        """The context of one table's job, alone on that table for as long as the block runs. ``epoch``: the worker's leadership.

        Another job that is at work there is waited for so long. ``in_a_row``: one of many, like all of a worker's; whose the lake table is
        was seen a moment ago.
        """
        from modak.catalog import leadership, problems, profiles, tables
        from modak.jobs.context import JobContext, alone_on
        from modak.registration import names_now, ownership

        application = "modak" if epoch is None else leadership.session_name(epoch)
        with self.connection(application=application, unhurried=True) as connection:
            [table] = names_now.follow_names(connection, [tables.get(connection, name)])
            profile = profiles.get(connection, table.storage_profile)
            with alone_on(connection, table, wait_seconds):
                lake = self.lake(profile)
                with problems.reported(connection, table.table_id, "owner"):
                    known = self._owners() if in_a_row or epoch is not None else None
                    ownership.check(connection, lake, table, known=known)
                yield JobContext(
                    connection=connection,
                    dsn=self.dsn,
                    table=table,
                    lake=lake,
                    spark=lambda: self.spark(profile),
                    cores=os.cpu_count() or 1,
                    progress=self.progress,
                    epoch=epoch,
                )

    @contextlib.contextmanager
    def decoupled_job(self, name: Name, wait_seconds: float = 0.0, *, epoch: int | None = None) -> Iterator[DecoupledContext | None]:
        """The context of one decoupled table's job, alone on it for as long as the block runs; None if there is no such table.

        ``epoch``: the worker's leadership. Whoever leads next ends the session, and with it the job.
        """
        from modak.catalog import decoupled, leadership, profiles
        from modak.jobs.context import alone_on
        from modak.jobs.maintain_decoupled import DecoupledContext

        application = "modak" if epoch is None else leadership.session_name(epoch)
        with self.connection(application=application, unhurried=True) as connection:
            definition = decoupled.find(connection, name)
            if definition is None:
                yield None
                return
            profile = profiles.get(connection, definition.profile)
            with alone_on(connection, definition, wait_seconds):
                yield DecoupledContext(
                    connection=connection,
                    dsn=self.dsn,
                    definition=definition,
                    lake=self.lake(profile),
                    spark=lambda: self.spark(profile),
                    progress=self.progress,
                )

    def _owners(self) -> Known:
        from modak.registration.ownership import Known

        if self._known_owners is None:
            self._known_owners = Known()
        return self._known_owners

    def gateway(self, *, new_password: bool = False) -> Gateway:
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
            new_password=new_password,
        )
        return Gateway(self.dsn, storage, options)

    def rest_catalog(self) -> RestCatalog | None:
        """The embedded catalog as a REST catalog, where there is a token for it."""
        if not self.settings.rest_token:
            return None
        from modak.rest.app import RestCatalog
        from modak.rest.face import Face

        faces: dict[str, Face] = {}

        def managed(profile: str) -> set[str]:
            from modak.catalog import tables

            with self.connection() as connection:
                return {table.lake_table_ref for table in tables.listing(connection) if table.storage_profile == profile}

        def face(profile: str) -> Face:
            from modak.catalog import profiles

            with self.connection() as connection:
                storage = self.storage(profiles.get(connection, profile))
            if storage.is_rest:
                raise UsageError(f"the tables of profile {profile} are in a REST catalog already", hint=f"use {storage.catalog} itself")
            known = faces.get(profile)
            if known is None or known.storage != storage:
                known = faces[profile] = Face(storage, lambda: managed(profile))
            return known

        return RestCatalog(face, self.settings.rest_token)

    def _uses_s3(self, storages: Sequence[Storage]) -> bool:
        """Jars cannot join a running Spark: it starts with what any profile of the database may need."""
        from modak.catalog import profiles

        if self.settings.warehouse_root.startswith("s3") or any(storage.is_remote for storage in storages):
            return True
        with self.connection() as connection:
            listed = profiles.listing(connection)
        return any(profile.warehouse.startswith("s3") or any(key.startswith("s3.") for key in profile.lake_config) for profile in listed)

    def machine(self, *, s3: bool | None = None) -> Machine:
        """Java and Spark's jars, found on the machine or fetched once."""
        from modak.embedded.jars import spark_jars
        from modak.embedded.java import find_java
        from modak.jobs.spark import Machine

        java = find_java(os.environ, self.settings.cache)
        jars = spark_jars(self.settings.cache, java, self.progress, s3=self.settings.warehouse_root.startswith("s3") if s3 is None else s3)
        return Machine(java.path, jars, self.settings.data.absolute() / "scratch", self.settings.spark_memory)
