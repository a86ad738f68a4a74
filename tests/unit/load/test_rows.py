"""Rows as chunks of COPY text, and their digest."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modak.load.arrow_columns import texts_of_array
from modak.load.columns import content
from modak.load.errors import LoadRejected
from modak.load.request import COLUMN_SETS_MAX
from modak.load.rows import Chunk, ColumnSets, Digest, Source
from modak.load.values import PLAIN, Form

KNOWN = {"id": Form(), "t": Form(), "f": Form(is_number=True), "j": Form("json"), "u": Form("uuid"), "a": Form("array", element=PLAIN)}


def column_sets(known: dict[str, Form] = KNOWN) -> ColumnSets:
    return ColumnSets(known, lambda name, line: LoadRejected(f"no column {name}", line=line, column=str(name)), ("id",))


def chunks(rows: Any, sets: ColumnSets | None = None) -> list[Chunk]:
    return list(Source(rows, 10**9).chunks(sets or column_sets()))


def lines(rows: Any) -> list[list[str | None]]:
    """What Postgres reads: the fields of every line, unescaped."""
    text = b"".join(content(chunk.lines).to_pybytes() for chunk in chunks(rows)).decode()
    assert text == "" or text.endswith("\n")
    return [[_unescaped(field) for field in line.split("\t")] for line in text.split("\n")[:-1]]


def _unescaped(field: str) -> str | None:
    if field == "\\N":
        return None
    parts: list[str] = []
    characters = iter(field)
    for one in characters:
        parts.append({"n": "\n", "t": "\t", "r": "\r"}.get(after := next(characters), after) if one == "\\" else one)
    return "".join(parts)


def digest(rows: Any) -> str:
    sets, made = column_sets(), Digest()
    for chunk in Source(rows, 10**9).chunks(sets):
        made.add(chunk, sets.sets)
    return made.text()


def row(number: int) -> dict[str, Any]:
    return {"id": number, "t": f"text {number}", "f": number / 3, "j": {"k": number}}


@given(st.lists(st.tuples(st.integers(), st.none() | st.text(st.characters(exclude_categories=["Cs"]))), max_size=20))
def test_texts_come_back_as_they_were(values: list[tuple[int, str | None]]) -> None:
    rows = [{"id": number, "t": text} for number, text in values]
    assert lines(rows) == [[str(number), text] for number, text in values]


def test_columns_of_mixed_kinds_are_the_texts_of_their_values() -> None:
    values = [1, None, 1.5, True, "x", Decimal("2.50"), datetime.date(2026, 1, 1), 2**80, b"\x01"]
    found = lines([{"id": 1, "t": value} for value in values])
    assert [line[1] for line in found] == ["1", None, "1.5", "true", "x", "2.50", "2026-01-01", str(2**80), "\\x01"]
    # A float beside an integer makes no float of it, and a float for a text is what Python and JSON print.
    assert [line[1] for line in lines([{"id": 1, "t": 1e13}])] == ["10000000000000.0"]
    assert [line[1] for line in lines([{"id": 1, "f": 2**60}, {"id": 2, "f": 0.5}])] == [str(2**60), "0.5"]


def test_rows_of_other_columns_share_a_chunk() -> None:
    sets = column_sets()
    (chunk,) = chunks([{"id": 1}, {"id": 2, "t": "x"}, {"t": None, "id": 3}, {"id": 4, "f": 1}], sets)
    assert chunk.columns == ("id", "t", "f")
    assert sets.sets == [("id",), ("id", "t"), ("id", "f")]
    assert chunk.sets.to_pylist() == [0, 1, 1, 2]  # type: ignore[union-attr]
    assert content(chunk.lines).to_pybytes() == b"1\t\\N\t\\N\n2\tx\t\\N\n3\t\\N\t\\N\n4\t\\N\t1\n"
    assert chunk.numbered().to_pybytes().splitlines()[1] == b"2\t1\t2\tx\t\\N"
    assert chunk.part(1, 2, ["t"]).to_pybytes() == b"2\t1\tx\n"
    assert chunk.value(1, "t") == "x"


def test_the_same_number_of_other_columns_is_noticed() -> None:
    sets = column_sets()
    (chunk,) = chunks([{"id": 1, "t": "x"}, {"id": 2, "f": 1}], sets)
    assert chunk.columns == ("id", "t", "f")


def test_chunks_are_numbered_through() -> None:
    found = chunks([row(number) for number in range(5000)])
    assert [chunk.first_line for chunk in found] == [1, 21, 2021, 4021]
    assert sum(chunk.count for chunk in found) == 5000


def test_large_rows_come_a_few_at_a_time() -> None:
    taken: list[int] = []

    def supply() -> Iterator[dict[str, Any]]:
        for number in range(1000):
            taken.append(number)
            yield {"id": number, "t": "x" * 2_000_000}

    supplied = Source(supply(), 10**9).chunks(column_sets())
    next(supplied)
    before = len(taken)
    next(supplied)
    assert len(taken) - before < 20


def test_an_iterator_is_read_as_it_is_needed() -> None:
    taken: list[int] = []
    supplied = Source((taken.append(number) or row(number) for number in range(100_000)), 10**9).chunks(column_sets())
    for _ in range(3):
        next(supplied)
    assert len(taken) < 5000


@pytest.mark.parametrize("mixed", [False, True])
def test_the_digest_is_of_the_rows_and_not_of_how_they_came(mixed: bool) -> None:
    rows = [row(number) if not mixed or number % 7 else {"id": number} for number in range(5000)]
    assert digest(rows) == digest(iter(rows)) == digest(tuple(rows))
    assert digest([dict(reversed(one.items())) for one in rows]) == digest(rows)
    changed = [[*rows[:-1], {**rows[-1], "id": 5}], rows[:-1], list(reversed(rows)), [*rows, row(1)]]
    assert digest(rows) not in [digest(other) for other in changed]
    assert digest([{"id": 1, "t": None}]) != digest([{"id": 1}])
    assert digest([{"id": 1, "t": "\\N"}]) != digest([{"id": 1, "t": None}])


def test_the_digest_of_arrow_is_not_of_its_batches() -> None:
    table = pa.table({"id": range(1000), "t": [f"x{number}" for number in range(1000)]})
    reader = pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=77))
    assert digest(table) == digest(reader)
    assert digest(table) == digest(table.combine_chunks().to_batches()[0])


def test_too_many_rows_or_sets_are_refused() -> None:
    with pytest.raises(LoadRejected, match="3 rows at most"):
        list(Source([row(number) for number in range(4)], 3).chunks(column_sets()))
    names = {"id": Form(), **{f"c{number}": Form() for number in range(COLUMN_SETS_MAX + 1)}}
    with pytest.raises(LoadRejected, match="different sets of columns"):
        chunks([{"id": 1, f"c{number}": 1} for number in range(COLUMN_SETS_MAX + 1)], column_sets(names))


def test_an_iterator_cannot_be_read_twice() -> None:
    source = Source(iter([row(1)]), 10)
    assert not source.replayable
    list(source.chunks(column_sets()))
    with pytest.raises(AssertionError):
        list(source.chunks(column_sets()))


def test_a_deep_value_is_refused_by_name() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(LoadRejected, match="nested too deep") as refused:
        chunks([row(1), {**row(2), "j": deep}])
    assert (refused.value.line, refused.value.column) == (2, "j")


ARROW: list[tuple[pa.Array, Sequence[str | None]]] = [
    (pa.array([1, None, -5], pa.int8()), ["1", None, "-5"]),
    (pa.array([2**64 - 1], pa.uint64()), [str(2**64 - 1)]),
    (pa.array([True, None]), ["true", None]),
    (pa.array([1.5, float("nan"), float("-inf")]), ["1.5", "nan", "-inf"]),
    (pa.array([1.5], pa.float16()), ["1.5"]),
    (pa.array([0.1], pa.float32()), ["0.1"]),
    (pa.array(["a\tb\\", None, ""]), ["a\\tb\\\\", None, ""]),
    (pa.array(["x"], pa.large_string()), ["x"]),
    (pa.array(["x", "y"], pa.string_view()), ["x", "y"]),
    (pa.array(["x", "y", "x"]).dictionary_encode(), ["x", "y", "x"]),
    (pa.array([Decimal("1.50")], pa.decimal128(10, 2)), ["1.50"]),
    (pa.array([0, None, -719163, 2932897], pa.date32()), ["1970-01-01", None, "0001-12-31 BC", "10000-01-01"]),
    (pa.array([86_400_000], pa.date64()), ["1970-01-02"]),
    (pa.array([1_500_000], pa.timestamp("us")), ["1970-01-01 00:00:01.500000"]),
    (pa.array([1], pa.timestamp("s", "Asia/Kathmandu")), ["1970-01-01 00:00:01.000000Z"]),
    (pa.array([-62_135_596_800_000_001, None], pa.timestamp("us", "UTC")), ["0001-12-31 23:59:59.999999+00 BC", None]),
    (pa.array([3_723_000_004], pa.time64("us")), ["01:02:03.000004"]),
    (pa.array([90], pa.duration("s")), ["90000000 microseconds"]),
    (pa.array([pa.MonthDayNano([1, -2, 3000])]), ["1 months -2 days 3 microseconds"]),
    (pa.array([b"\x01\xff", None]), ["\\\\x01ff", None]),
    (pa.array([[1, None], []]), ['{"1",NULL}', "{}"]),
    (pa.nulls(2), [None, None]),
]  # fmt: skip


@pytest.mark.parametrize(("values", "texts"), ARROW, ids=[str(values.type) for values, _ in ARROW])
def test_arrow_columns_are_texts(values: pa.Array, texts: Sequence[str | None]) -> None:
    form = KNOWN["a"] if pa.types.is_list(values.type) else PLAIN
    assert texts_of_array(values, form, "c", 1).to_pylist() == texts
    # A slice does not see its neighbours.
    assert texts_of_array(values.slice(len(values) - 1), form, "c", 1).to_pylist() == texts[-1:]


def test_arrow_structs_are_json_and_bytes_are_uuids_where_the_column_is() -> None:
    assert texts_of_array(pa.array([{"a": 1}]), KNOWN["j"], "j", 1).to_pylist() == ['{"a":1}']
    assert texts_of_array(pa.array(['{"a": 1}']), KNOWN["j"], "j", 1).to_pylist() == ['{"a": 1}']
    assert texts_of_array(pa.array([bytes(16)], pa.binary(16)), KNOWN["u"], "u", 1).to_pylist() == ["0" * 32]


@pytest.mark.parametrize(
    "values", [pa.array([0, 1_000, 1], pa.timestamp("ns")), pa.array([0, 0, 1], pa.time64("ns")), pa.array([0, 0, 1], pa.duration("ns"))]
)
def test_arrow_values_that_would_lose_something_are_refused(values: pa.Array) -> None:
    with pytest.raises(LoadRejected) as refused:
        texts_of_array(values, PLAIN, "c", 10)
    assert (refused.value.line, refused.value.column) == (12, "c")


def test_arrow_columns_stand_once() -> None:
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["id", "id"])
    with pytest.raises(LoadRejected, match="stands twice"):
        chunks(twice)
