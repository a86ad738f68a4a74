"""The lock file, and fetching with an Ivy that is only a script."""

from __future__ import annotations

import hashlib
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from modak.embedded.jars import Jar, fetch, ivy_jar, ivy_module, read_lock, spark_jars
from modak.embedded.java import JavaHome
from modak.errors import MissingComponent
from modak.failpoints import armed
from modak.progress import SILENT

CONTENT = b"pretend jar\n"
JAR = Jar("org.example:thing_2.13:1.0", hashlib.sha256(CONTENT).hexdigest(), len(CONTENT))
NO_JAVA = JavaHome(Path("/nonexistent"), 17, "PATH")


def fake_java(home: Path, body: str) -> JavaHome:
    (home / "bin").mkdir(parents=True, exist_ok=True)
    (home / "bin" / "java").write_text(f"#!/bin/sh\n{body}\n")
    (home / "bin" / "java").chmod(0o755)
    return JavaHome(home, 17, "PATH")


def test_lock_names_what_spark_needs() -> None:
    lock = read_lock()
    assert [jar.file_name for jar in lock["base"]] == [
        "iceberg-spark-runtime-4.1_2.13-1.12.0.jar",
        "postgresql-42.7.14.jar",
        "checker-qual-3.55.1.jar",
    ]
    assert [jar.file_name for jar in lock["s3"]] == ["iceberg-aws-bundle-1.12.0.jar"]
    assert all(re.fullmatch("[0-9a-f]{64}", jar.sha256) and jar.size_bytes > 0 for group in lock.values() for jar in group)


def test_ivy_file_asks_for_the_locked_jars_only() -> None:
    dependencies = ET.fromstring(ivy_module([JAR])).findall("dependencies/dependency")
    assert [(d.get("org"), d.get("name"), d.get("rev"), d.get("transitive")) for d in dependencies] == [
        ("org.example", "thing_2.13", "1.0", "false")
    ]


def test_ivy_ships_inside_pyspark() -> None:
    assert ivy_jar().is_file()


def test_second_call_starts_no_java(tmp_path: Path) -> None:
    java = fake_java(tmp_path / "java", f"printf '{CONTENT.decode()}' > out/{JAR.file_name}")
    first = fetch([JAR], tmp_path / "a [b] c", java, SILENT, title="")
    assert [path.read_bytes() for path in first] == [CONTENT]
    assert fetch([JAR], tmp_path / "a [b] c", NO_JAVA, SILENT, title="") == first
    assert sorted(path.name for path in first[0].parent.parent.iterdir()) == sorted([".lock", first[0].parent.name])


def test_a_damaged_shelf_is_filled_again(tmp_path: Path) -> None:
    java = fake_java(tmp_path / "java", f"printf '{CONTENT.decode()}' > out/{JAR.file_name}")
    [path] = fetch([JAR], tmp_path, java, SILENT, title="")
    path.write_bytes(b"half")
    assert fetch([JAR], tmp_path, java, SILENT, title="")[0].read_bytes() == CONTENT


def test_killed_before_the_rename_nothing_is_there_and_the_next_call_mends_it(tmp_path: Path) -> None:
    java = fake_java(tmp_path / "java", f"printf '{CONTENT.decode()}' > out/{JAR.file_name}")
    with armed("embedded.jars.before_rename"), pytest.raises(RuntimeError, match="before_rename"):
        fetch([JAR], tmp_path, java, SILENT, title="")
    (tmp_path / "jars" / "fetching-00000000" / "ivy").mkdir(parents=True)  # what SIGKILL leaves
    assert fetch([JAR], tmp_path, java, SILENT, title="")[0].read_bytes() == CONTENT
    assert not list((tmp_path / "jars").glob("fetching-*"))


def test_a_changed_jar_is_refused_and_not_kept(tmp_path: Path) -> None:
    java = fake_java(tmp_path / "java", f"printf 'evil jar!!!\\n' > out/{JAR.file_name}")
    with pytest.raises(MissingComponent, match=r"not the one in jars\.lock"):
        fetch([JAR], tmp_path, java, SILENT, title="")
    assert [path.name for path in (tmp_path / "jars").iterdir()] == [".lock"]


def test_ivys_last_words_are_in_the_error(tmp_path: Path) -> None:
    java = fake_java(tmp_path / "java", "echo 'UNRESOLVED DEPENDENCIES: connection refused'; exit 1")
    with pytest.raises(MissingComponent, match="connection refused") as caught:
        spark_jars(tmp_path, java)
    assert "proxy" in str(caught.value.hint)


def test_no_host_is_named() -> None:
    folder = Path(ivy_module.__code__.co_filename).parent
    for path in folder.glob("jars.*"):
        assert "://" not in path.read_text(encoding="utf-8")
