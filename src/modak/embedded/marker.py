"""Whose folder it is. A cluster's folder carries a marker, and without one a folder that holds anything is somebody else's."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from modak.embedded.files import write_atomically
from modak.errors import Refused

LOCK = "cluster.lock"
_MARKER = "cluster.json"


@dataclass(frozen=True)
class Marker:
    """``cluster.json``. ``making`` names the folder of an initdb that has not finished; None once ``data`` is whole."""

    password: str = field(repr=False)
    major: int
    port: int | None = None
    making: str | None = None
    made_by: str = "modak"

    def write(self, folder: Path) -> None:
        write_atomically(folder / _MARKER, json.dumps(asdict(self), indent=1) + "\n", 0o600)


def read_marker(folder: Path) -> Marker | None:
    """None when the folder is new to us (absent or empty); Refused when it is somebody else's."""
    try:
        entries = {entry.name for entry in folder.iterdir()}
        if _MARKER not in entries:
            _refuse_unless_new(folder, entries)
            return None
        marker = Marker(**json.loads((folder / _MARKER).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, OSError) as cause:
        hint = "choose another folder, or, if it is Modak's, read it as its owner and restore cluster.json from a backup"
        raise Refused(f"the marker of the embedded cluster cannot be read: {cause}", hint=hint, folder=folder) from cause
    if marker.made_by != "modak":
        raise Refused("the folder holds a cluster that Modak did not make", hint="choose another folder", folder=folder)
    return marker


def _refuse_unless_new(folder: Path, entries: set[str]) -> None:
    # A start that was killed before its marker leaves at most the lock and a temporary marker.
    if all(name == LOCK or name.startswith(f".{_MARKER}.") for name in entries):
        return
    hint = "choose an empty folder; for a cluster of your own give its address instead"
    raise Refused("the folder for the embedded cluster holds other files; nothing was changed", hint=hint, folder=folder)
