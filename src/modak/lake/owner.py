"""The file in a lake table's folder that says which database may write there.

In the folder and not in the table's metadata: a copy of a database has an Iceberg catalog of its own, and sees no change of the other's,
but both see the files. The name begins with an underscore, which engines take for "no data of this table".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from pyiceberg.io import load_file_io

FILE = "_modak_owner.json"


@dataclass(frozen=True)
class Owner:
    """``database`` is for people."""

    claim: str
    database: str


def read(location: str, io_properties: Mapping[str, str]) -> Owner | None:
    """Who may write to the lake table at this location; None where nobody has said so yet."""
    found = load_file_io(dict(io_properties), location).new_input(_path(location))
    if not found.exists():
        return None
    with found.open() as stream:
        data = json.loads(stream.read())
    return Owner(str(data["claim"]), str(data["database"]))


def write(location: str, io_properties: Mapping[str, str], owner: Owner) -> None:
    made = load_file_io(dict(io_properties), location).new_output(_path(location))
    with made.create(overwrite=True) as stream:
        stream.write(json.dumps(asdict(owner)).encode())


def _path(location: str) -> str:
    return f"{location.rstrip('/')}/{FILE}"
