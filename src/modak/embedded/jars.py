"""The jars that Spark needs beside its own: fetched once, checked against ``jars.lock``, kept in the cache.

Apache Ivy, which ships inside pyspark, does the fetching, so this program names no host.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import secrets
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from xml.sax.saxutils import quoteattr

from modak.embedded.files import last_lines, locked, sync_folder
from modak.embedded.java import JavaHome
from modak.errors import MissingComponent
from modak.failpoints import failpoint
from modak.progress import SILENT, Progress, Task

LOCK_FILE = Path(__file__).with_name("jars.lock")
_FETCH_SECONDS_MAX = 1800.0
_POLL_SECONDS = 0.2
# A JDK in a wheel knows no certificate authority that the machine's administrator added; these files do.
_TRUST_STORES = (Path("/etc/ssl/certs/java/cacerts"), Path("/etc/pki/java/cacerts"))
_TITLES = {"base": "Fetching Spark jars (Iceberg, PostgreSQL driver)", "s3": "Fetching Spark jars (S3)"}
_HINT = (
    "Ivy needs the network once; behind a proxy set JAVA_TOOL_OPTIONS to -Dhttps.proxyHost=… -Dhttps.proxyPort=…, "
    "behind a private certificate authority to -Djavax.net.ssl.trustStore=…, and run this again"
)


@dataclass(frozen=True)
class Jar:
    """One line of the lock: ``organisation:module:revision``, or with ``:classifier`` behind it, and what its file must be."""

    coordinate: str
    sha256: str
    size_bytes: int

    @property
    def file_name(self) -> str:
        _, *parts = self.coordinate.split(":")
        return f"{'-'.join(parts)}.jar"


def spark_jars(cache: Path, java: JavaHome, progress: Progress = SILENT, *, s3: bool = False) -> list[Path]:
    """Paths of all jars, whole and checked. Fetches at most once per cache; later calls only look at the files' sizes."""
    lock = read_lock()
    names = ["base", "s3"] if s3 else ["base"]
    return [path for name in names for path in fetch(lock[name], cache, java, progress, title=_TITLES[name])]


def read_lock(path: Path = LOCK_FILE) -> dict[str, tuple[Jar, ...]]:
    groups = json.loads(path.read_text(encoding="utf-8"))
    return {name: tuple(Jar(**entry) for entry in entries) for name, entries in groups.items()}


def fetch(jars: Sequence[Jar], cache: Path, java: JavaHome, progress: Progress, *, title: str) -> list[Path]:
    """These jars from ``cache/jars/<hash of their lock lines>``. The folder appears whole, by one rename."""
    shelf = cache.absolute() / "jars"
    folder = shelf / _mark(jars)
    if not _complete(folder, jars):
        shelf.mkdir(parents=True, exist_ok=True)
        with progress.task(title, total=sum(jar.size_bytes for jar in jars)) as task:
            wait = "another process is fetching them"
            with locked(shelf / ".lock", wait_seconds_max=_FETCH_SECONDS_MAX, waiting=lambda: task.note(wait)):
                if not _complete(folder, jars):
                    _fill(folder, jars, java, task)
    return [folder / jar.file_name for jar in jars]


def _mark(jars: Sequence[Jar]) -> str:
    return hashlib.sha256("\n".join(f"{jar.sha256}  {jar.coordinate}" for jar in jars).encode()).hexdigest()[:16]


def _complete(folder: Path, jars: Sequence[Jar]) -> bool:
    try:
        return all((folder / jar.file_name).stat().st_size == jar.size_bytes for jar in jars)
    except OSError:
        return False


def _fill(folder: Path, jars: Sequence[Jar], java: JavaHome, task: Task) -> None:
    for left in folder.parent.glob("fetching-*"):  # under the lock only a killed fetch can have left these
        shutil.rmtree(left, ignore_errors=True)
    work = folder.with_name(f"fetching-{secrets.token_hex(4)}")
    try:
        (work / "out").mkdir(parents=True)
        _run_ivy(work, jars, java, task)
        for jar in jars:
            _check(work / "out" / jar.file_name, jar)
        failpoint("embedded.jars.before_rename")
        shutil.rmtree(folder, ignore_errors=True)  # damaged, or we would not be here
        (work / "out").rename(folder)
        sync_folder(folder.parent)
    except OSError as cause:
        raise MissingComponent(f"the Spark jars cannot be kept: {cause}", hint="is the disk full?", folder=folder) from cause
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _check(path: Path, jar: Jar) -> None:
    if not path.is_file():
        raise MissingComponent("Ivy brought no file for a jar", hint=_HINT, jar=jar.coordinate)
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != jar.sha256:
        hint = "do not use it: the repository or something on the way to it changed the file"
        raise MissingComponent("a fetched jar is not the one in jars.lock", hint=hint, jar=jar.coordinate, sha256=found)


def ivy_module(jars: Sequence[Jar]) -> str:
    """An Ivy file that asks for exactly these jars: the lock already lists what they depend on."""
    modules: dict[str, list[str]] = {}
    for jar in jars:
        *module, classifier = [*jar.coordinate.split(":"), ""][:4]
        modules.setdefault(":".join(module), []).append(classifier)
    head = '<ivy-module version="2.0" xmlns:m="urn:maven">\n <info organisation="modak" module="jars"/>\n <dependencies>\n'
    return head + "\n".join(starmap(_dependency, modules.items())) + "\n </dependencies>\n</ivy-module>\n"


def _dependency(module: str, classifiers: Sequence[str]) -> str:
    organisation, name, revision = (quoteattr(part) for part in module.split(":"))
    head = f'  <dependency org={organisation} name={name} rev={revision} transitive="false" conf="*->default"'
    if not any(classifiers):
        return head + "/>"
    files = [f'<artifact name={name} ext="jar"{f" m:classifier={quoteattr(one)}" if one else ""}/>' for one in classifiers]
    return f"{head}>{''.join(files)}</dependency>"


def ivy_jar() -> Path:
    """Ivy's jar inside pyspark, found without importing pyspark."""
    spec = importlib.util.find_spec("pyspark")
    for location in (spec.submodule_search_locations if spec else None) or ():
        for path in sorted(Path(location).glob("jars/ivy-*.jar")):
            return path
    raise MissingComponent("pyspark and the Ivy inside it were not found", hint="install modak with its dependencies")


def _run_ivy(work: Path, jars: Sequence[Jar], java: JavaHome, task: Task) -> None:
    (work / "ivy.xml").write_text(ivy_module(jars), encoding="utf-8")
    trust = next((path for path in _TRUST_STORES if path.is_file()), None) if java.origin == "wheel" else None
    argv = [str(java.java), *([f"-Djavax.net.ssl.trustStore={trust}"] if trust else []), "-jar", str(ivy_jar())]
    # Relative to the working directory: a path may hold characters that mean something in Ivy's patterns.
    argv += [
        "-ivy",
        "ivy.xml",
        "-cache",
        str(work / "ivy"),
        "-retrieve",
        "out/[artifact]-[revision](-[classifier]).[ext]",
        "-confs",
        "default",
    ]
    log = work / "ivy.log"
    with log.open("wb") as output:
        process = subprocess.Popen(argv, cwd=work, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        try:
            _watch(process, work / "ivy", task)
        finally:
            process.kill()
            process.wait()
    if process.returncode != 0:
        words = last_lines(log.read_text(encoding="utf-8", errors="replace"))
        raise MissingComponent(f"the Spark jars could not be fetched; Ivy's output ends with\n{words}\n", hint=_HINT)


def _watch(process: subprocess.Popen[bytes], ivy_cache: Path, task: Task) -> None:
    """Move the bar with the bytes that arrive."""
    deadline = time.monotonic() + _FETCH_SECONDS_MAX
    shown = 0
    while time.monotonic() < deadline:
        ended = process.poll() is not None
        arrived = max(shown, _bytes_of_jars(ivy_cache))
        task.advance(arrived - shown)
        shown = arrived
        if ended:
            return
        time.sleep(_POLL_SECONDS)


def _bytes_of_jars(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*.jar*"):
        try:
            total += path.stat().st_size
        except OSError:  # Ivy renames a file when it is whole
            continue
    return total
