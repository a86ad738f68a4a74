"""Whose folder it is: decided from its entries and the marker, before anything is changed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from modak.embedded.files import locked, write_atomically
from modak.embedded.initdb import sweep
from modak.embedded.marker import Marker, read_marker
from modak.embedded.postgres import Cluster
from modak.embedded.postmaster import Postmaster
from modak.errors import LockNotAvailable, Refused


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_new_folders(tmp_path: Path) -> None:
    assert read_marker(tmp_path / "absent") is None
    assert read_marker(tmp_path) is None
    (tmp_path / "cluster.lock").touch()
    (tmp_path / ".cluster.json.1a2b3c4d").touch()  # killed before the marker
    assert read_marker(tmp_path) is None


def test_round_trip_and_mode(tmp_path: Path) -> None:
    marker = Marker("p'w", 16, port=5433, making="data.00ff00ff")
    marker.write(tmp_path)
    assert read_marker(tmp_path) == marker
    assert (tmp_path / "cluster.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"password": "x", "major": 15, "made_by": "pgtool"}', "{"])
def test_a_marker_that_is_not_ours(tmp_path: Path, content: str) -> None:
    (tmp_path / "cluster.json").write_text(content)
    with pytest.raises(Refused):
        read_marker(tmp_path)
    assert Cluster.find(tmp_path) is None


def test_other_files(tmp_path: Path) -> None:
    (tmp_path / "PG_VERSION").write_text("16\n")
    with pytest.raises(Refused, match="nothing was changed"):
        Cluster.start(tmp_path)
    assert names(tmp_path) == ["PG_VERSION"]


def test_dsn_is_quoted_and_repr_is_silent(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, Marker("a/b@c:d%", 16), Postmaster(1, 5433, "ready"), adopted=True)
    assert cluster.dsn() == "postgresql://postgres:a%2Fb%40c%3Ad%25@127.0.0.1:5433/modak"
    assert cluster.dsn("odd name?").endswith("/odd%20name%3F")
    assert "a/b" not in repr(cluster)


def test_sweep_takes_only_half_made_things(tmp_path: Path) -> None:
    for name in ("data", "data.0123abcd", "data.backup", "data.old1"):
        (tmp_path / name).mkdir()
    (tmp_path / "data.0123abcd" / "PG_VERSION").touch()
    (tmp_path / "data.0123abcd.password").touch()
    sweep(tmp_path, "data")
    assert names(tmp_path) == ["data", "data.backup", "data.old1"]


def test_lock_waits_no_longer_than_told(tmp_path: Path) -> None:
    told: list[str] = []
    with locked(tmp_path / "lock", wait_seconds_max=1), pytest.raises(LockNotAvailable):  # noqa: SIM117
        with locked(tmp_path / "lock", wait_seconds_max=0.2, waiting=lambda: told.append("once")):
            pass
    assert told == ["once"]


def test_atomic_write_sets_the_mode_despite_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o777)
    try:
        write_atomically(tmp_path / "file", "text", 0o755)
    finally:
        os.umask(old)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o755
    assert names(tmp_path) == ["file"]
