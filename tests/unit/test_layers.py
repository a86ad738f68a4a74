"""Imports point one way; the tree stays a picture of the system."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "modak"

# What each part may import of Modak, besides itself and the base modules.
BASE = {"errors", "failpoints", "progress", "settings", "sqlfiles", "connection", "logs", "tls", "patience"}
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "failpoints": set(),
    "progress": set(),
    "sqlfiles": set(),
    "settings": {"errors"},
    "connection": {"errors"},
    "logs": set(),
    "tls": {"errors"},
    "patience": set(),
    "core": {"errors"},
    "embedded": {"errors", "progress", "failpoints"},
    "catalog": BASE | {"core"},
    "source": BASE | {"core"},
    "lake": BASE | {"core"},
    "scan": BASE | {"core", "lake"},
    "registration": BASE | {"core", "catalog", "source", "lake"},
    "jobs": BASE | {"core", "catalog", "source", "lake", "scan", "registration", "load", "mesh"},
    # The gateway answers while Spark works elsewhere; it must never wait for a JVM.
    "gateway": BASE | {"core", "catalog", "source", "lake", "scan", "mesh"},
    # Whose turn it is among the writers of several nodes.
    "mesh": BASE | {"core", "catalog"},
    # The embedded catalog for other engines.
    "rest": BASE | {"core", "lake"},
    "app": BASE | {"core", "catalog", "lake", "jobs", "gateway", "embedded", "registration", "rest"},
    # Embedded by applications and stream sinks: no JVM, and no part of Modak that runs jobs.
    "load": BASE | {"core", "catalog", "source", "lake"},
    # What the worker counts and samples; whoever serves HTTP shows it.
    "worker": BASE | {"core", "catalog", "source", "lake", "jobs", "app"},
    "web": BASE | {"core", "catalog", "source", "lake", "registration", "load", "worker", "app"},
    # Readers outside Postgres: what both share, and a door for each engine.
    "pinned": BASE | {"core", "catalog", "source", "lake"},
    "duckdb": BASE | {"core", "source", "lake", "scan", "gateway", "pinned", "app"},
    "spark": BASE | {"core", "catalog", "source", "lake", "jobs", "load", "pinned", "app"},
    "cli": BASE | {"core", "catalog", "source", "lake", "registration", "jobs", "gateway", "app", "demo", "embedded", "web", "worker"},
    "demo": BASE | {"core", "catalog", "registration", "app", "cli", "embedded", "jobs", "gateway", "load"},
}


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_names(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_one_way(path: Path) -> None:
    part = part_of(path)
    if part == "__init__":
        return
    parts = {name.split(".")[1] for name in imported_names(path) if name.startswith("modak.")} - {part, "__version__"}
    assert parts <= ALLOWED[part], f"{part} may not import {sorted(parts - ALLOWED[part])}"


@pytest.mark.parametrize("path", [path for path in modules() if part_of(path) == "core"], ids=lambda path: path.name)
def test_core_is_pure(path: Path) -> None:
    import sys

    outside = {name.split(".")[0] for name in imported_names(path)} - {"modak"} - set(sys.stdlib_module_names)
    assert not outside
    impure = {"os", "time", "socket", "subprocess", "pathlib", "random", "threading"}
    assert not {name.split(".")[0] for name in imported_names(path)} & impure


def test_only_jobs_import_pyspark() -> None:
    guilty = [
        str(path.relative_to(SOURCE))
        for path in modules()
        if any(name.split(".")[0] == "pyspark" for name in imported_names(path)) and part_of(path) not in ("jobs", "app", "spark")
    ]
    assert not guilty


def test_every_part_is_listed() -> None:
    assert {part_of(path) for path in modules()} - {"__init__"} <= set(ALLOWED)
