"""Postgres refuses to run as root. This finds a way to run it as somebody else without opening anybody's folders.

Three ways, in this order: nothing to do (we are not root); a user namespace, in which root's own files keep working under
another number; another account, to which the cluster's folder is then given. Parent folders are never changed.
"""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from modak.errors import MissingComponent

_NAMESPACE = ("unshare", "--user", "--map-user=1000", "--map-group=1000", "--")
_ACCOUNTS = ("postgres", "nobody")
# Not root any more, able to walk to the folder, able to run the program: what Postgres will need.
_PROBE = 'test "$(id -u)" != 0 && cd "$1" && test -x "$2"'
_PROBE_SECONDS_MAX = 20
_HINT = (
    "run modak as an ordinary user, allow user namespaces for root, put the cluster in a folder that the account 'postgres' "
    "can reach, or give the address of a Postgres server that runs already"
)


@dataclass(frozen=True)
class Runner:
    """How to run a program without root's rights: a prefix, or an account, or as we are."""

    prefix: tuple[str, ...] = ()
    uid: int | None = None
    gid: int | None = None

    def run(
        self,
        argv: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str] | None = None,
        detached: bool = False,
        timeout: float | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run to the end, both outputs in one text. ``detached`` puts it out of reach of the terminal's Ctrl-C."""
        return subprocess.run(
            [*self.prefix, *argv],
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            timeout=timeout,
            start_new_session=detached,
            user=self.uid,
            group=self.gid,
            extra_groups=None if self.uid is None else [],
        )

    def own(self, path: Path) -> None:
        """Give one file or folder (not what is in it) to the account; nothing to do for the other ways."""
        if self.uid is not None and self.gid is not None:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)

    def reaches(self, folder: Path, program: Path) -> bool:
        try:
            answer = self.run(["sh", "-c", _PROBE, "sh", str(folder), str(program)], cwd=Path("/"), timeout=_PROBE_SECONDS_MAX)
        except (OSError, subprocess.SubprocessError):
            return False
        return answer.returncode == 0


def unprivileged(folder: Path, program: Path) -> Runner:
    """The first way to run ``program`` on files in ``folder`` (which exists) that works on this machine."""
    if os.geteuid() != 0:
        return Runner()
    for runner in candidates(folder):
        # An account is given the folder later, so it must only get as far as the parent now.
        if runner.reaches(folder if runner.uid is None else folder.parent, program):
            return runner
    raise MissingComponent("Postgres refuses to run as root, and no other way to run it works here", hint=_HINT, folder=folder)


def candidates(folder: Path) -> Iterator[Runner]:
    """Root's ways out. A folder that belongs to somebody stays theirs, so that they can start the cluster without root too."""
    owner = folder.stat()
    if owner.st_uid != 0:
        yield Runner(uid=owner.st_uid, gid=owner.st_gid)
        return
    yield Runner(prefix=_NAMESPACE)
    # `sudo modak` inside a private home: a namespace cannot walk through it, its owner can.
    for parent in folder.parents:
        status = parent.stat()
        if status.st_uid != 0:
            yield Runner(uid=status.st_uid, gid=status.st_gid)
            break
    for name in _ACCOUNTS:
        try:
            account = pwd.getpwnam(name)
        except KeyError:
            continue
        yield Runner(uid=account.pw_uid, gid=account.pw_gid)
