"""Logs of the daemons: lines for people, or one JSON object per line for machines."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime

_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class JsonFormatter(logging.Formatter):
    """``at`` in UTC, ``level``, ``logger``, ``message``, and ``error`` with the stack where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        # ASCII: no line of a log is broken by what a client sent.
        return json.dumps(entry)


def set_up(form: str) -> None:
    """``form`` is the setting MODAK_LOG. Replaces what was set up before."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else logging.Formatter(_TEXT))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


class Steps:
    """Stands where a Progress does: what long work of a daemon says are lines of its log, and no bars or bare words between them."""

    def __init__(self) -> None:
        self._logger = logging.getLogger("modak.steps")

    @contextlib.contextmanager
    def task(self, title: str, total: int | None = None) -> Iterator[Steps]:
        yield self
        self.say(f"{title}: done")

    def say(self, text: str) -> None:
        self._logger.info("%s", text)

    def advance(self, amount: int) -> None:
        return None

    def note(self, text: str) -> None:
        return None
