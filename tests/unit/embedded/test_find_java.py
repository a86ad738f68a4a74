"""Which Java is taken, with Java homes that are only a file ``release`` and a script."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from modak.embedded import java
from modak.embedded.java import find_java, parse_major, parse_release
from modak.errors import MissingComponent


def fake_home(path: Path, version: str, *, release: bool = True, modules: str = "java.base jdk.incubator.vector") -> Path:
    (path / "bin").mkdir(parents=True)
    (path / "bin" / "java").write_text(f"#!/bin/sh\necho '    java.version = {version}' >&2; echo '    java.home = {path}' >&2\n")
    (path / "bin" / "java").chmod(0o755)
    if release:
        (path / "release").write_text(f'IMPLEMENTOR="Somebody"\nJAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return path


@pytest.mark.parametrize(("version", "major"), [("17.0.15", 17), ("21", 21), ("21-ea", 21), ("1.8.0_412", 8), ("", None)])
def test_major(version: str, major: int | None) -> None:
    assert parse_major(version) == major


def test_release_file() -> None:
    assert parse_release('A="1 2"\nB=bare\nC=""\n') == {"A": "1 2", "C": ""}


def test_java_home_goes_before_the_path(tmp_path: Path) -> None:
    home, other = fake_home(tmp_path / "a", "21.0.1"), fake_home(tmp_path / "b", "17.0.1")
    found = find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")}, tmp_path, wheel=False)
    assert (found.path, found.major, found.origin) == (home, 21, "JAVA_HOME")


def test_an_unfit_java_home_is_passed_over(tmp_path: Path) -> None:
    old, fit = fake_home(tmp_path / "old", "11.0.2"), fake_home(tmp_path / "fit", "17.0.1")
    links = tmp_path / "links"
    links.mkdir()
    (links / "java").symlink_to(fit / "bin" / "java")
    found = find_java({"JAVA_HOME": str(old), "PATH": str(links)}, tmp_path, wheel=False)
    assert (found.path, found.origin) == (fit, "PATH")


def test_without_release_file_java_itself_is_asked(tmp_path: Path) -> None:
    home = fake_home(tmp_path / "home", "17.0.9", release=False)
    assert find_java({"JAVA_HOME": str(home)}, tmp_path, wheel=False).major == 17


def test_a_shim_is_asked_for_its_home(tmp_path: Path) -> None:
    home = fake_home(tmp_path / "home", "21.0.2")
    shims = tmp_path / "shims"
    shims.mkdir()
    (shims / "java").write_text(f'#!/bin/sh\nexec "{home}/bin/java" "$@"\n')
    (shims / "java").chmod(0o755)
    assert find_java({"PATH": str(shims)}, tmp_path, wheel=False).path == home


def test_a_java_without_sparks_module_is_passed_over(tmp_path: Path) -> None:
    home = fake_home(tmp_path / "home", "21.0.2", modules="java.base java.sql")
    with pytest.raises(MissingComponent) as caught:
        find_java({"JAVA_HOME": str(home)}, tmp_path, wheel=False)
    assert "openjdk-17-jre-headless" in str(caught.value.hint)


@pytest.fixture
def echo_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel whose java prints its arguments, at a place that needs quoting."""
    home = fake_home(tmp_path / "a wheel's place", "21.0.8", modules="java.base")
    (home / "bin" / "java").write_text('#!/bin/sh\nfor word do printf "<%s>" "$word"; done\n')
    monkeypatch.setattr(java, "_wheel_home", lambda: home)
    return home


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        (["-Xmx1g", "--add-modules=jdk.incubator.vector", "Main", "a b", ""], "<-Xmx1g><Main><a b><>"),
        (["--add-modules", "jdk.incubator.vector", "Main"], "<Main>"),
        (
            ["--add-modules", "java.sql", "--add-modules=java.xml", "Main"],
            "<--add-modules><java.sql><--add-modules=java.xml><Main>",
        ),
        (["$HOME", "*", "-version"], "<$HOME><*><-version>"),
        ([], ""),
    ],
)
def test_wrapper_drops_the_module_and_nothing_else(echo_wheel: Path, tmp_path: Path, given: list[str], passed: str) -> None:
    found = find_java({}, tmp_path / "my cache")
    assert (found.major, found.origin) == (21, "wheel")
    assert subprocess.run([found.java, *given], capture_output=True, text=True, check=True).stdout == passed


def test_wrapper_is_left_alone_mended_and_made_anew(echo_wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = find_java({}, tmp_path)
    before = first.java.stat().st_mtime_ns
    assert find_java({}, tmp_path) == first
    assert first.java.stat().st_mtime_ns == before
    first.java.write_text("damaged")
    assert find_java({}, tmp_path) == first
    assert first.java.read_text().startswith("#!/bin/sh")
    moved = echo_wheel.rename(tmp_path / "moved")
    monkeypatch.setattr(java, "_wheel_home", lambda: moved)
    second = find_java({}, tmp_path)
    assert subprocess.run([second.java, "x"], capture_output=True, text=True, check=True).stdout == "<x>"


def test_a_child_may_inherit_the_wrapper_as_java_home(echo_wheel: Path, tmp_path: Path) -> None:
    first = find_java({}, tmp_path)
    again = find_java({"JAVA_HOME": str(first.path)}, tmp_path)
    assert (again.path, again.major) == (first.path, 21)
