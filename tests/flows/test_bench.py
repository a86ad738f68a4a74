"""Benchmarks are run by hand, and now and then: whether they still fit what they measure is seen here, and by mypy what they call."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
from bench import worker

from modak.app import App

BENCH = Path(__file__).parents[2] / "bench"
NAMES = sorted(path.stem for path in BENCH.glob("*.py") if "__main__" in path.read_text())


@pytest.mark.parametrize("name", NAMES)
def test_it_can_be_asked_what_it_does(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(BENCH / f"{name}.py"), run_name="__main__")
    assert ended.value.code == 0
    assert "usage:" in capsys.readouterr().out


def test_idle_cycles_of_a_few_tables(app: App, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It reaches into the loop: what it finds there has to be there."""
    monkeypatch.setattr(worker, "CYCLES", 2)
    monkeypatch.setattr(worker, "WARM", 1)
    # A library of the server's, loaded when it starts; the bench's own cluster has it.
    monkeypatch.setattr(worker, "statements", lambda _: 0)
    worker.idle(app, [1, 3])
    assert "3 tables, an idle cycle" in capsys.readouterr().out
