"""Where a table's files may be: in a folder that is its own, so that removing the folder takes nobody else's files along."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping

from pyiceberg.table import Table

from modak.lake.listing import files_below, remove_below
from modak.lake.storage import Storage, io_properties

_METADATA = ".metadata.json"
# What a URI keeps for itself ends a path early, and dots go up: such a place is not where it seems to be.
_STRANGE = re.compile(r"[?#%\\\x00-\x1f]|//|(^|/)\.{1,2}(/|$)")


def plain(place: str) -> str:
    """One spelling of a location: Spark writes file:/x where others write file:///x, and dots go up."""
    scheme, _, path = place.partition(":")
    return f"{scheme}:/{posixpath.normpath('/' + path.lstrip('/'))}"


def is_below(place: str, folder: str) -> bool:
    return bool(_folders(place, folder))


def why_not_free(location: str, storage: Storage, *, has_data: bool = False) -> str | None:
    """What speaks against a new table at this place, or None. ``has_data``: its own data files may be there, and nobody's metadata."""
    if not is_below(location, storage.warehouse):
        return f"{location} is not below the warehouse {storage.warehouse}"
    folders = _folders(location, storage.warehouse)
    if len(folders) == 1:
        return f"{location} is the folder of a namespace, which other tables are in"
    properties = io_properties(storage)
    for file in files_below(location, properties):
        if not has_data or file.location.endswith(_METADATA):
            return f"there are files of another table in {location}"
    above = storage.warehouse.rstrip("/")
    for folder in folders[:-1]:
        above = f"{above}/{folder}"
        if _has_metadata(above, properties):
            return f"{location} is in the folder of another table, {above}"
    return None


def owns_its_folder(table: Table, storage: Storage) -> bool:
    """Whether everything in a table's folder is its own: it is no namespace's folder, and no other table has metadata in it."""
    location = table.location()
    if len(_folders(location, storage.warehouse)) == 1 or f"{plain(storage.warehouse)}/".startswith(f"{plain(location)}/"):
        return False
    own = {plain(f"{location}/metadata"), plain(table.metadata_location.rpartition("/")[0])}
    return all(
        not file.location.endswith(_METADATA) or plain(file.location.rpartition("/")[0]) in own
        for file in files_below(location, io_properties(storage))
    )


def remove_files(table: Table, storage: Storage) -> None:
    """What a purge takes of a table that owns its folder. Outside of the warehouse there may be more in it than a table."""
    location = table.location().rstrip("/")
    inside = is_below(location, storage.warehouse)
    for folder in [location] if inside else [f"{location}/data", f"{location}/metadata"]:
        remove_below(folder, io_properties(storage))


def _folders(place: str, folder: str) -> list[str]:
    """The folders on the way from one to the other; none if that is not the way."""
    scheme, _, path = place.partition(":")
    spelled, root = f"{scheme}://{path.lstrip('/')}", f"{plain(folder)}/"
    way = spelled.removeprefix(root).strip("/") if spelled.startswith(root) else ""
    return way.split("/") if way and not _STRANGE.search(way) else []


def _has_metadata(folder: str, properties: Mapping[str, str]) -> bool:
    wanted = plain(f"{folder}/metadata")
    return any(
        file.location.endswith(_METADATA) and plain(file.location.rpartition("/")[0]) == wanted
        for file in files_below(f"{folder}/metadata", properties)
    )
