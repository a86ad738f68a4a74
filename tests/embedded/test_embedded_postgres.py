"""A real embedded cluster through everything that may happen to it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from modak.embedded import postmaster
from modak.embedded.marker import Marker
from modak.embedded.postgres import Cluster
from modak.embedded.run_as import Runner
from modak.embedded.server_binaries import ServerBinaries, find_server_binaries, wheel_binaries
from modak.errors import MissingComponent, Refused

QUICK = {"fsync": "off"}
CHILD = """
import sys
from pathlib import Path
from modak import failpoints
from modak.embedded.postgres import Cluster
failpoints.arm(sys.argv[2])
cluster = Cluster.start(Path(sys.argv[1]), options={"fsync": "off"})
print(cluster.pid, cluster.adopted)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder that needs quoting and is too long for a Unix socket; its server is stopped at the end."""
    path = tmp_path / f"it's a  {'long ' * 24}folder"
    yield path
    if cluster := Cluster.find(path):
        cluster.stop("immediate")


def child(folder: Path, failpoints: str = "", *, prefix: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    argv = [*prefix, sys.executable, "-c", CHILD, str(folder), failpoints]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def result(process: subprocess.Popen[str]) -> tuple[int, bool]:
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    pid, adopted = output.split()
    return int(pid), adopted == "True"


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.002)


def execute(cluster: Cluster, query: str, database: str = "modak") -> list[tuple[object, ...]]:
    with psycopg.connect(cluster.dsn(database), autocommit=True) as connection:
        cursor = connection.execute(query)
        return list(cursor.fetchall()) if cursor.description else []


def setting(cluster: Cluster, name: str) -> str:
    return str(execute(cluster, f"SHOW {name}")[0][0])


def test_life_of_a_cluster(folder: Path) -> None:
    cluster = Cluster.start(folder, options=QUICK | {"work_mem": "7MB"})
    assert not cluster.adopted
    assert cluster.is_running()
    assert setting(cluster, "wal_level") == "logical"
    assert setting(cluster, "max_prepared_transactions") == "16"
    assert setting(cluster, "listen_addresses") == "127.0.0.1"
    assert setting(cluster, "unix_socket_directories") == ""
    assert setting(cluster, "work_mem") == "7MB"
    assert execute(cluster, "SELECT pg_encoding_to_char(encoding) FROM pg_database WHERE datname = 'modak'") == [("UTF8",)]
    assert execute(cluster, "SELECT DISTINCT auth_method FROM pg_hba_file_rules") == [("scram-sha-256",)]
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(f"postgresql://modak:guess@127.0.0.1:{cluster.port}/modak")
    execute(cluster, "CREATE TABLE kept AS SELECT 42 AS answer")
    execute(cluster, "ALTER SYSTEM SET max_wal_senders = 9")
    port = cluster.port
    cluster.stop()
    cluster.stop()
    assert not cluster.is_running()
    assert Cluster.find(folder) is None
    again = Cluster.start(folder, options=QUICK)
    assert (again.adopted, again.port) == (False, port)
    assert execute(again, "SELECT answer FROM kept") == [(42,)]
    assert setting(again, "max_wal_senders") == "9"  # the user's word goes before our default
    assert setting(again, "work_mem") != "7MB"
    secrets_kept = [path for path in folder.iterdir() if path.stat().st_mode & 0o077]
    assert secrets_kept == []


def test_another_process_adopts_a_running_server(folder: Path) -> None:
    cluster = Cluster.start(folder, options=QUICK)
    assert result(child(folder)) == (cluster.pid, True)
    found = Cluster.find(folder)
    assert found is not None
    assert (found.pid, found.dsn()) == (cluster.pid, cluster.dsn())


def test_the_server_outlives_a_killed_starter(folder: Path) -> None:
    process = child(folder, "embedded.postgres.after_spawn=kill")
    assert process.wait(timeout=60) == -signal.SIGKILL
    process.communicate()
    cluster = Cluster.start(folder, options=QUICK)  # at this moment it may not even have its postmaster.pid
    assert execute(cluster, "SELECT 1") == [(1,)]
    assert os.getsid(cluster.pid) not in (os.getsid(0), process.pid)  # out of reach of our terminal's Ctrl-C


def test_recovery_after_kill_9_of_the_server(folder: Path) -> None:
    cluster = Cluster.start(folder, options=QUICK)
    execute(cluster, "CREATE TABLE kept AS SELECT generate_series(1, 1000) AS n")
    os.kill(cluster.pid, signal.SIGKILL)
    again = Cluster.start(folder, options=QUICK)
    assert not again.adopted
    assert again.pid != cluster.pid
    assert execute(again, "SELECT count(*) FROM kept") == [(1000,)]


def test_a_stale_pid_file_with_a_living_stranger(folder: Path) -> None:
    """After a reboot the number in postmaster.pid may belong to anybody; plain Postgres would refuse to start."""
    cluster = Cluster.start(folder, options=QUICK)
    pid_file = folder / "data" / "postmaster.pid"
    text = pid_file.read_text().splitlines(keepends=True)
    cluster.stop()
    pid_file.write_text("".join([f"{os.getpid()}\n", *text[1:]]))
    assert Cluster.find(folder) is None
    assert not Cluster.start(folder, options=QUICK).adopted


def test_a_foreign_folder_is_refused_and_untouched(folder: Path) -> None:
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "PG_VERSION").write_text("15\n")
    before = sorted((str(path), path.stat().st_mtime_ns) for path in folder.rglob("*"))
    with pytest.raises(Refused):
        Cluster.start(folder)
    assert sorted((str(path), path.stat().st_mtime_ns) for path in folder.rglob("*")) == before


def test_lost_data_is_not_replaced_by_an_empty_cluster(folder: Path) -> None:
    folder.mkdir()
    Marker("x", 15).write(folder)
    with pytest.raises(Refused, match="gone"):
        Cluster.start(folder)
    assert not (folder / "data").exists()


def test_concurrent_starts_make_one_cluster(folder: Path) -> None:
    results = [result(process) for process in [child(folder), child(folder), child(folder)]]
    assert len({pid for pid, _ in results}) == 1
    assert sorted(adopted for _, adopted in results) == [False, True, True]


def test_initdb_killed_in_the_middle_is_done_again(folder: Path) -> None:
    process = child(folder)
    until(lambda: any(folder.glob("data.*/PG_VERSION")))
    process.kill()
    process.communicate()
    assert json.loads((folder / "cluster.json").read_text())["making"]
    assert not (folder / "data").exists()
    cluster = Cluster.start(folder, options=QUICK)
    assert execute(cluster, "SELECT 1") == [(1,)]
    assert not cluster.adopted


@pytest.mark.parametrize("point", ["after_marker", "after_initdb", "after_rename"])
def test_killed_at_each_step_of_the_making(folder: Path, point: str) -> None:
    process = child(folder, f"embedded.postgres.{point}=kill")
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    cluster = Cluster.start(folder, options=QUICK)
    assert execute(cluster, "SELECT 1") == [(1,)]
    assert {path.name for path in folder.iterdir()} == {"cluster.json", "cluster.lock", "data", "postgres.log"}


def test_a_port_lost_in_a_race_means_another_port(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as rival:
        taken = rival.getsockname()[1]
        answers = [taken, postmaster.free_port()]
        monkeypatch.setattr(postmaster, "free_port", lambda preferred=None: answers.pop(0))
        cluster = Cluster.start(folder, options=QUICK)
    assert cluster.port != taken
    assert answers == []


def test_a_failing_start_shows_the_log_and_a_hint(folder: Path) -> None:
    with pytest.raises(MissingComponent, match="no_such_setting") as caught:
        Cluster.start(folder, options=QUICK | {"no_such_setting": "1"})
    assert "option" in str(caught.value.hint)
    assert Cluster.start(folder, options=QUICK).is_running()


def test_wheel_binaries_and_a_cluster_of_another_major(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    carried = wheel_binaries()
    assert carried is not None
    monkeypatch.chdir(tmp_path)
    cluster = Cluster.start(Path(folder.name), binaries=carried, options=QUICK)  # a relative folder, too
    assert setting(cluster, "server_version").startswith("18.")
    execute(cluster, "CREATE EXTENSION postgres_fdw")
    cluster.stop()
    machine = find_server_binaries()
    again = Cluster.start(folder, binaries=machine, options=QUICK)
    assert setting(again, "server_version").startswith("18.")
    again.stop()
    marker = json.loads((folder / "cluster.json").read_text())
    (folder / "cluster.json").write_text(json.dumps(marker | {"major": 12}))
    with pytest.raises(MissingComponent) as caught:
        Cluster.start(folder)
    assert "postgresql-12" in str(caught.value.hint)


def test_a_machine_without_the_unicode_locale(folder: Path, tmp_path: Path) -> None:
    machine = find_server_binaries()
    poor = tmp_path / "poor"
    poor.mkdir()
    (poor / "postgres").symlink_to(machine.program("postgres"))
    refusal = 'case "$*" in *C.UTF-8*) echo "initdb: error: invalid locale name"; exit 1;; esac'
    (poor / "initdb").write_text(f'#!/bin/sh\n{refusal}\nexec "{machine.program("initdb")}" "$@"\n')
    (poor / "initdb").chmod(0o755)
    cluster = Cluster.start(folder, binaries=ServerBinaries(poor, machine.major, "machine"), options=QUICK)
    assert execute(cluster, "SELECT datcollate FROM pg_database WHERE datname = 'modak'") == [("C",)]


def test_as_an_ordinary_user(folder: Path) -> None:
    """Root becomes one through a user namespace: this Python may be out of reach of the machine's other accounts."""
    prefix = () if os.geteuid() else ("unshare", "--user", "--map-user=1000", "--map-group=1000", "--")
    pid, adopted = result(child(folder, prefix=prefix))
    assert not adopted
    cluster = Cluster.find(folder)
    assert cluster is not None
    assert cluster.pid == pid
    assert execute(cluster, "SELECT 1") == [(1,)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change to another account")
def test_root_without_namespaces_uses_another_account(monkeypatch: pytest.MonkeyPatch) -> None:
    account = Runner(uid=65534, gid=65534)
    monkeypatch.setattr("modak.embedded.run_as.candidates", lambda folder: iter([account]))
    # Not tmp_path: pytest closes its parent to other accounts, and we never open parents.
    with tempfile.TemporaryDirectory() as parent:
        Path(parent).chmod(0o711)
        folder = Path(parent) / "cluster"
        cluster = Cluster.start(folder, options=QUICK)
        try:
            assert (folder / "data").stat().st_uid == 65534
            assert execute(cluster, "SELECT 1") == [(1,)]
            cluster.stop()
            cluster = Cluster.start(folder, options=QUICK)
            assert execute(cluster, "SELECT 1") == [(1,)]
        finally:
            cluster.stop("immediate")
        assert Path(parent).stat().st_uid == 0
        shutil.rmtree(folder)
