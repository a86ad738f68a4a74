"""The embedded Postgres: one cluster in one folder that Modak made, and never in another.

The folder holds ``cluster.json`` (the marker: whose, password, version), ``cluster.lock``, ``postgres.log`` and ``data``. Every
step may be the last one of a killed process: ``data`` appears by one rename of a finished initdb, and a server belongs to the
folder, not to the process that started it.
"""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal
from urllib.parse import quote

from modak.embedded import postmaster
from modak.embedded.files import last_lines, locked, sync_folder, write_atomically
from modak.embedded.initdb import SETTINGS_FILE, USER, initialise, sweep
from modak.embedded.marker import LOCK, Marker, read_marker
from modak.embedded.postmaster import HOST, Postmaster
from modak.embedded.run_as import Runner, unprivileged
from modak.embedded.server_binaries import ServerBinaries, find_server_binaries
from modak.errors import ConnectionFailed, MissingComponent, ModakError, Refused
from modak.failpoints import failpoint
from modak.progress import SILENT, Progress, Task

DATABASE = "modak"
SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "wal_level": "logical",
        "max_replication_slots": "16",
        "max_wal_senders": "16",
        "max_prepared_transactions": "16",
        # Peers of a mesh take a node for dead that shows no life for some seconds.
        "wal_receiver_status_interval": "1s",
        "max_connections": "200",
        "shared_buffers": "256MB",
    }
)
"""Defaults of an embedded cluster; ``ALTER SYSTEM`` and the options of a start go before them."""

_LOG, _DATA = "postgres.log", "data"
_LOCK_SECONDS_MAX = 900.0  # another start may be in crash recovery
_READY_SECONDS_MAX = 600.0
_RETRY_SECONDS_MAX = 30.0
_ATTEMPTS_MAX = 3
_DYING_SECONDS_MAX = 3.0
_STOP_SECONDS_MAX = 120.0
_POLL_SECONDS = 0.03
_SIGNALS = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}


class Cluster:
    """A running embedded cluster. It lives on when this object, or the whole process, is gone."""

    def __init__(self, folder: Path, marker: Marker, server: Postmaster, *, adopted: bool) -> None:
        self.folder = folder
        self.adopted = adopted
        self._password = marker.password
        self._server = server

    def __repr__(self) -> str:
        return f"Cluster({str(self.folder)!r}, port={self.port}, pid={self.pid}, adopted={self.adopted})"

    @classmethod
    def start(
        cls,
        folder: Path,
        *,
        binaries: ServerBinaries | None = None,
        progress: Progress = SILENT,
        options: Mapping[str, str] = MappingProxyType({}),
    ) -> Cluster:
        """Returns once the cluster answers: made, started, recovered or (``adopted``) found running with its own options."""
        folder = folder.expanduser().absolute()
        read_marker(folder)
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with progress.task("Starting the embedded Postgres") as task:
                note = lambda: task.note("waiting for another start of the same cluster")  # noqa: E731
                with locked(folder / LOCK, wait_seconds_max=_LOCK_SECONDS_MAX, waiting=note):
                    return _Start(folder, binaries, options, task).run()
        except OSError as cause:
            hint = postmaster.hint_for(str(cause))
            raise MissingComponent(f"the embedded Postgres cannot use its folder: {cause}", hint=hint, folder=folder) from cause

    @classmethod
    def find(cls, folder: Path) -> Cluster | None:
        """The running cluster of this folder; starts and changes nothing."""
        folder = folder.expanduser().absolute()
        try:
            marker = read_marker(folder)
        except Refused:
            return None
        server = postmaster.running(folder / _DATA)
        return cls(folder, marker, server, adopted=True) if marker and server and server.status == "ready" else None

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def pid(self) -> int:
        return self._server.pid

    def dsn(self, database: str = DATABASE) -> str:
        password = quote(self._password, safe="")
        return f"postgresql://{USER}:{password}@{HOST}:{self.port}/{quote(database, safe='')}"

    def is_running(self) -> bool:
        found = postmaster.running(self.folder / _DATA)
        return found is not None and found.pid == self.pid

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Returns once the server is gone; nothing to do when it is. ``immediate`` makes the next start recover."""
        if not self.is_running():
            return
        with locked(self.folder / LOCK, wait_seconds_max=_LOCK_SECONDS_MAX):
            if not self.is_running():
                return
            os.kill(self.pid, _SIGNALS[mode])
            deadline = time.monotonic() + _STOP_SECONDS_MAX
            while postmaster.alive(self.pid):
                if time.monotonic() > deadline:
                    hint = f"look into {self.folder / _LOG}; mode 'immediate' does not wait for its checkpoint"
                    raise ModakError("the embedded Postgres does not stop", hint=hint, pid=self.pid)
                time.sleep(_POLL_SECONDS)


class _Start:
    """One start, under the folder's lock."""

    def __init__(self, folder: Path, binaries: ServerBinaries | None, options: Mapping[str, str], task: Task) -> None:
        self.folder = folder
        self.data = folder / _DATA
        self.log = folder / _LOG
        self.options = options
        self.task = task
        self._binaries = binaries

    def run(self) -> Cluster:
        marker = read_marker(self.folder)
        if marker is None or not self.data.exists():
            marker = self._create(marker)
        elif marker.making:  # killed between the rename and the note of it
            marker = replace(marker, making=None)
            marker.write(self.folder)
        for attempt in range(1, _ATTEMPTS_MAX + 1):
            server, adopted = self._serve(marker)
            cluster = Cluster(self.folder, marker, server, adopted=adopted)
            try:
                _ensure_database(cluster)
                break
            except ConnectionFailed:
                # A server under SIGKILL looks alive for a moment: once it is gone, start another.
                if attempt == _ATTEMPTS_MAX or not _dies(server.pid):
                    raise
        if marker.port != server.port:
            replace(marker, port=server.port).write(self.folder)
        return cluster

    def _create(self, previous: Marker | None) -> Marker:
        if previous and not previous.making:
            hint = "restore the folder 'data' from a backup, or remove the whole folder to begin anew"
            raise Refused("the data of the embedded cluster is gone", hint=hint, folder=self.folder)
        sweep(self.folder, _DATA)
        binaries = self._binaries or find_server_binaries()
        marker = Marker(secrets.token_urlsafe(24), binaries.major, making=f"{_DATA}.{secrets.token_hex(4)}")
        marker.write(self.folder)
        failpoint("embedded.postgres.after_marker")
        runner = self._runner(binaries)
        making = self.folder / str(marker.making)
        initialise(making, marker.password, binaries, runner, quick=self.options.get("fsync") == "off", task=self.task)
        failpoint("embedded.postgres.after_initdb")
        making.rename(self.data)
        sync_folder(self.folder)
        failpoint("embedded.postgres.after_rename")
        done = replace(marker, making=None)
        done.write(self.folder)
        return done

    def _runner(self, binaries: ServerBinaries) -> Runner:
        runner = unprivileged(self.folder, binaries.program("postgres"))
        runner.own(self.folder)
        return runner

    def _serve(self, marker: Marker) -> tuple[Postmaster, bool]:
        """The running server, adopted or new. Losing a race for the port or to a dying predecessor means one more round."""
        port = marker.port
        deadline = time.monotonic() + _RETRY_SECONDS_MAX
        while True:
            found = postmaster.running(self.data)
            if found and (ready := self._await_ready(found.pid)):
                return ready, True
            seen = self.log.stat().st_size if self.log.exists() else 0
            pid = self._spawn(marker, port)
            failpoint("embedded.postgres.after_spawn")
            if ready := self._await_ready(pid):
                return ready, False
            words = _read_from(self.log, seen)
            if postmaster.port_was_taken(words):
                port = None
            elif not postmaster.predecessor_remains(words):
                raise self._failed(words)
            if time.monotonic() > deadline:
                raise self._failed(words)
            time.sleep(_POLL_SECONDS * 5)

    def _spawn(self, marker: Marker, port: int | None) -> int:
        binaries = self._binaries_of(marker.major)
        runner = self._runner(binaries)
        # Written at each start, so that a newer Modak can bring newer defaults; the cluster's postgresql.conf includes it.
        defaults = "".join(f"{name} = '{value}'\n" for name, value in SETTINGS.items())
        write_atomically(self.data / SETTINGS_FILE, "# Written by Modak at each start; use ALTER SYSTEM to change.\n" + defaults)
        runner.own(self.data / SETTINGS_FILE)
        # No Unix socket: its path may be at most some 100 bytes long, and our folders may be longer.
        fixed = {"listen_addresses": HOST, "port": str(postmaster.free_port(port)), "unix_socket_directories": ""}
        return postmaster.spawn(binaries.program("postgres"), self.data, self.log, {**self.options, **fixed}, runner)

    def _binaries_of(self, major: int) -> ServerBinaries:
        if self._binaries is None or self._binaries.major != major:
            self._binaries = find_server_binaries(major=major)
        return self._binaries

    def _await_ready(self, pid: int) -> Postmaster | None:
        """None when the process ended instead (it failed, or it was stopping)."""
        deadline = time.monotonic() + _READY_SECONDS_MAX
        while postmaster.alive(pid):
            found = postmaster.read_pid_file(self.data)
            if found and found.pid == pid and found.status == "ready":
                return found
            if time.monotonic() > deadline:
                hint = f"it may be in crash recovery: look into {self.log} and start again to go on waiting"
                raise ConnectionFailed("the embedded Postgres is not ready yet", hint=hint, pid=pid)
            self.task.note(found.status if found and found.status else "starting")
            time.sleep(_POLL_SECONDS)
        return None

    def _failed(self, words: str) -> MissingComponent:
        message = f"the embedded Postgres did not start; its log ends with\n{last_lines(words)}\n"
        return MissingComponent(message, hint=postmaster.hint_for(words), log=self.log)


def _dies(pid: int) -> bool:
    deadline = time.monotonic() + _DYING_SECONDS_MAX
    while postmaster.alive(pid) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    return not postmaster.alive(pid)


def _read_from(log: Path, offset: int) -> str:
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(offset if offset <= log.stat().st_size else 0)
        return file.read().decode("utf-8", errors="replace")


def _ensure_database(cluster: Cluster) -> None:
    """Prove that the server is ours (it knows our password) and has our database."""
    import psycopg

    try:
        with psycopg.connect(cluster.dsn("postgres"), connect_timeout=15, autocommit=True) as connection:
            found = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone()
            if found is None:
                connection.execute("CREATE DATABASE modak")
    except psycopg.Error as cause:
        hint = f"was the password of the role {USER!r} changed? The one in cluster.json must be the server's"
        raise ConnectionFailed(f"the embedded Postgres refuses us: {cause}", hint=hint, folder=cluster.folder) from cause
