"""Results on stdout, as text for people or JSON for scripts; progress, errors and hints on stderr."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from modak.errors import ModakError
from modak.progress import SILENT
from modak.progress import Progress as ProgressPort
from modak.progress import Task as TaskPort


class Output:
    """Where a command writes."""

    def __init__(self, *, json: bool, quiet: bool) -> None:
        self.json = json
        self.quiet = quiet
        self._stdout = _console(stderr=False)
        self._stderr = _console(stderr=True)
        self.progress: ProgressPort = SILENT if quiet or json else Bars(self._stderr)

    def result(self, data: Any, text: str | None = None) -> None:
        """The outcome of a command: ``data`` with --json, ``text`` otherwise."""
        if self.json:
            sys.stdout.write(json.dumps(data, indent=2, default=str, ensure_ascii=False) + "\n")
        elif text is not None:
            self._stdout.print(Text(text))

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str | None = None) -> None:
        if self.json:
            return
        table = Table(*columns, title=title, title_justify="left", title_style="bold", header_style="bold", box=box.SIMPLE_HEAD)
        for row in rows:
            table.add_row(*(Text("" if value is None else str(value)) for value in row))
        self._stdout.print(table)

    def note(self, text: str) -> None:
        if not self.quiet and not self.json:
            self._stderr.print(Text(text))

    def error(self, error: ModakError) -> None:
        if self.json:
            sys.stderr.write(json.dumps(error.as_dict(), indent=2, default=str, ensure_ascii=False) + "\n")
            return
        self._stderr.print(Text(f"error: {error}", style="red"))
        if error.hint:
            self._stderr.print(Text(f"hint: {error.hint}"))


def _console(*, stderr: bool) -> Console:
    """A pipe has no width: nothing is folded or cut there."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, highlight=False, soft_wrap=True, width=None if stream.isatty() else 400)


class Bars:
    """Progress for people: a moving bar on a terminal, one line per finished step elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @contextlib.contextmanager
    def task(self, title: str, total: int | None = None) -> Iterator[TaskPort]:
        if not self._console.is_terminal:
            yield _Line()
            self.say(f"{title}: done")
            return
        columns = (SpinnerColumn(finished_text="✓"), TextColumn("{task.description}"), BarColumn(bar_width=30), TimeElapsedColumn())
        with Progress(*columns, TextColumn("{task.fields[note]}"), console=self._console) as bars:
            task = bars.add_task(title, total=total, note="")
            yield _Bar(bars, task)
            bars.update(task, total=total or 1, completed=total or 1)

    def say(self, text: str) -> None:
        self._console.print(Text(text))


class _Bar:
    def __init__(self, bars: Progress, task: TaskID) -> None:
        self._bars = bars
        self._task = task

    def advance(self, amount: int) -> None:
        self._bars.advance(self._task, amount)

    def note(self, text: str) -> None:
        self._bars.update(self._task, note=text)


class _Line:
    def advance(self, amount: int) -> None:
        return None

    def note(self, text: str) -> None:
        return None


def size(number: int | None) -> str:
    """Bytes as a person reads them."""
    if number is None:
        return ""
    amount, units = float(number), ["B", "KiB", "MiB", "GiB", "TiB"]
    while amount >= 1024 and len(units) > 1:
        amount /= 1024
        units.pop(0)
    return f"{amount:.0f} {units[0]}" if units[0] == "B" else f"{amount:.1f} {units[0]}"
