"""The demo is the first thing a new user runs: it must tell its whole story, and `make soak` has it told twice."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from modak.embedded.postgres import Cluster
from modak.settings import Settings

pytestmark = pytest.mark.spark


def command(settings: Settings, *arguments: str) -> tuple[list[str], dict[str, str]]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MODAK_")}
    environment["MODAK_CACHE"] = str(settings.cache)
    return [sys.executable, "-m", "modak.cli.main", "demo", *arguments], environment


def run(settings: Settings, *arguments: str) -> subprocess.CompletedProcess[str]:
    words, environment = command(settings, *arguments)
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=280, check=False)


def test_the_story_is_told_and_stays(settings: Settings, tmp_path: Path) -> None:
    """With --keep it is there to be looked at, at the addresses it printed, until it is asked to end."""
    folder = tmp_path / "a demo"
    words, environment = command(settings, "--dir", str(folder), "--rows", "50000", "--keep")
    with (tmp_path / "told").open("w+") as told:
        process = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=told, text=True)
        assert process.stdout is not None
        printed, found = "", None
        while found is None and (line := process.stdout.readline()):
            printed += line
            found = re.match(r" +warehouse: +(.*)", line)
        try:
            assert found is not None, (tmp_path / "told").read_text()
            assert "public.orders" in printed
            assert re.search(r"postgres: +postgresql://postgres:\*\*\*@127\.0\.0\.1:\d+/modak|postgres: .*password=\*\*\*", printed), (
                printed
            )
            file = Path(re.findall(r"postgres file: +(.*)", printed)[0])
            assert (file, file.stat().st_mode & 0o777) == (folder / "postgres.dsn", 0o600)
            gateway = re.findall(r"gateway: +127\.0\.0\.1:(\d+)", printed)[0]
            with psycopg.connect(file.read_text().strip()) as postgres, psycopg.connect(file.read_text().strip(), port=gateway) as served:
                for client in (postgres, served):
                    assert client.execute("select count(*) from public.orders where placed_at < '2025-06-01'").fetchone() != (0,)
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(90) == 0
    text = (tmp_path / "told").read_text()
    assert "0 differences" in text
    assert "replay: True" in text
    assert Cluster.find(folder / "postgres") is None


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
    assert told["postgres"] == (folder / "postgres.dsn").read_text().strip()
