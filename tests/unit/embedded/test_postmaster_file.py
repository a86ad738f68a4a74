"""Reading postmaster.pid, logs and processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from modak.embedded import postmaster
from modak.embedded.postmaster import Postmaster, clean_environment, free_port, hint_for, parse_pid_file

PID_FILE = "4242\n/a b/data\n1712346200\n5433\n\n127.0.0.1\n  8826964     65536\n{status}\n"


@pytest.mark.parametrize("status", ["starting", "ready   ", "stopping"])
def test_whole_pid_file(status: str) -> None:
    assert parse_pid_file(PID_FILE.format(status=status)) == Postmaster(4242, 5433, status.strip())


@pytest.mark.parametrize(("text", "found"), [("", None), ("42", None), ("x\n\n\n1", None), ("42\n/d\n1\n5\n", Postmaster(42, 5, ""))])
def test_pid_file_in_the_making(text: str, found: Postmaster | None) -> None:
    assert parse_pid_file(text) == found


def test_a_reused_process_number_is_not_our_server(tmp_path: Path) -> None:
    (tmp_path / "postmaster.pid").write_text(PID_FILE.format(status="ready").replace("4242", str(os.getpid())))
    assert postmaster.alive(os.getpid())
    assert postmaster.running(tmp_path) is None


def test_a_zombie_is_not_alive() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    deadline = time.monotonic() + 20
    while postmaster.alive(child.pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not postmaster.alive(child.pid)
    assert child.wait() == 0
    assert not postmaster.alive(child.pid)


def test_preferred_port_when_free() -> None:
    port = free_port()
    assert free_port(port) == port
    with socket.create_server(("127.0.0.1", port)):
        assert free_port(port) != port


def test_environment_of_the_caller_does_not_reach_the_server() -> None:
    kept = clean_environment({"PGPORT": "1", "PGDATA": "x", "LC_ALL": "de_DE.UTF-8", "LANG": "de_DE", "PATH": "/bin"})
    assert kept == {"PATH": "/bin", "LC_ALL": "C"}


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ('FATAL:  could not write lock file "postmaster.pid": No space left on device', "disk is full"),
        ("FATAL:  could not map anonymous shared memory: Cannot allocate memory", "shared_buffers"),
        ('initdb: error: invalid locale name "xx"', "locale"),
        ('FATAL:  unrecognized configuration parameter "x"', "option"),
        ("something else", "log"),
    ],
)
def test_hints(words: str, hint: str) -> None:
    assert hint in hint_for(words)


def test_races_are_told_from_failures() -> None:
    assert postmaster.port_was_taken('LOG:  could not bind IPv4 address "127.0.0.1": Address already in use')
    assert postmaster.predecessor_remains('FATAL:  lock file "postmaster.pid" already exists')
    assert postmaster.predecessor_remains("FATAL:  pre-existing shared memory block (key 1, ID 2) is still in use")
    assert not postmaster.predecessor_remains("FATAL:  data directory has wrong ownership")
