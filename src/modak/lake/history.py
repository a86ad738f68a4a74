"""A table's past is in its metadata, which grows with every commit; PyIceberg reads and copies all of it, several times for each.

Metadata files never change under their names and what they say is frozen, so copies are shared, and within ``remembered`` what was read
or written a moment ago is not read again. With some hundred snapshots a commit takes a third of the time. Elsewhere every look is a look
at the store: whether a file is there, and whether these credentials open it, is what some of them are for.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any

from pyiceberg.io import InputFile, OutputFile
from pyiceberg.serializers import FromInputFile, ToOutputFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import MetadataLogEntry, Snapshot, SnapshotLogEntry

_FROZEN = (Snapshot, SnapshotLogEntry, MetadataLogEntry)
# Some kilobytes each, where a process read them itself; what it wrote shares them.
_SNAPSHOTS_MAX = 10_000
_FILES_MAX = 256
_HEADS_MAX = 4_096


class Recent:
    """Metadata by the location of their file; thread-safe. The newest stay, up to so many snapshots in all."""

    def __init__(self, snapshots_max: int = _SNAPSHOTS_MAX, files_max: int = _FILES_MAX) -> None:
        self._snapshots_max, self._files_max = snapshots_max, files_max
        self._kept: OrderedDict[str, TableMetadata] = OrderedDict()
        self._snapshots = 0
        self._lock = threading.Lock()

    def get(self, location: str) -> TableMetadata | None:
        with self._lock:
            found = self._kept.get(location)
            if found is not None:
                self._kept.move_to_end(location)
            return found

    def put(self, location: str, metadata: TableMetadata) -> None:
        with self._lock:
            known = self._kept.pop(location, None)
            self._snapshots += len(metadata.snapshots) - (len(known.snapshots) if known is not None else 0)
            self._kept[location] = metadata
            while self._kept and (self._snapshots > self._snapshots_max or len(self._kept) > self._files_max):
                self._snapshots -= len(self._kept.popitem(last=False)[1].snapshots)


class Heads:
    """The newest snapshot of a table by the location of its metadata; thread-safe, and bounded. They are small, and stay longer."""

    def __init__(self, files_max: int = _HEADS_MAX) -> None:
        self._files_max = files_max
        self._kept: OrderedDict[str, Snapshot | None] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, location: str, metadata: TableMetadata) -> None:
        current = metadata.current_snapshot_id
        head = metadata.snapshot_by_id(current) if current is not None else None
        with self._lock:
            self._kept[location] = head
            self._kept.move_to_end(location)
            while len(self._kept) > self._files_max:
                self._kept.popitem(last=False)

    def known(self, locations: Iterable[str]) -> dict[str, Snapshot | None]:
        with self._lock:
            return {location: self._kept[location] for location in locations if location in self._kept}


class _Thread(threading.local):
    remembers = False


_recent, _heads = Recent(), Heads()
_thread = _Thread()
_read, _write = FromInputFile.table_metadata, ToOutputFile.table_metadata


@contextlib.contextmanager
def remembered() -> Iterator[None]:
    """Within the block this thread may answer from memory what a metadata file says."""
    before, _thread.remembers = _thread.remembers, True
    try:
        yield
    finally:
        _thread.remembers = before


def known_heads(locations: Iterable[str]) -> dict[str, Snapshot | None]:
    """The newest snapshots by these metadata files, None for a table without any, of those that were read or written here lately."""
    return _heads.known(locations)


def _read_once(input_file: InputFile, *given: Any, **named: Any) -> TableMetadata:
    if not _thread.remembers:
        return _read(input_file, *given, **named)
    found = _recent.get(input_file.location)
    if found is None:
        found = _read(input_file, *given, **named)
        _recent.put(input_file.location, found)
        _heads.put(input_file.location, found)
    return found


def _write_and_keep(metadata: TableMetadata, output_file: OutputFile, *given: Any, **named: Any) -> None:
    _write(metadata, output_file, *given, **named)
    if _thread.remembers:
        _recent.put(output_file.location, metadata)
        _heads.put(output_file.location, metadata)


def _itself(entry: Any, _memo: dict[int, Any] | None = None) -> Any:
    return entry


def keep_history() -> None:
    """Once per process; again is harmless."""
    for kind in _FROZEN:
        assert kind.model_config.get("frozen"), f"{kind.__name__} can be changed, so it cannot be shared"
        kind.__deepcopy__ = _itself  # type: ignore[assignment]
    FromInputFile.table_metadata = staticmethod(_read_once)  # type: ignore[method-assign]
    ToOutputFile.table_metadata = staticmethod(_write_and_keep)  # type: ignore[method-assign]
