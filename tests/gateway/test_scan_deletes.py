"""Position deletes: applied to exactly their rows, at exactly their snapshot, and never lost on the way."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.scan_lake import ScanLake, rows_of

from modak.core.type_map import NATIVE
from modak.scan.engine import Engine
from modak.scan.predicate import Predicate
from modak.scan.relation import relation_sql
from modak.scan.snapshot import Snapshot
from modak.scan.table import ColdTables

COLUMNS = ["id", "k", "v"]
ROWS = 30


@pytest.fixture
def cold(tmp_path: Path) -> Iterator[ColdTables]:
    engine = Engine([], memory_limit="1GB", threads=2, temp_directory=tmp_path / "duckdb")
    yield ColdTables(engine)
    engine.close()


def _lake(folder: Path, layout: str = "none") -> ScanLake:
    return ScanLake(folder, {"id": NATIVE["int8"], "k": NATIVE["int4"], "v": NATIVE["text"]}, "k", ["id"], layout)


def _rows(start: int, count: int = ROWS) -> pa.Table:
    ids = range(start, start + count)
    return pa.table({"id": pa.array(ids, pa.int64()), "k": pa.array(ids, pa.int32()), "v": pa.array([f"v{i}" for i in ids])})


def _read(cold: ColdTables, snapshot: Snapshot, *predicates: Predicate) -> pa.Table:
    sql, _ = cold.select_sql(snapshot, COLUMNS, predicates)
    return cold.engine.cursor().execute(sql).to_arrow_table()


def _paths(lake: ScanLake) -> list[str]:
    return sorted(file.file_path for file in lake.data_files())


positions = st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=ROWS)
steps = st.lists(
    st.one_of(st.just("append"), st.tuples(st.dictionaries(st.integers(0, 5), positions, min_size=1, max_size=3), st.booleans())),
    min_size=1,
    max_size=4,
)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=steps)
def test_every_snapshot_has_its_own_rows(cold: ColdTables, tmp_path_factory: pytest.TempPathFactory, steps: list[Any]) -> None:
    """Appends and deletes in any order, one delete file per data file or one for several, rows deleted twice."""
    lake = _lake(tmp_path_factory.mktemp("lake"))
    numbers = [lake.append(_rows(0), _rows(100))]
    for place, step in enumerate(steps):
        if step == "append":
            numbers.append(lake.append(_rows(1000 * (place + 1))))
        else:
            paths = _paths(lake)
            numbers.append(lake.delete({paths[file % len(paths)]: set(rows) for file, rows in step[0].items()}, one_file=step[1]))
    location = lake.at()
    for number in numbers:
        assert rows_of(_read(cold, cold.snapshot(location, number, {}))) == rows_of(lake.oracle(number))


def test_a_large_file_alone_is_read_exactly(cold: ColdTables, tmp_path: Path) -> None:
    """It is read beside an empty one, so that DuckDB gives it all its threads: rows, deletes and rows' numbers stay the file's own."""
    count = 300_000
    lake = _lake(tmp_path / "lake")
    lake.append(_rows(0, count))
    snapshot = cold.snapshot(lake.at(), 1, {})
    assert "nothing.parquet" in cold.select_sql(snapshot, COLUMNS)[0]
    assert rows_of(_read(cold, snapshot)) == rows_of(lake.oracle(1))
    gone = range(0, count, 7)
    lake.delete({_paths(lake)[0]: list(gone)})
    after = cold.snapshot(lake.at(), 2, {})
    assert rows_of(_read(cold, after)) == rows_of(lake.oracle(2))
    numbered = cold.numbered(after, after.files, ["id"], [1_000])
    found = cold.engine.cursor().execute(f"SELECT count(*), bool_and(rid = id + 1000), min(id) FROM {numbered} AS rows").fetchone()
    assert found == (count - len(gone), True, 1)


def test_partitions_keep_their_deletes_apart(cold: ColdTables, tmp_path: Path) -> None:
    lake = _lake(tmp_path / "lake", "10")
    first = lake.append(_rows(0))
    assert len(lake.data_files()) == 3
    second = lake.delete({_paths(lake)[1]: [0, 9]})
    snapshot = cold.snapshot(lake.at(), second, {})
    assert [len(file.deletes) for file in sorted(snapshot.files, key=lambda file: file.path)] == [0, 1, 0]
    assert rows_of(_read(cold, snapshot)) == rows_of(lake.oracle(second))
    assert snapshot.rows == 28
    assert _read(cold, cold.snapshot(lake.at(), first, {})).num_rows == 30


def test_a_delete_file_of_several_data_files_is_looked_up_by_path(cold: ColdTables, tmp_path: Path) -> None:
    lake = _lake(tmp_path / "lake")
    lake.append(_rows(0), _rows(100), _rows(200))
    paths = _paths(lake)
    number = lake.delete({paths[0]: [1], paths[2]: [2, 3]}, one_file=True)
    later = lake.append(_rows(300))
    snapshot = cold.snapshot(lake.at(), later, {})
    # The last file is younger than the deletes, and so out of their reach without a look into them.
    assert sorted(len(file.deletes) for file in snapshot.files) == [0, 1, 1, 1]
    for found in (number, later):
        assert rows_of(_read(cold, cold.snapshot(lake.at(), found, {}))) == rows_of(lake.oracle(found))


def test_deletes_hold_under_conditions_counts_and_limits(cold: ColdTables, tmp_path: Path) -> None:
    lake = _lake(tmp_path / "lake")
    lake.append(_rows(0), _rows(100))
    whole, part = _paths(lake)
    number = lake.delete({whole: list(range(ROWS)), part: [5]})
    snapshot = cold.snapshot(lake.at(), number, {})
    relation, files = cold.relation(snapshot, COLUMNS)
    assert len(files) == 2
    cursor = cold.engine.cursor()
    ids = set(lake.oracle(number).column("id").to_pylist())
    assert cursor.execute(f"select count(*) from {relation} c").fetchall() == [(len(ids),)]
    assert cursor.execute(f"select min(id), max(id), count(distinct v) from {relation} c").fetchall() == [(min(ids), max(ids), len(ids))]
    assert len(cursor.execute(f"select id from {relation} c order by v limit 7").fetchall()) == 7
    for wanted in (0, 4, 5, 6, 100, 104, 105, 106):
        found = cursor.execute(f"select id from {relation} c where id = {wanted}").fetchall()
        assert found == ([(wanted,)] if wanted in ids else [])
        pruned = _read(cold, snapshot, Predicate("id", "=", (str(wanted),))).column("id").to_pylist()
        assert (wanted in pruned) == (wanted in ids)


def test_only_the_deletes_of_the_files_read_are_loaded(cold: ColdTables, tmp_path: Path) -> None:
    lake = _lake(tmp_path / "lake")
    lake.append(*[_rows(100 * place) for place in range(5)])
    number = lake.delete({path: [0] for path in _paths(lake)})
    snapshot = cold.snapshot(lake.at(), number, {})
    sql, files = cold.select_sql(snapshot, COLUMNS, [Predicate("id", "=", ("205",))])
    assert len(files) == 1
    assert cold.engine.cursor().execute("select count(*) from modak_deletes_1").fetchall() == [(1,)]
    assert cold.engine.cursor().execute(sql).to_arrow_table().num_rows == ROWS - 1
    cold.select_sql(snapshot, COLUMNS)
    assert cold.engine.cursor().execute("select count(*) from modak_deletes_1").fetchall() == [(5,)]


def test_lost_deletes_are_an_error_and_not_rows(cold: ColdTables, tmp_path: Path) -> None:
    lake = _lake(tmp_path / "lake")
    lake.append(_rows(0), _rows(100))
    number = lake.delete({path: [0] for path in _paths(lake)})
    snapshot = cold.snapshot(lake.at(), number, {})
    with pytest.raises(ValueError, match=r"Deletes\.prepare"):
        relation_sql(snapshot, snapshot.files, COLUMNS)
    sql, _ = cold.select_sql(snapshot, COLUMNS)
    cursor = cold.engine.cursor()
    cursor.execute("delete from modak_deletes_1 where number = 1")
    for query in (sql, f"select count(*) from ({sql})", f"select id from ({sql}) where id = 3"):
        with pytest.raises(duckdb.Error, match="gone from the engine"):
            cursor.execute(query).fetchall()


def test_a_transaction_older_than_the_deletes_fails(cold: ColdTables, tmp_path: Path) -> None:
    lake = _lake(tmp_path / "lake")
    lake.append(_rows(0), _rows(100))
    paths = _paths(lake)
    number = lake.delete({path: [0] for path in paths})
    snapshot = cold.snapshot(lake.at(), number, {})
    cold.select_sql(snapshot, COLUMNS, [Predicate("id", "=", ("5",))])
    early = cold.engine.cursor()
    early.execute("begin")
    early.execute("select count(*) from modak_deletes_1").fetchall()
    sql, _ = cold.select_sql(snapshot, COLUMNS)
    with pytest.raises(duckdb.Error, match="gone from the engine"):
        early.execute(sql).fetchall()


def test_deletes_go_with_their_snapshot(cold: ColdTables, tmp_path: Path) -> None:
    lake = _lake(tmp_path / "lake")
    lake.append(_rows(0))
    first = lake.delete({_paths(lake)[0]: [0]})
    second = lake.delete({_paths(lake)[0]: [1]})
    snapshots = [cold.snapshots._read(lake.table.refresh().metadata, number, lake.table.io) for number in (first, second)]
    for snapshot in snapshots:
        cold.select_sql(snapshot, COLUMNS)
    held = snapshots.pop()
    del snapshots, snapshot
    gc.collect()
    assert _read(cold, held).num_rows == ROWS - 2
    tables = cold.engine.cursor().execute("select table_name from duckdb_tables()").fetchall()
    assert tables == [("modak_deletes_2",)]


def test_threads_prepare_and_read_at_once(cold: ColdTables, tmp_path: Path) -> None:
    lake = _lake(tmp_path / "lake")
    lake.append(*[_rows(100 * place) for place in range(4)])
    numbers = [lake.delete({path: [round_]}) for round_, path in enumerate(_paths(lake))]
    location = lake.at()
    counts: list[tuple[int, int]] = []
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for start in (0, 100, 200, 300):
                _read(cold, cold.snapshot(location, number, {}), Predicate("id", ">=", (str(start),)))
            counts.append((number, _read(cold, cold.snapshot(location, number, {})).num_rows))
        except BaseException as failure:  # noqa: BLE001
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(number,)) for number in numbers * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert sorted(counts) == sorted((number, 4 * ROWS - place - 1) for place, number in enumerate(numbers) for _ in range(3))
