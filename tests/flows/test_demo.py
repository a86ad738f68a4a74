"""The demo is the first thing a new user runs: it must tell its whole story, and `make soak` has it told twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from modak.settings import Settings

pytestmark = pytest.mark.spark


def run(settings: Settings, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MODAK_")}
    environment["MODAK_CACHE"] = str(settings.cache)
    command = [sys.executable, "-m", "modak.cli.main", "demo", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)


def test_the_story_is_told(settings: Settings, tmp_path: Path) -> None:
    told = run(settings, "--dir", str(tmp_path / "a demo"), "--rows", "50000")
    assert told.returncode == 0, told.stderr
    assert "0 differences" in told.stderr
    assert "replay: True" in told.stderr
    assert "public.orders" in told.stdout


@pytest.mark.soak
def test_it_goes_on_from_its_folder(settings: Settings, tmp_path: Path) -> None:
    folder = tmp_path / "a demo"
    first = run(settings, "--dir", str(folder), "--rows", "100000")
    assert first.returncode == 0, first.stderr
    second = run(settings, "--dir", str(folder), "--json")
    assert second.returncode == 0, second.stderr
    told = json.loads(second.stdout)
    assert told["differences"] == 0
    assert told["rows_in_lake"] > 50_000
    assert told["rows_loaded"] == 3003
