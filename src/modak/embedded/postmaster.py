"""One Postgres server process: is it alive, is it ours, and how to start one that outlives us."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from modak.embedded.run_as import Runner
from modak.errors import ModakError

HOST = "127.0.0.1"
# A shell in the middle, so that the server is nobody's child in our process: no zombie when it ends, no wait when we do.
_DETACH = 'umask 077; log=$1; shift; "$@" </dev/null >>"$log" 2>&1 & echo $!'
_SPAWN_SECONDS_MAX = 30
_LOG_BYTES_MAX = 16 * 1024 * 1024


@dataclass(frozen=True)
class Postmaster:
    """What ``postmaster.pid`` says. ``status`` is starting, ready, stopping or empty (too early to know)."""

    pid: int
    port: int
    status: str


def parse_pid_file(text: str) -> Postmaster | None:
    """None while the file is still being written."""
    lines = [line.strip() for line in text.splitlines()]
    try:
        return Postmaster(abs(int(lines[0])), int(lines[3]), lines[7] if len(lines) > 7 else "")
    except (IndexError, ValueError):
        return None


def read_pid_file(data: Path) -> Postmaster | None:
    try:
        return parse_pid_file((data / "postmaster.pid").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None


def running(data: Path) -> Postmaster | None:
    """The live server of this data folder; a stale file and a reused process number are none."""
    found = read_pid_file(data)
    return found if found and alive(found.pid) and serves(found.pid, data) else None


def alive(pid: int) -> bool:
    """True for a process that can still do something; a zombie that nobody buries cannot."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return _state(pid) != "Z"


def _state(pid: int) -> str:
    if Path("/proc/self/stat").exists():
        try:
            # The command in brackets may hold anything, so read after the last bracket.
            return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(") ")[2][:1]
        except OSError:
            return "Z"
    return _ps(pid, "stat")[:1]


def serves(pid: int, data: Path) -> bool:
    """Whether this process works in ``data``: the server's working directory is its data folder."""
    try:
        return Path(f"/proc/{pid}/cwd").samefile(data)
    except OSError:
        return str(data) in _ps(pid, "args")


def _ps(pid: int, column: str) -> str:
    try:
        answer = subprocess.run(["ps", "-ww", "-o", f"{column}=", "-p", str(pid)], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return answer.stdout.strip()


def free_port(preferred: int | None = None) -> int:
    """``preferred`` when nobody listens there, else any. Somebody may still be faster than us: the caller tries again."""
    for port in (preferred, 0):
        if port is None:
            continue
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise ModakError("this machine has no free TCP port", hint=f"close programs that listen on {HOST}")


def clean_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Without the caller's PG* variables, which would change the server, and with English messages, which we read."""
    kept = {name: value for name, value in environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
    return kept | {"LC_ALL": "C"}


def spawn(program: Path, data: Path, log: Path, settings: Mapping[str, str], runner: Runner) -> int:
    """Start a server that survives us and the terminal; returns its process number at once, before it is ready."""
    env = clean_environment(os.environ)
    stale = read_pid_file(data)
    if stale:
        # The caller has seen that this process is not our server. Postgres would refuse when the number lives on in another
        # process (after a reboot) or as a zombie; named as a relative it is ignored, and the shared memory check still holds.
        env["PG_GRANDPARENT_PID"] = str(stale.pid)
    if log.exists() and log.stat().st_size > _LOG_BYTES_MAX:
        log.replace(log.with_name(log.name + ".1"))
    assigned = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    argv: Sequence[str] = ["sh", "-c", _DETACH, "sh", str(log), str(program), "-D", str(data), *assigned]
    answer = runner.run(argv, cwd=log.parent, env=env, detached=True, timeout=_SPAWN_SECONDS_MAX)
    if not answer.stdout.strip().isdigit():
        raise ModakError(f"the Postgres server could not be started: {answer.stdout.strip()}", program=program)
    return int(answer.stdout)


_PORT_TAKEN = re.compile(r"could not bind|could not create any TCP/IP sockets|Address already in use")
_STILL_THERE = re.compile(r"lock file .* already exists|pre-existing shared memory block")
_HINTS = (
    (r"No space left on device|Disk quota exceeded", "the disk is full: free some space and start again"),
    (
        r"shared memory segment|could not map anonymous shared memory|could not resize shared memory|Cannot allocate memory",
        "not enough (shared) memory: lower shared_buffers, or give the container more (--shm-size)",
    ),
    (r"invalid locale|locale .* (not|un)", "the machine lacks the locale: install the Debian package 'locales'"),
    (r"unrecognized configuration parameter|invalid value for parameter", "a server option is wrong: correct or remove it"),
    (r"incompatible with server|not compatible with this version", "another version made the data: install that one"),
    (r"Permission denied|has invalid permissions|wrong ownership", "the folder must belong to the user that runs modak"),
    (r"Read-only file system", "the folder is on a read-only file system: choose another one"),
)


def port_was_taken(output: str) -> bool:
    return bool(_PORT_TAKEN.search(output))


def predecessor_remains(output: str) -> bool:
    """Another server of this data folder is starting, or the children of a killed one are not gone yet."""
    return bool(_STILL_THERE.search(output))


def hint_for(output: str) -> str:
    """The way out of the failures that people really meet."""
    return next((hint for pattern, hint in _HINTS if re.search(pattern, output)), "read the whole log; it says more")
