"""What long work says while it runs. The work knows only this port; the CLI makes it a bar, lines or silence."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Protocol


class Task(Protocol):
    """One running step. ``advance`` moves the bar; ``note`` replaces the text behind it."""

    def advance(self, amount: int) -> None: ...

    def note(self, text: str) -> None: ...


class Progress(Protocol):
    """Where work reports to."""

    def task(self, title: str, total: int | None = None) -> contextlib.AbstractContextManager[Task]:
        """A step with a bar; ``total`` of None shows a moving one."""
        ...

    def say(self, text: str) -> None:
        """One finished line."""
        ...


class _SilentTask:
    def advance(self, amount: int) -> None:
        return None

    def note(self, text: str) -> None:
        return None


class Silent:
    """Reports nothing: for libraries, daemons and tests."""

    @contextlib.contextmanager
    def task(self, title: str, total: int | None = None) -> Iterator[Task]:
        yield _SilentTask()

    def say(self, text: str) -> None:
        return None


SILENT: Progress = Silent()
