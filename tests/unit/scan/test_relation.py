"""The rows of files as DuckDB reads them, where DuckDB by itself would leave some out."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from modak.scan.positions import positions_of_keys, positions_of_rows
from modak.scan.relation import relation_sql
from modak.scan.snapshot import DataFile, Field, Snapshot

VALUES = [b"\x1f", b"\x00\xff", b"\\", b"'", b"", b"plain"]
FIELD = Field(1, "b", "binary", required=True)


def file_with_bloom_filter(path: Path, values: list[bytes]) -> DataFile:
    schema = pa.schema([pa.field("b", pa.binary(), metadata={"PARQUET:field_id": "1"})])
    filters = {"b": {"ndv": 100, "fpp": 0.01}}
    pq.write_table(pa.table([values], schema), path, use_dictionary=False, store_schema=False, bloom_filter_options=filters)
    return DataFile(str(path), str(path), len(values), path.stat().st_size, 1, 0, (), {}, {}, {}, {}, 1)


def test_bytes_are_found_where_a_bloom_filter_has_them(tmp_path: Path) -> None:
    """Somebody else may have written the file; ours have none for bytes."""
    engine = duckdb.connect()
    for place, value in enumerate(VALUES):
        file = file_with_bloom_filter(tmp_path / f"{place}.parquet", [value])
        other = file_with_bloom_filter(tmp_path / f"other {place}.parquet", [value])
        rows = relation_sql(Snapshot("", 1, 1, (FIELD,), {}, 0, (file,)), [file], ["b"])
        assert engine.execute(f"SELECT count(*) FROM {rows} WHERE b = from_hex('{value.hex()}')").fetchone() == (1,), value
        assert positions_of_keys(engine, [file], [FIELD], pa.table({"b": pa.array([value], pa.binary())}))[file.path].tolist() == [0], value
        assert positions_of_rows(engine, [file], [FIELD], [other])[file.path].tolist() == [0], value
