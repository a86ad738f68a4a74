"""Logs of the daemons: lines for people, or one JSON object per line for machines."""

from __future__ import annotations

import json
import logging
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
