"""Who was at work when: a file that every holder writes to, and what must be true of it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any


class Ledger:
    """Lines are appended whole, by threads and processes of one machine, so one clock stamps them all."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, what: str, ticket: int, node: str) -> None:
        line = json.dumps({"what": what, "ticket": ticket, "node": node, "at": time.monotonic_ns()}) + "\n"
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)

    def entries(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()] if self.path.exists() else []

    def turns(self) -> list[tuple[int, str]]:
        """(ticket, node) in the order of their turns; fails where two were at work at once."""
        found: list[tuple[int, str]] = []
        inside: tuple[int, str] | None = None
        for entry in self.entries():
            one = (entry["ticket"], entry["node"])
            if entry["what"] == "enter":
                assert inside is None, f"{one} came in while {inside} was at work"
                inside = one
                found.append(one)
            else:
                assert inside == one, f"{one} left while {inside} was at work"
                inside = None
        assert inside is None, f"{inside} never left"
        return found
