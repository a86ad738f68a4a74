"""``modak …`` inside the test's process, against the test's database: quick, and what a test patches holds there too."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from modak.app import App
from modak.cli import main as program


class Result:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Modak = Callable[..., Result]


@pytest.fixture
def modak(app: App, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Modak:
    monkeypatch.setenv("MODAK_DSN", app.dsn)
    monkeypatch.setenv("MODAK_DATA", str(app.settings.data))

    def run(*arguments: str, code: int = 0) -> Result:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            program.main(list(arguments))
        streams = capsys.readouterr()
        assert ended.value.code == code, streams.err
        return Result(code, streams.out, streams.err)

    return run
