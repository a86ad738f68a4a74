"""Who runs the server when root asks for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from modak.embedded import run_as
from modak.embedded.run_as import Runner, candidates, unprivileged
from modak.errors import MissingComponent

SHELL = Path("/bin/sh")


def test_an_ordinary_user_runs_it_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    assert unprivileged(tmp_path, SHELL) == Runner()


def test_the_first_way_that_works_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ways = [Runner(prefix=("no-such-program-here",)), Runner(prefix=("false",)), Runner(prefix=("env",), uid=None)]
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(run_as, "candidates", lambda folder: iter(ways))
    monkeypatch.setattr(run_as, "_PROBE", 'cd "$1" && test -x "$2"')
    assert unprivileged(tmp_path, SHELL) == ways[2]


def test_a_way_that_stays_root_or_cannot_reach_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(run_as, "candidates", lambda folder: iter([Runner(prefix=("false",))]))
    with pytest.raises(MissingComponent, match="root") as caught:
        unprivileged(tmp_path, SHELL)
    assert "ordinary user" in str(caught.value.hint)


def test_prefix_and_output(tmp_path: Path) -> None:
    done = Runner(prefix=("env", "GREETING=hello")).run(["sh", "-c", 'echo "$GREETING"; echo err >&2; exit 3'], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (3, "hello\nerr\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_somebody_is_run_by_its_owner_only(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, 12346)
    assert list(candidates(tmp_path)) == [Runner(uid=12345, gid=12346)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_in_somebodys_home_its_owner_comes_after_the_namespace(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, 12346)
    (tmp_path / "made by root").mkdir()
    ways = list(candidates(tmp_path / "made by root"))
    assert ways[0].prefix[0] == "unshare"
    assert ways[1] == Runner(uid=12345, gid=12346)
