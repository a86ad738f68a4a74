"""Cold rows against PyIceberg's own reading of the same snapshot: types, pruning, older snapshots, columns that changed, odd paths."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.types import DecimalType, DoubleType, LongType, StringType
from tests.scan_lake import ScanLake, rows_of

from modak.core.tier_key import TierKeyType
from modak.core.type_map import NATIVE, PgType, lake_type
from modak.errors import LakeError, NotFound
from modak.scan.engine import Engine
from modak.scan.manifests import UnreadableSnapshot
from modak.scan.predicate import Predicate
from modak.scan.prune import KeyRange
from modak.scan.snapshot import Snapshot
from modak.scan.snapshots import SnapshotGone, Snapshots
from modak.scan.table import ColdTables


def _numeric(digits: int, scale: int) -> Any:
    return lake_type(PgType(f"numeric({digits},{scale})", "numeric", modifier=((digits << 16) | scale) + 4))


COLUMNS = {
    "id": NATIVE["int8"],
    "k": NATIVE["timestamptz"],
    "d": NATIVE["date"],
    "t": NATIVE["timestamp"],
    "i": NATIVE["int4"],
    "f": NATIVE["float4"],
    "g": NATIVE["float8"],
    "n": _numeric(20, 4),
    "s": NATIVE["text"],
    "b": NATIVE["bytea"],
    "u": NATIVE["uuid"],
    "o": NATIVE["bool"],
    "Odd \"name'": NATIVE["text"],
    "filename": NATIVE["int4"],
}
ARROW = {
    "id": pa.int64(),
    "k": pa.timestamp("us", "UTC"),
    "d": pa.date32(),
    "t": pa.timestamp("us"),
    "i": pa.int32(),
    "f": pa.float32(),
    "g": pa.float64(),
    "n": pa.decimal128(20, 4),
    "s": pa.string(),
    "b": pa.binary(),
    "u": pa.binary(16),
    "o": pa.bool_(),
    "Odd \"name'": pa.string(),
    "filename": pa.int32(),
}
_DAY = 86_400_000_000
# The years 44 BC, 1, 1969, 2024 and 20000, in days.
_DAYS = [-735_600, -719_162, -1, 0, 19_800, 19_801, 6_585_442]
_TEXTS = ["", "a", "a" * 16, "a" * 17, "a" * 40, "é" * 20, "日本語" * 8, "😀" * 16, "😀" * 18, "z" * 15 + "\U0010ffff" * 3, "it's", "zz"]


def _float32(number: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", number))[0])


POOLS: dict[str, list[Any]] = {
    "id": list(range(-50, 400)),
    "k": [day * _DAY + part for day in _DAYS for part in (0, 1, _DAY - 1)],
    "d": _DAYS,
    "t": [day * _DAY + 12_345 for day in _DAYS],
    "i": [-(2**31), -7, 0, 1, 2, 3, 500, 2**31 - 1],
    "f": [_float32(number) for number in (0.1, -0.0, 0.0, 1e30, -2.5, math.inf, math.nan, 16_777_217.0)],
    "g": [0.1, -0.0, 1e300, -2.5, math.inf, -math.inf, math.nan, 5.0],
    "n": [Decimal(text) for text in ("0.0000", "-9999999999999999.9999", "9999999999999999.9999", "12.3450", "-0.0001")],
    "s": _TEXTS,
    "b": [b"", b"\x00", b"\xff" * 20, b"\xff" * 15, b"abc" * 9, b"\x7f" * 17],
    "u": [UUID(int=number).bytes for number in (0, 2**127 - 1, 2**127, 2**128 - 1, 12345)],
    "o": [True, False],
    "Odd \"name'": _TEXTS,
    "filename": [1, 2, 3],
}


def _batch(source: random.Random, ids: list[int], *, empty: tuple[str, ...] = ()) -> pa.Table:
    """A file's rows; each takes its values from a small part of the pools, so that files differ in their bounds."""
    rows: dict[str, list[Any]] = {"id": ids}
    for name, pool in POOLS.items():
        if name != "id":
            some = source.sample(pool, min(len(pool), source.choice([1, 2, 3])))
            rows[name] = [None if name in empty or (name != "k" and source.random() < 0.2) else source.choice(some) for _ in ids]
    return pa.table({name: pa.array(values, ARROW[name]) for name, values in rows.items()})


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    made = Engine([], memory_limit="1GB", threads=2, temp_directory=tmp_path_factory.mktemp("duckdb"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def cold(engine: Engine) -> ColdTables:
    return ColdTables(engine)


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> tuple[ScanLake, int]:
    """Nine files of every type, in two commits, with position deletes on some."""
    source = random.Random(7)
    lake = ScanLake(tmp_path_factory.mktemp("typed"), COLUMNS, "k", ["id"])
    nullable = tuple(name for name in COLUMNS if name not in ("id", "k"))
    batches = [_batch(source, list(range(start, start + 25))) for start in range(0, 200, 25)]
    lake.append(*batches[:5])
    lake.append(*batches[5:], _batch(source, list(range(300, 310)), empty=nullable))
    return lake, lake.delete({file.file_path: [0, file.record_count - 1] for file in lake.data_files()[::3]})


def read(cold: ColdTables, snapshot: Snapshot, predicates: tuple[Predicate, ...] = (), where: str = "true", **given: Any) -> pa.Table:
    columns = [field.name for field in snapshot.fields]
    relation, _ = cold.relation(snapshot, columns, predicates, **given)
    return cold.engine.cursor().execute(f"SELECT * FROM {relation} AS cold WHERE {where}").to_arrow_table()


def plain(table: pa.Table) -> list[dict[str, Any]]:
    """Rows with the values of POOLS."""
    columns = {}
    for name in table.column_names:
        column = table.column(name)
        if isinstance(column.type, pa.BaseExtensionType):
            column = pa.chunked_array([chunk.storage for chunk in column.chunks], type=column.type.storage_type)
        if pa.types.is_date32(column.type):
            column = column.cast(pa.int32())
        elif pa.types.is_timestamp(column.type):
            column = column.cast(pa.int64())
        columns[name] = column.to_pylist()
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def test_every_type_reads_as_pyiceberg_reads_it(cold: ColdTables, typed: tuple[ScanLake, int]) -> None:
    lake, newest = typed
    for sequence_number in range(1, newest + 1):
        snapshot = cold.snapshot(lake.at(), sequence_number, {})
        expected = lake.oracle(sequence_number)
        # UUIDs come out of DuckDB as text and are compared below.
        columns = [name for name in COLUMNS if name != "u"]
        found = read(cold, snapshot)
        assert rows_of(found.select(columns)) == rows_of(expected.select(columns))
        uuids = {(row["id"], row["u"]) for row in plain(expected)}
        assert {(row["id"], UUID(str(row["u"])).bytes if row["u"] else None) for row in plain(found)} == uuids
        assert snapshot.rows == expected.num_rows


# Postgres' text of a value, and a DuckDB constant of it.
def _text(name: str, value: Any) -> str:
    if name in ("k", "d", "t"):
        return {"k": TierKeyType.TIMESTAMPTZ, "d": TierKeyType.DATE, "t": TierKeyType.TIMESTAMP}[name].encode(value)
    if name == "u":
        return str(UUID(bytes=value))
    if name == "b":
        return "\\x" + value.hex()
    if name in ("f", "g") and not math.isfinite(value):
        return {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}[str(value)]
    if name == "f":
        return f"{value:.9g}"
    return {True: "t", False: "f"}[value] if name == "o" else str(value)


def _constant(name: str, value: Any) -> str:
    kind = COLUMNS[name].duckdb
    if name == "k":
        return f"make_timestamptz({value})"
    if name == "t":
        return f"make_timestamp({value})"
    if name == "d":
        return f"(DATE '1970-01-01' + ({value}))"
    if name == "b":
        return "'" + "".join(f"\\x{byte:02x}" for byte in value) + "'::BLOB"
    return "'" + _text(name, value).replace("'", "''") + f"'::{kind}"


def _holds(row: dict[str, Any], predicate: Predicate, values: list[Any]) -> bool:
    mine = row[predicate.column]
    if predicate.operator in ("is null", "is not null"):
        return (mine is None) == (predicate.operator == "is null")
    if mine is None:
        return False
    return any(_compare(_ordered(mine), predicate.operator, _ordered(value)) for value in values)


def _ordered(value: Any) -> Any:
    """NaN is above all numbers, as in Postgres."""
    return (math.isnan(value), 0.0 if math.isnan(value) else value) if isinstance(value, float) else value


def _compare(mine: Any, operator: str, other: Any) -> bool:
    return bool(
        {"=": mine == other, "in": mine == other, "<": mine < other, "<=": mine <= other, ">": mine > other, ">=": mine >= other}[operator]
    )


@st.composite
def conditions(draw: st.DrawFn) -> tuple[Predicate, list[Any]]:
    column = draw(st.sampled_from(list(COLUMNS)))
    operator = draw(st.sampled_from(["=", "<", "<=", ">", ">=", "in", "is null", "is not null"]))
    count = 0 if operator.startswith("is") else draw(st.integers(1, 3)) if operator == "in" else 1
    values = [draw(st.sampled_from(POOLS[column])) for _ in range(count)]
    return Predicate(column, operator, tuple(_text(column, value) for value in values)), values  # type: ignore[arg-type]


def _sql(predicate: Predicate, values: list[Any]) -> str:
    column = '"' + predicate.column.replace('"', '""') + '"'
    if not values:
        return f"{column} {predicate.operator}"
    constants = [_constant(predicate.column, value) for value in values]
    return f"{column} {predicate.operator} " + (f"({', '.join(constants)})" if predicate.operator == "in" else constants[0])


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(conditions(), min_size=1, max_size=3))
def test_conditions_find_the_rows_that_meet_them(
    cold: ColdTables, typed: tuple[ScanLake, int], chosen: list[tuple[Predicate, list[Any]]]
) -> None:
    """Whatever is pruned, by us or by DuckDB inside files, the rows are those that Python picks from all of PyIceberg's."""
    lake, newest = typed
    snapshot = cold.snapshot(lake.at(), newest, {})
    everything = _everything(lake, newest)
    expected = sorted(row["id"] for row in everything if all(_holds(row, predicate, values) for predicate, values in chosen))
    predicates = tuple(predicate for predicate, _ in chosen)
    found = read(cold, snapshot, predicates, " AND ".join(_sql(*condition) for condition in chosen))
    assert sorted(found.column("id").to_pylist()) == expected


_seen: dict[tuple[str, int], list[dict[str, Any]]] = {}


def _everything(lake: ScanLake, sequence_number: int) -> list[dict[str, Any]]:
    key = (lake.table.metadata_location, sequence_number)
    if key not in _seen:
        _seen[key] = plain(lake.oracle(sequence_number))
    return _seen[key]


def test_pruning_does_prune(cold: ColdTables, typed: tuple[ScanLake, int]) -> None:
    """Or the test above would pass with a pruner that keeps all."""
    lake, newest = typed
    snapshot = cold.snapshot(lake.at(), newest, {})
    by_key = cold.relation(snapshot, ["id"], [Predicate("id", "=", ("130",))])[1]
    assert 0 < len(by_key) < len(snapshot.files) / 2
    early = cold.relation(snapshot, ["id"], keys=KeyRange("k", high=-700_000 * _DAY))[1]
    assert 0 < len(early) < len(snapshot.files)
    assert not cold.relation(snapshot, ["id"], [Predicate("s", ">", ("\U0010ffff" * 2,))])[1]


def test_nothing_left_to_read_is_an_empty_relation(cold: ColdTables, typed: tuple[ScanLake, int]) -> None:
    lake, newest = typed
    found = read(cold, cold.snapshot(lake.at(), newest, {}), (Predicate("id", "=", ("100000",)),))
    assert found.num_rows == 0
    assert found.column_names == list(COLUMNS)


def _simple(folder: Path, layout: str = "none") -> ScanLake:
    return ScanLake(folder, {"id": NATIVE["int8"], "k": NATIVE["int4"], "v": NATIVE["text"]}, "k", ["id"], layout)


def _rows(ids: range, **more: pa.Array) -> pa.Table:
    base = {"id": pa.array(ids, pa.int64()), "k": pa.array(ids, pa.int32()), "v": pa.array([f"v{i}" for i in ids])}
    return pa.table(base | more)


def test_an_older_snapshot_stays_what_it_was(cold: ColdTables, tmp_path: Path) -> None:
    lake = _simple(tmp_path)
    first = lake.append(_rows(range(10)))
    at_first = lake.at()
    second = lake.append(_rows(range(10, 20)))
    third = lake.delete({lake.data_files()[0].file_path: [2, 3]})
    for location in (at_first, lake.at()):
        assert rows_of(read(cold, cold.snapshot(location, first, {}))) == rows_of(lake.oracle(first))
    for sequence_number in (second, third):
        assert rows_of(read(cold, cold.snapshot(lake.at(), sequence_number, {}))) == rows_of(lake.oracle(sequence_number))
    assert read(cold, cold.snapshot(lake.at(), third, {})).num_rows == 18


def test_files_that_were_removed_are_gone_from_then_on(cold: ColdTables, tmp_path: Path) -> None:
    """The manifest of such a commit lists the removed file as well, as deleted."""
    lake = _simple(tmp_path)
    first = lake.append(_rows(range(10)), _rows(range(100, 110)))
    lake.table.delete("id >= 100")
    second = lake.table.metadata.last_sequence_number
    third = lake.append(_rows(range(20, 25)))
    for number, count in ((second, 10), (third, 15)):
        snapshot = cold.snapshot(lake.at(), number, {})
        assert rows_of(read(cold, snapshot)) == rows_of(lake.oracle(number))
        assert snapshot.rows == count
    assert cold.snapshot(lake.at(), first, {}).rows == 20


def test_nan_is_found_above_all_numbers(cold: ColdTables, tmp_path: Path) -> None:
    """Parquet's statistics leave NaN out, so that both prunings, ours and DuckDB's, could lose the row."""
    lake = ScanLake(tmp_path, {"id": NATIVE["int8"], "k": NATIVE["int4"], "f": NATIVE["float4"], "g": NATIVE["float8"]}, "k", ["id"])
    numbers = [1.0, 2.0, math.nan]
    base = {"id": pa.array([1, 2, 3], pa.int64()), "k": pa.array([1, 2, 3], pa.int32())}
    number = lake.append(pa.table(base | {"f": pa.array(numbers, pa.float32()), "g": pa.array(numbers, pa.float64())}))
    snapshot = cold.snapshot(lake.at(), number, {})
    for column in ("f", "g"):
        for operator, value in ((">", "5"), (">=", "2.5"), ("=", "NaN")):
            predicate = Predicate(column, operator, (value,))  # type: ignore[arg-type]
            found = read(cold, snapshot, (predicate,), f"{column} {operator} '{value}'::{COLUMNS[column].duckdb}")
            assert found.column("id").to_pylist() == [3]


def test_a_snapshot_the_metadata_does_not_list_is_gone(cold: ColdTables, tmp_path: Path) -> None:
    lake = _simple(tmp_path)
    first = lake.append(_rows(range(10)))
    at_first = lake.at()
    second = lake.append(_rows(range(10, 20)))
    with pytest.raises(SnapshotGone, match=f"snapshot {second} is gone") as gone:
        cold.snapshot(at_first, second, {})
    assert gone.value.hint
    assert gone.value.facts["metadata"] == at_first
    lake.table.maintenance.expire_snapshots().by_id(lake.table.metadata.snapshots[0].snapshot_id).commit()
    with pytest.raises(SnapshotGone):
        cold.snapshot(lake.at(), first, {})
    assert cold.snapshot(lake.at(), second, {}).rows == 20


def test_a_lost_metadata_file_is_an_error_that_names_it(cold: ColdTables, tmp_path: Path) -> None:
    with pytest.raises(LakeError, match=r"nowhere\.metadata\.json"):
        cold.snapshot(f"file://{tmp_path}/nowhere.metadata.json", 1, {})


def test_before_anything_is_published_there_are_columns_and_no_rows(cold: ColdTables, tmp_path: Path) -> None:
    lake = _simple(tmp_path)
    lake.append(_rows(range(10)))
    snapshot = cold.snapshot(lake.at(), None, {})
    assert (snapshot.snapshot_id, snapshot.rows, snapshot.files) == (None, 0, ())
    assert read(cold, snapshot).num_rows == 0


def test_columns_that_changed_read_by_their_ids(cold: ColdTables, tmp_path: Path) -> None:
    """Renamed, swapped, widened, added, dropped and added again: old files keep what they have under the new names."""
    columns = {
        "id": NATIVE["int8"],
        "k": NATIVE["int4"],
        "a": NATIVE["text"],
        "b": NATIVE["text"],
        "w": NATIVE["int4"],
        "x": NATIVE["float4"],
        "n": _numeric(6, 2),
        "gone": NATIVE["text"],
    }
    lake = ScanLake(tmp_path, columns, "k", ["id"])
    old = {
        "id": pa.array([1, 2], pa.int64()),
        "k": pa.array([1, 2], pa.int32()),
        "a": pa.array(["a1", None]),
        "b": pa.array(["b1", "b2"]),
        "w": pa.array([-5, 2**31 - 1], pa.int32()),
        "x": pa.array([0.1, None], pa.float32()),
        "n": pa.array([Decimal("-1234.56"), Decimal("0.01")], pa.decimal128(6, 2)),
        "gone": pa.array(["old", "old"]),
    }
    first = lake.append(pa.table(old))
    with lake.table.update_schema(allow_incompatible_changes=True) as change:
        change.rename_column("a", "t_").rename_column("b", "a")
        change.update_column("w", LongType()).update_column("x", DoubleType()).update_column("n", DecimalType(20, 2))
        change.delete_column("gone").add_column("later", StringType())
    with lake.table.update_schema() as change:
        change.rename_column("t_", "b").add_column("gone", StringType())
    new = {
        "id": pa.array([3], pa.int64()),
        "k": pa.array([3], pa.int32()),
        "a": pa.array(["b3"]),
        "b": pa.array(["a3"]),
        "w": pa.array([2**40], pa.int64()),
        "x": pa.array([1e300], pa.float64()),
        "n": pa.array([Decimal("123456789012345678.90")], pa.decimal128(20, 2)),
        "later": pa.array(["later"]),
        "gone": pa.array(["new"]),
    }
    second = lake.append(pa.table(new))
    snapshot = cold.snapshot(lake.at(), second, {})
    found = read(cold, snapshot)
    assert rows_of(found) == rows_of(lake.oracle(second).select(found.column_names))
    assert [row["gone"] for row in sorted(found.to_pylist(), key=lambda row: row["id"])] == [None, None, "new"]
    # The old snapshot with today's columns: what a reader of an unmoved S sees after ALTER TABLE.
    older = read(cold, cold.snapshot(lake.at(), first, {})).to_pylist()
    assert [(row["a"], row["b"], row["later"], row["gone"], row["w"]) for row in older] == [
        ("b1", "a1", None, None, -5),
        ("b2", None, None, None, 2**31 - 1),
    ]
    # Bounds of the narrow type still prune, and DuckDB's own pruning takes the widened type.
    for predicate, where, ids in (
        (Predicate("w", ">", ("2147483647",)), "w > 2147483647", [3]),
        (Predicate("w", "=", ("-5",)), "w = -5", [1]),
        (Predicate("x", "=", (str(_float32(0.1)),)), f"x = {_float32(0.1)!r}::DOUBLE", [1]),
        (Predicate("n", "<", ("-1234.55",)), "n < -1234.55", [1]),
        (Predicate("later", "is null"), "later is null", [1, 2]),
        (Predicate("later", "=", ("later",)), "later = 'later'", [3]),
    ):
        assert sorted(read(cold, snapshot, (predicate,), where).column("id").to_pylist()) == ids
    assert cold.snapshot(lake.at(), first, {}).field("later").type == "string"


def test_the_same_snapshot_under_newer_columns_is_not_the_cached_one(cold: ColdTables, tmp_path: Path) -> None:
    lake = _simple(tmp_path)
    first = lake.append(_rows(range(3)))
    before = cold.snapshot(lake.at(), first, {})
    with lake.table.update_schema() as change:
        change.rename_column("v", "w")
    after = cold.snapshot(lake.at(), first, {})
    assert [field.name for field in before.fields] == ["id", "k", "v"]
    assert [field.name for field in after.fields] == ["id", "k", "w"]
    assert before.files == after.files
    with pytest.raises(NotFound, match="no column v"):
        cold.relation(after, ["v"])


@pytest.mark.parametrize("folder", ["with space", "it's", "[a]", "st*r", "100%20", "back\\slash", "ünï", "a=1"])
def test_paths_are_taken_literally(cold: ColdTables, tmp_path: Path, folder: str) -> None:
    """Neighbours that a pattern would match hold rows of their own."""
    lakes = [_simple(tmp_path / name) for name in (folder, "a", "stxr")]
    for number, lake in enumerate(lakes):
        lake.append(_rows(range(number * 100, number * 100 + 10)))
        lake.delete({lake.data_files()[0].file_path: [0]})
    assert sorted(read(cold, cold.snapshot(lakes[0].at(), 2, {})).column("id").to_pylist()) == list(range(1, 10))


def test_what_it_cannot_read_right_it_refuses(cold: ColdTables, tmp_path: Path) -> None:
    lake = _simple(tmp_path / "equality")
    first = lake.append(_rows(range(10)))
    second = lake.delete({lake.data_files()[0].file_path: [0]}, content=2)
    with pytest.raises(UnreadableSnapshot, match="equality deletes") as refused:
        cold.snapshot(lake.at(), second, {})
    assert refused.value.facts["snapshot"] == second
    assert cold.snapshot(lake.at(), first, {}).rows == 10
    mapped = _simple(tmp_path / "mapped")
    mapped.append(_rows(range(10)))
    with mapped.table.transaction() as change:
        change.set_properties({"schema.name-mapping.default": "[]"})
    with pytest.raises(UnreadableSnapshot, match="name mapping"):
        cold.snapshot(mapped.at(), 1, {})


def test_snapshots_are_read_once_and_share_manifests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from modak.scan import snapshots as module

    lake = _simple(tmp_path)
    numbers = [lake.append(_rows(range(start, start + 5))) for start in range(0, 25, 5)]
    read_paths: list[str] = []
    original = module.read_manifest

    def counted(io: Any, manifest: Any) -> Any:
        read_paths.append(manifest.manifest_path)
        return original(io, manifest)

    monkeypatch.setattr(module, "read_manifest", counted)
    cache = Snapshots(entries_max=2, files_max=1000)
    found = [cache.get(lake.at(), number, {}) for number in reversed(numbers)]
    assert [snapshot.rows for snapshot in found] == [25, 20, 15, 10, 5]
    assert len(read_paths) == len(set(read_paths)) == 5
    assert cache.get(lake.at(), numbers[0], {}) is found[-1]
    # Pushed out, read again: the same content, and no manifest is opened anew.
    again = cache.get(lake.at(), numbers[-1], {})
    assert again.files == found[0].files
    assert len(read_paths) == 5
    small = Snapshots(entries_max=8, files_max=3)
    assert [len(small.get(lake.at(), number, {}).files) for number in numbers] == [1, 2, 3, 4, 5]
