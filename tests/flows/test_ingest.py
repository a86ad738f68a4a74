"""History from files: all of it or nothing, by key, past the heap. T is 200, and the lake's partitions are 100 wide."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.adopting import BOTH, Loads, Row, row, run_adopt, run_fold, seam_of, shown
from tests.commands import Modak
from tests.loading import World, world
from tests.support import value

from modak.connection import Connection, connect
from modak.core.table import Name
from modak.embedded.postgres import Cluster
from modak.errors import ModakError, NotFound, Refused
from modak.jobs import ingest as ingest_module
from modak.jobs.ingest import IngestOutcome, ingest

pytestmark = [pytest.mark.spark, pytest.mark.inline]

SCHEMA = pa.schema([("id", pa.int64()), ("event_time", pa.int64()), ("val", pa.string()), ("n", pa.int32())])


@pytest.fixture(scope="module")
def tables(cluster: Cluster, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """For refusals, which change nothing."""
    with world(cluster, template, tmp_path_factory, [*BOTH, "numbered", "kept", "standing"]) as found:
        yield found


@pytest.fixture
def made(cluster: Cluster, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(cluster, template, tmp_path_factory, BOTH) as found:
        yield found


@pytest.fixture
def connection(made: World) -> Iterator[Connection]:
    with connect(made.dsn, autocommit=True) as opened:
        yield opened


def parquet(path: Path, *rows: Row, schema: pa.Schema = SCHEMA, **options: Any) -> str:
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), path, **options)
    return str(path)


def jsonl(path: Path, *rows: Row) -> str:
    path.write_text("".join(f"{json.dumps(one)}\n" for one in rows))
    return str(path)


def run(made: World, table: str, *places: str, kind: str = "parquet", split: bool = False) -> IngestOutcome:
    with made.app.job(Name("public", table)) as job:
        return ingest(job, places, kind, split=split)


@pytest.mark.parametrize("table", BOTH)
def test_files_come_in_with_one_commit(made: World, connection: Connection, table: str, tmp_path: Path) -> None:
    before, (line, snapshot) = shown(connection, table), seam_of(connection, table)
    files = [
        parquet(tmp_path / "a.parquet", row(10, 10, "ten"), row(1, 10, "anew")),
        parquet(tmp_path / "b.parquet", row(11, 110, "eleven"), row(12, 120, None)),
    ]
    outcome = run(made, table, *files)
    assert (outcome.sources, outcome.rows, outcome.rows_replaced, outcome.corrections) == (2, 4, 1, 0)
    assert seam_of(connection, table) == (line, outcome.snapshot)
    assert outcome.snapshot != snapshot
    assert value(connection, "select count(*) from modak.delta") == 0
    assert shown(connection, table) == before | {10: (10, "ten"), 1: (10, "anew"), 11: (110, "eleven"), 12: (120, None)}
    assert value(connection, "select op_kind || ' ' || phase from modak.op_log order by started_at desc limit 1") == "ingest advanced"
    again = run(made, table, *files)
    assert (again.rows, again.rows_replaced) == (4, 4)
    assert shown(connection, table) == before | {10: (10, "ten"), 1: (10, "anew"), 11: (110, "eleven"), 12: (120, None)}


def test_a_folder_and_a_pattern(made: World, connection: Connection, tmp_path: Path) -> None:
    folder = tmp_path / "in [it], 'quoted' & 100%"
    (folder / "deeper").mkdir(parents=True)
    parquet(folder / "a.parquet", row(10, 10))
    parquet(folder / "deeper" / "b.parquet", row(11, 20))
    (folder / "notes.txt").write_text("not a row")
    assert run(made, "pairs", str(folder)).rows == 2
    parquet(tmp_path / "c1.parquet", row(12, 30))
    parquet(tmp_path / "c2.parquet", row(13, 40))
    assert run(made, "pairs", str(tmp_path / "c*.parquet")).rows == 2
    assert {10, 11, 12, 13} <= shown(connection, "pairs").keys()


def test_json_lines_are_cut_along_the_partitions(
    made: World, connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest_module, "PIECE_BYTES", 100)
    rows = [row(100 + number, number, f"text \n {number}") for number in range(0, 200, 7)]
    outcome = run(made, "pairs", jsonl(tmp_path / "a.jsonl", *rows), kind="jsonl", split=True)
    assert (outcome.rows, outcome.files > 2) == (len(rows), True)
    found = shown(connection, "pairs")
    assert all(found[one["id"]] == (one["event_time"], one["val"]) for one in rows)


@pytest.mark.parametrize("table", BOTH)
def test_corrections_that_are_older_give_way(made: World, connection: Connection, table: str, tmp_path: Path) -> None:
    before = shown(connection, table)
    connection.execute(f"update public.{table} set val = 'corrected' where id = 1")
    connection.execute(f"delete from public.{table} where id = 2")
    connection.execute(f"insert into public.{table} values (50, 50, 'spilled', 1)")
    path = parquet(tmp_path / "a.parquet", row(1, 10, "file"), row(2, 20, "file"), row(50, 50, "file"))
    assert run(made, table, path).corrections == 3
    expected = before | {1: (10, "file"), 2: (20, "file"), 50: (50, "file")}
    assert shown(connection, table) == expected
    connection.execute(f"update public.{table} set val = 'again' where id = 1")
    run_fold(made.app, table)
    assert shown(connection, table) == expected | {1: (10, "again")}
    assert value(connection, f"select count(*) from public.{table}_hot where event_time < 200") == 0


@pytest.mark.parametrize(("table", "place"), [("pairs", 50), ("events", 120)])
def test_late_rows_that_must_stay_refuse_their_keys(made: World, connection: Connection, table: str, place: int, tmp_path: Path) -> None:
    """Their copies in the heap would not be what the lake says; for the key without its tier key wherever it lies."""
    connection.execute(f"insert into public.{table} values (50, 50, 'spilled', 1)")
    connection.execute(f"create table public.child (id bigint, at bigint, foreign key (id, at) references public.{table}_hot)")
    path = parquet(tmp_path / "a.parquet", row(50, place, "file"))
    for _ in range(2):
        with pytest.raises(Refused, match=f"late rows stay in public.{table}_spill"):
            run(made, table, path)
        assert shown(connection, table)[50] == (50, "spilled")
        run_fold(made.app, table)
    assert run(made, table, parquet(tmp_path / "b.parquet", row(51, 80, "file"))).rows == 1
    assert shown(connection, table)[51] == (80, "file")
    connection.execute(f"update public.{table} set val = 'still written' where id = 50")
    assert shown(connection, table)[50] == (50, "still written")


def test_a_staged_load_that_is_newer_comes_in_over_it(made: World, connection: Connection, tmp_path: Path) -> None:
    Loads(made, "pairs").stage(row(10, 10, "loaded"))
    run(made, "pairs", parquet(tmp_path / "a.parquet", row(10, 10, "file"), row(11, 11, "file")))
    run_adopt(made.app, "pairs")
    found = shown(connection, "pairs")
    assert (found[10], found[11]) == ((10, "loaded"), (11, "file"))


def broken(path: Path) -> str:
    path.write_bytes(b"PAR1 this is no Parquet PAR1")
    return str(path)


OTHER = pa.schema([("id", pa.int64()), ("event_time", pa.int64()), ("strange", pa.string()), ("n", pa.int32())])
TEXT = pa.schema([("id", pa.string()), ("event_time", pa.int64()), ("val", pa.string()), ("n", pa.int32())])
STRANGE = {"id": 1, "event_time": 1, "strange": "x", "n": 1}
REFUSALS: dict[str, tuple[Any, str]] = {
    "a row at T": (lambda path: parquet(path, row(10, 10), row(11, 200)), r"line 2: event_time = 200 is not below the cut-line"),
    "no tier key": (lambda path: parquet(path, row(10, None)), r"line 1: key column \"event_time\" is null"),  # type: ignore[arg-type]
    "two partitions in a file": (lambda path: parquet(path, row(10, 10), row(11, 110)), r"rows of 2 partitions"),
    "a key twice": (lambda path: parquet(path, row(10, 10), row(11, 10), row(10, 10, "again")), r"two rows have the key"),
    "an unknown column": (
        lambda path: parquet(path, {"id": 1, "event_time": 1, "strange": "x", "n": 1}, schema=OTHER),
        r"no column \"strange\"",
    ),
    "a value of another type": (lambda path: parquet(path, {**row(10, 10), "id": "ten"}, schema=TEXT), r"column \"id\""),
    "no Parquet": (broken, r"bad\.parquet is no Parquet file that can be read"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_file_that_is_refused_refuses_all(tables: World, case: str, tmp_path: Path) -> None:
    make_file, message = REFUSALS[case]
    good, bad = parquet(tmp_path / "good.parquet", row(70, 70)), make_file(tmp_path / "bad.parquet")
    with connect(tables.dsn, autocommit=True) as connection:
        before, seam = shown(connection, "pairs"), seam_of(connection, "pairs")
        with pytest.raises(ModakError, match=message):
            run(tables, "pairs", good, bad)
        assert (shown(connection, "pairs"), seam_of(connection, "pairs")) == (before, seam)
        assert value(connection, "select count(*) from pg_class where relname like 'incoming%%'") == 0


def test_a_row_below_the_retention_line(made: World, connection: Connection, tmp_path: Path) -> None:
    connection.execute("update modak.cutline set retention_line = 50")
    with pytest.raises(Refused, match="below the retention line"):
        run(made, "pairs", parquet(tmp_path / "a.parquet", row(10, 60), row(11, 40)))
    assert run(made, "pairs", parquet(tmp_path / "b.parquet", row(10, 60))).rows == 1


def test_json_says_the_line_of_the_file(made: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest_module, "PIECE_BYTES", 64)
    rows = [row(100 + number, number) for number in range(30)]
    rows[20]["event_time"] = 777
    with pytest.raises(Refused, match="line 21: event_time = 777"):
        run(made, "pairs", jsonl(tmp_path / "a.jsonl", *rows), kind="jsonl", split=True)


def test_columns_that_only_the_heap_can_fill(made: World, connection: Connection, tmp_path: Path) -> None:
    """n has a default, val has none."""
    bare = pa.schema([("id", pa.int64()), ("event_time", pa.int64()), ("val", pa.string())])
    with pytest.raises(Refused, match=r"column \"n\" of public.pairs has a default"):
        run(made, "pairs", parquet(tmp_path / "a.parquet", {"id": 1, "event_time": 1, "val": "x"}, schema=bare))
    short = pa.schema([("id", pa.int64()), ("event_time", pa.int64()), ("n", pa.int32())])
    run(made, "pairs", parquet(tmp_path / "b.parquet", {"id": 1, "event_time": 1, "n": 1}, schema=short))
    assert value(connection, "select val is null from public.pairs where id = 1 and event_time = 1")


@pytest.mark.parametrize(
    ("table", "reason"), [("numbered", "only the heap makes"), ("kept", "keeps its heap"), ("standing", "not dropped yet")]
)
def test_tables_that_take_no_files(tables: World, table: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=reason):
        run(tables, table, parquet(tmp_path / "a.parquet", row(10, 10)))


def test_no_file_is_said(tables: World, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"nothing\.parquet"):
        run(tables, "pairs", str(tmp_path / "nothing.parquet"))


@pytest.mark.parametrize("kind", ["--file", "--jsonl"])
def test_a_pattern_that_the_shell_wrote_out(made: World, modak: Modak, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str) -> None:
    """Files behind the first are of its kind."""
    monkeypatch.setenv("MODAK_DATA", str(made.app.settings.data))
    write, ending = (parquet, "parquet") if kind == "--file" else (jsonl, "jsonl")
    one, two, three = (write(tmp_path / f"{number}.{ending}", row(10 + number, 10 + number)) for number in range(3))
    done = modak("--dsn", made.dsn, "ingest", "public.pairs", kind, one, two, three, "--json").json
    assert (done[0]["sources"], done[0]["rows"]) == (3, 3)
    again = modak("--dsn", made.dsn, "ingest", "public.pairs", kind, one, kind, two, three, "--split", "--json").json
    assert (again[0]["sources"], again[0]["rows_replaced"]) == (3, 3)
    for wrong in ([one, two], ["--file", one, "--jsonl", two, three]):
        assert "either with --file or with --jsonl" in modak("--dsn", made.dsn, "ingest", "public.pairs", *wrong, code=2).err


def test_a_split_of_large_files(made: World, connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest_module, "PIECE_ROWS", 50)
    rows = [row(1000 + number, number % 200, f"{number}") for number in range(400)]
    outcome = run(made, "pairs", parquet(tmp_path / "a.parquet", *rows, row_group_size=30), split=True)
    assert outcome.rows == 400
    found = shown(connection, "pairs")
    assert all(found[one["id"]] == (one["event_time"], one["val"]) for one in rows)
