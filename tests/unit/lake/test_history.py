"""What is kept of metadata that were read or written a moment ago: the same, shared, and no more than is allowed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.serializers import FromInputFile
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from tests.scan_lake import ScanLake

from modak.core.type_map import NATIVE
from modak.lake.history import Recent, keep_history, remembered

keep_history()


def lake(folder: Path, commits: int) -> ScanLake:
    made = ScanLake(folder, {"id": NATIVE["int8"], "k": NATIVE["int4"]}, "k", ["id"])
    for number in range(commits):
        made.append(pa.table({"id": pa.array([number], pa.int64()), "k": pa.array([number], pa.int32())}))
    return made


def look(location: str) -> TableMetadata:
    return FromInputFile.table_metadata(PyArrowFileIO().new_input(location))


def on_disk(location: str) -> TableMetadata:
    return TableMetadataUtil.parse_raw(Path(location.removeprefix("file://")).read_text())


def test_what_is_kept_is_what_is_in_the_file(tmp_path: Path) -> None:
    made = lake(tmp_path, 5)
    for location in [made.at(), *(entry.metadata_file for entry in made.table.metadata.metadata_log)]:
        with remembered():
            read = look(location)
            assert read == on_disk(location)
            assert read is look(location)


def test_what_is_written_is_what_is_read_back(tmp_path: Path) -> None:
    with remembered():
        made = lake(tmp_path, 3)
        assert look(made.at()) == on_disk(made.at())


def test_elsewhere_a_look_is_a_look_at_the_store(tmp_path: Path) -> None:
    made = lake(tmp_path, 2)
    with remembered():
        look(made.at())
    Path(made.at().removeprefix("file://")).unlink()
    with pytest.raises(FileNotFoundError):
        look(made.table.metadata_location)
    with remembered():
        assert look(made.table.metadata_location) == made.table.metadata


def test_a_commit_does_not_change_what_others_hold(tmp_path: Path) -> None:
    made = lake(tmp_path, 3)
    location = made.at()
    with remembered():
        held = look(location)
    before = held.model_dump_json()
    made.append(pa.table({"id": pa.array([9], pa.int64()), "k": pa.array([9], pa.int32())}))
    made.table.maintenance.expire_snapshots().by_id(held.snapshots[0].snapshot_id).commit()
    assert held.model_dump_json() == before
    assert held == on_disk(location)
    assert [one.snapshot_id for one in held.snapshots[1:]] == [one.snapshot_id for one in on_disk(made.at()).snapshots[:2]]


def test_the_newest_stay(tmp_path: Path) -> None:
    metadata = lake(tmp_path, 4).table.metadata
    recent = Recent(snapshots_max=10, files_max=3)
    recent.put("a", metadata)
    recent.put("b", metadata)
    assert recent.get("a") is metadata
    recent.put("c", metadata)  # twelve snapshots are too many; "b" was used longest ago
    assert [recent.get(name) is not None for name in "abc"] == [True, False, True]
    recent.put("c", metadata)  # again is no more
    assert recent.get("a") is metadata
    large = Recent(snapshots_max=3)
    large.put("a", metadata)
    assert large.get("a") is None
