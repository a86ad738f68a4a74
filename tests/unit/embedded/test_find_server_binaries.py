"""Which server programs are taken, with programs that are only small scripts."""

from __future__ import annotations

from pathlib import Path

import pytest

from modak.embedded.server_binaries import find_server_binaries, parse_major
from modak.errors import MissingComponent


def fake_server(root: Path, major: int, *, fdw: bool = True, programs: tuple[str, ...] = ("initdb", "pg_ctl")) -> Path:
    """A Debian-like tree under ``root``; returns its bin folder."""
    bin_dir = root / "lib" / "postgresql" / str(major) / "bin"
    bin_dir.mkdir(parents=True)
    for name in (*programs, "postgres"):
        (bin_dir / name).write_text(f"#!/bin/sh\necho 'postgres (PostgreSQL) {major}.3 (Debian {major}.3-1)'\n")
        (bin_dir / name).chmod(0o755)
    extension = root / "share" / "postgresql" / str(major) / "extension"
    extension.mkdir(parents=True)
    if fdw:
        (extension / "postgres_fdw.control").touch()
    return bin_dir


@pytest.mark.parametrize(
    ("version", "major"),
    [
        ("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)", 15),
        ("postgres (PostgreSQL) 18beta1", 18),
        ("postgres (EnterpriseDB) 9", None),
        ("", None),
    ],
)
def test_version_line(version: str, major: int | None) -> None:
    assert parse_major(version) == major


def test_newest_supported_version_wins(tmp_path: Path) -> None:
    for major in (14, 15, 17, 99):
        fake_server(tmp_path, major)
    found = find_server_binaries("", [tmp_path], wheel=False)
    assert (found.major, found.origin) == (17, "machine")
    assert found.program("initdb").is_file()


def test_a_link_on_the_path_leads_to_the_real_folder(tmp_path: Path) -> None:
    real = fake_server(tmp_path / "real", 16)
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "postgres").symlink_to(real / "postgres")
    assert find_server_binaries(str(linked), [], wheel=False).bin_dir == real


def test_pg_config_tells_the_folder(tmp_path: Path) -> None:
    real = fake_server(tmp_path / "real", 16)
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "pg_config").write_text(f"#!/bin/sh\necho '{real}'\n")
    (tools / "pg_config").chmod(0o755)
    assert find_server_binaries(str(tools), [], wheel=False).bin_dir == real


def test_without_postgres_fdw_a_server_does_not_count(tmp_path: Path) -> None:
    fake_server(tmp_path, 17, fdw=False)
    fake_server(tmp_path, 16)
    assert find_server_binaries("", [tmp_path], wheel=False).major == 16


def test_without_initdb_a_server_does_not_count(tmp_path: Path) -> None:
    fake_server(tmp_path, 17, programs=("pg_ctl",))
    with pytest.raises(MissingComponent):
        find_server_binaries("", [tmp_path], wheel=False)


def test_a_program_that_cannot_run_here_does_not_count(tmp_path: Path) -> None:
    (fake_server(tmp_path, 17) / "postgres").write_bytes(b"\x7fELF of another machine")
    fake_server(tmp_path, 15)
    assert find_server_binaries("", [tmp_path], wheel=False).major == 15


def test_nothing_found_names_the_package(tmp_path: Path) -> None:
    with pytest.raises(MissingComponent) as caught:
        find_server_binaries("", [tmp_path], wheel=False)
    assert "'postgresql'" in str(caught.value.hint)


def test_one_version_asked_for(tmp_path: Path) -> None:
    fake_server(tmp_path, 15)
    fake_server(tmp_path, 17)
    assert find_server_binaries("", [tmp_path], wheel=False, major=15).major == 15
    with pytest.raises(MissingComponent) as caught:
        find_server_binaries("", [tmp_path], wheel=False, major=16)
    assert "postgresql-16" in str(caught.value.hint)
    assert "pg_upgrade" in str(caught.value.hint)


def test_the_wheel_steps_in(tmp_path: Path) -> None:
    found = find_server_binaries("", [tmp_path])
    assert (found.major, found.origin) == (18, "wheel")
