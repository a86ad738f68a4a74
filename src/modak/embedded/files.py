"""Two small tools over the file system: a lock between processes, and a write that is whole or absent."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from modak.errors import LockNotAvailable

_POLL_SECONDS = 0.05


@contextlib.contextmanager
def locked(path: Path, *, wait_seconds_max: float, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold ``path`` against other processes; the kernel lets go when the holder dies, however it dies.

    The lock file itself is never removed: a waiter could be holding the removed one.
    """
    # os.open gives a descriptor that children do not inherit, so a server started under the lock cannot keep it.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _acquire(descriptor, path, wait_seconds_max, waiting)
        yield
    finally:
        os.close(descriptor)


def _acquire(descriptor: int, path: Path, wait_seconds_max: float, waiting: Callable[[], None]) -> None:
    deadline = time.monotonic() + wait_seconds_max
    told = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as busy:
            if time.monotonic() > deadline:
                hint = "another modak process is doing this work; wait for it to end, or end it, and run this again"
                raise LockNotAvailable("a lock file stays taken", hint=hint, path=path) from busy
        if not told:
            waiting()
            told = True
        time.sleep(_POLL_SECONDS)


def write_atomically(path: Path, text: str, mode: int = 0o600) -> None:
    """Readers see the old content or the new one, also after a crash of the machine."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), mode)  # the umask must not take a needed bit away
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make a rename inside ``folder`` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def last_lines(text: str, count: int = 12) -> str:
    """The end of a log, for an error message."""
    return "\n".join(line.rstrip() for line in text.strip().splitlines()[-count:])
