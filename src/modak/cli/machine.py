"""Commands about the machine: setup, and the embedded Postgres."""

from __future__ import annotations

import os

import click

from modak.cli.context import Context, command, global_options


def add_commands(group: click.Group) -> None:
    @command(group)
    def setup(context: Context) -> None:
        """Find or fetch what a machine lacks: Postgres, Java, Spark's jars. Says what it found."""
        _setup(context)

    @group.group()
    @global_options
    def postgres() -> None:
        """The embedded Postgres in MODAK_DATA, for machines without a database."""

    @command(postgres, "start")
    def start(context: Context) -> None:
        """Start it, or adopt it if it runs; prints its DSN."""
        cluster = context.app.start_cluster()
        context.output.result({"dsn": cluster.dsn(), "port": cluster.port, "pid": cluster.pid, "adopted": cluster.adopted}, cluster.dsn())

    @command(postgres, "stop")
    def stop(context: Context) -> None:
        """Stop it; its data stays."""
        from modak.embedded.postgres import Cluster

        cluster = Cluster.find(context.app.cluster_folder)
        if cluster is not None:
            cluster.stop()
        context.output.result({"stopped": cluster is not None}, "stopped" if cluster else "it was not running")


def _setup(context: Context) -> None:
    from modak.embedded.java import find_java
    from modak.embedded.server_binaries import find_server_binaries
    from modak.settings import load

    settings = load(os.environ, dsn=context.dsn)
    found: list[tuple[str, str, str]] = []
    if settings.dsn:
        with context.app.connection(migrated=False) as connection:
            found.append(("Postgres", f"{connection.info.server_version // 10000}", "the given DSN"))
    else:
        binaries = find_server_binaries()
        found.append(("Postgres", str(binaries.major), f"{binaries.origin}: {binaries.bin_dir}"))
    if settings.spark.startswith("sc://"):
        found.append(("Spark", settings.spark, "Spark Connect"))
    else:
        java = find_java(os.environ, settings.cache)
        found.append(("Java", str(java.major), f"{java.origin}: {java.path}"))
        jars = context.app.machine().jars
        found.append(("Spark jars", str(len(jars)), str(jars[0].parent)))
    context.output.result([{"part": part, "version": version, "from": origin} for part, version, origin in found])
    context.output.table(["part", "version", "from"], found)
