"""DataRow messages against a naive encoder, and binary values against psycopg's readers and writers."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import random
import struct
import uuid
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import psycopg
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq import Format

from modak.errors import ModakError, ValueRefused
from modak.gateway.wire import messages as m
from modak.gateway.wire import rows
from modak.gateway.wire.rows import TEXT, ColumnFormat, Unsupported, encode, encode_text

Cell = bytes | None


def naive(columns: Sequence[Sequence[Cell]]) -> bytes:
    found = b""
    for row in zip(*columns, strict=True):
        body = struct.pack("!H", len(row))
        for cell in row:
            body += struct.pack("!i", -1) if cell is None else struct.pack("!i", len(cell)) + cell
        found += b"D" + struct.pack("!I", len(body) + 4) + body
    return found


def raw(column: Any) -> list[Cell]:
    return [value.encode() if isinstance(value, str) else value for value in column.to_pylist()]


def batch_of(*columns: Any) -> Any:
    return pa.record_batch(list(columns), names=[f"c{at}" for at in range(len(columns))])


def decoded(data: memoryview) -> list[tuple[Cell, ...]]:
    decoder = m.Decoder(1 << 30)
    decoder.feed(data)
    found = []
    while message := decoder.next():
        found.append(m.parse_data_row(message))
    assert decoder.buffered == 0
    return found


def sent(column: Any, pg_type: str) -> list[Cell]:
    """One column in binary. Alone and between others, as a column alone takes a shorter way; and with a slice's offset."""
    form = ColumnFormat(pg_type)
    alone = [row[0] for row in decoded(encode(batch_of(column), [form]))]
    beside = pa.array([f"<{at}>" for at in range(len(column))], type=pa.string())
    between = decoded(encode(batch_of(beside, column, beside), [TEXT, form, TEXT]))
    assert between == [(b"<%d>" % at, cell, b"<%d>" % at) for at, cell in enumerate(alone)]
    shifted = pa.concat_arrays([column.slice(0, 1), column, column.slice(0, 1)]).slice(1, len(column))
    assert [row[0] for row in decoded(encode(batch_of(shifted), [form]))] == alone
    return alone


def loaded(cells: list[Cell], pg_type: str) -> list[Any]:
    """What psycopg reads out of the binary form."""
    found = psycopg.adapters.types[pg_type]
    loader = Transformer().get_loader(found.oid, Format.BINARY)
    return [None if cell is None else loader.load(cell) for cell in cells]


def dumped(value: Any) -> bytes:
    """What psycopg would send."""
    found = Transformer().get_dumper(value, PyFormat.BINARY).dump(value)
    assert found is not None
    return bytes(found)


def from_duckdb(sql: str) -> Any:
    with duckdb.connect() as connection:
        (batch,) = connection.sql(sql).to_arrow_table().combine_chunks().to_batches()
    return batch


# --- text

LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "string": lambda column: column,
    "large_string": lambda column: column.cast(pa.large_string()),
    "string_view": lambda column: column.cast(pa.string_view()),
    "binary": lambda column: column.cast(pa.binary()),
    "large_binary": lambda column: column.cast(pa.large_binary()),
    "binary_view": lambda column: column.cast(pa.binary()).cast(pa.binary_view()),
    "dictionary": lambda column: column.dictionary_encode(),
}
string_columns = st.lists(st.none() | st.text(max_size=12), min_size=1, max_size=8)


@settings(max_examples=150, deadline=None)
@given(st.lists(string_columns, min_size=1, max_size=5), st.lists(st.sampled_from(sorted(LAYOUTS)), min_size=5, max_size=5), st.data())
def test_text_equals_the_naive_encoder(columns: list[list[str | None]], layouts: list[str], data: st.DataObject) -> None:
    count = data.draw(st.sampled_from([0, 1, 7, 64, 65, 200]))
    arrays = [
        LAYOUTS[layout](pa.array([values[at % len(values)] for at in range(count + 5)], type=pa.string()))
        for values, layout in zip(columns, layouts, strict=False)
    ]
    start = data.draw(st.integers(0, 5))
    batch = batch_of(*arrays).slice(start, count)
    assert bytes(encode_text(batch)) == naive([raw(column) for column in batch.columns])


def test_a_batch_of_many_blocks() -> None:
    chance = random.Random(7)

    def value() -> str | None:
        return chance.choice([None, "", "é" * chance.randrange(9), "x" * chance.randrange(40)])

    columns = [pa.array([value() for _ in range(20_000)], type=pa.string()) for _ in range(3)]
    batch = batch_of(*columns)
    assert bytes(encode_text(batch)) == naive([raw(column) for column in columns])
    portions = list(rows.blocks(batch, [TEXT] * 3))
    assert len(portions) > 2
    assert b"".join(portions) == bytes(encode_text(batch))


def test_the_slot_of_a_null_may_hold_bytes() -> None:
    """As Arrow allows; a filter that only clears validity bits leaves such."""
    column = pa.Array.from_buffers(
        pa.string(), 100, [pa.py_buffer(b"\xaa" * 13), pa.py_buffer(np.arange(0, 303, 3, dtype=np.int32)), pa.py_buffer(b"abc" * 100)]
    )
    assert column.null_count == 50
    for layout in LAYOUTS:
        changed = LAYOUTS[layout](column)
        assert bytes(encode_text(batch_of(changed, changed))) == naive([raw(column), raw(column)]), layout


def test_large_strings_beyond_32_bits_of_offset() -> None:
    """Nothing is allocated for the part before: the offsets only claim that it is there."""
    data = np.empty(2**31 + 300, dtype=np.uint8)
    data[2**31 :] = np.frombuffer(b"xyz" * 100, dtype=np.uint8)
    offsets = np.arange(2**31, 2**31 + 303, 3, dtype=np.int64)
    column = pa.Array.from_buffers(pa.large_string(), 100, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    assert bytes(encode_text(batch_of(column))) == naive([[b"xyz"] * 100])


def test_blocks_are_cut_by_bytes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "_BLOCK_BYTES", 10_000)
    column = pa.array(["x" * 900] * 100)
    portions = list(rows.blocks(batch_of(column), [TEXT]))
    assert max(map(len, portions)) <= 12_000
    assert b"".join(portions) == naive([raw(column)])


def test_a_row_beyond_all_bounds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "_BLOCK_BYTES", 500)
    monkeypatch.setattr(rows, "_ROW_BYTES_MAX", 1000)
    with pytest.raises(rows.RowTooLarge) as refused:
        encode_text(batch_of(pa.array(["small", "x" * 2000])))
    assert refused.value.sqlstate == "54000"


@pytest.mark.parametrize("count", [0, 3, 100])
def test_no_columns_are_rows_all_the_same(count: int) -> None:
    batch = batch_of(pa.array(["x"] * count, type=pa.string())).select([])
    assert bytes(encode_text(batch)) == b"D\0\0\0\x06\0\0" * count


@pytest.mark.parametrize("pg_type", sorted(rows.BINARY_TYPES))
def test_an_empty_batch_is_nothing(pg_type: str) -> None:
    assert bytes(encode(batch_of(pa.array([], type=pa.string())), [ColumnFormat(pg_type)])) == b""


@pytest.mark.parametrize("count", [1, 100])
def test_columns_without_a_type_are_null(count: int) -> None:
    assert bytes(encode_text(batch_of(pa.nulls(count)))) == naive([[None] * count])


@pytest.mark.parametrize("count", [1, 100])
def test_text_wants_strings(count: int) -> None:
    with pytest.raises(Unsupported, match="not a column of strings"):
        encode_text(batch_of(pa.array([1] * count)))


def test_each_column_has_a_format() -> None:
    with pytest.raises(ValueError, match="1 columns and 2 formats"):
        encode(batch_of(pa.array(["x"])), [TEXT, TEXT])


def test_a_wide_row() -> None:
    columns = [pa.array([str(at)] * 70) for at in range(1600)]
    assert bytes(encode_text(batch_of(*columns))) == naive([raw(column) for column in columns])


def test_the_answer_fits_every_writer() -> None:
    for batch in (batch_of(pa.array(["é"] * 70)), batch_of(pa.array(["é"])), batch_of(pa.array([], type=pa.string()))):
        found = encode_text(batch)
        assert (found.format, found.ndim, found.contiguous, found.nbytes) == ("B", 1, True, len(found))
    assert encode(batch_of(pa.array([1])), [ColumnFormat("int8")]).format == "B"


# --- binary

UUIDS = [uuid.UUID(int=0), None, uuid.UUID("f81d4fae-7dec-11d0-a765-00a0c91e6bf6"), uuid.UUID(int=2**128 - 1)]
TIMESTAMPS = [
    dt.datetime(1, 1, 1),
    None,
    dt.datetime(1999, 12, 31, 23, 59, 59, 999999),
    dt.datetime(2000, 1, 1),
    dt.datetime(2024, 2, 29, 12, 30, 15, 123456),
    dt.datetime(9999, 12, 31, 23, 59, 59, 999999),
]
DATES = [dt.date(1, 1, 1), None, dt.date(1999, 12, 31), dt.date(2000, 1, 1), dt.date(9999, 12, 31)]
CASES: list[tuple[str, pa.DataType, list[Any]]] = [
    ("bool", pa.bool_(), [True, None, False, True, True, False, None, False, True, True]),
    ("int2", pa.int16(), [0, None, -(2**15), 2**15 - 1]),
    ("int4", pa.int32(), [0, None, -(2**31), 2**31 - 1]),
    ("int8", pa.int64(), [0, None, -(2**63), 2**63 - 1]),
    ("oid", pa.uint32(), [0, None, 2**32 - 1]),
    ("float4", pa.float32(), [0.0, None, -1.5, float("inf"), 2.0**-149]),
    ("float8", pa.float64(), [0.0, None, -0.1, float("-inf"), 5e-324]),
    ("text", pa.string(), ["", None, "é€", "x" * 300]),
    ("varchar", pa.large_string(), ["", None, "é€"]),
    ("bpchar", pa.string(), ["ab  ", None]),
    ("name", pa.string(), ["pg_class", None]),
    ("bytea", pa.binary(), [b"", None, b"\0\xff" * 9]),
    ("date", pa.date32(), DATES),
    ("timestamp", pa.timestamp("us"), TIMESTAMPS),
    ("time", pa.time64("us"), [dt.time(0), None, dt.time(23, 59, 59, 999999)]),
    ("uuid", pa.string(), [value and str(value) for value in UUIDS]),
    ("uuid", pa.binary(16), [value and value.bytes for value in UUIDS]),
    ("numeric", pa.decimal128(6, 2), [Decimal("0.00"), None, Decimal("-1234.50"), Decimal("0.01"), Decimal("9999.99")]),
    ("numeric", pa.int64(), [0, None, -(2**63), 2**63 - 1, 10_000, 100_000_000]),
]


def as_uuid(value: str | bytes | None) -> uuid.UUID | None:
    return uuid.UUID(bytes=value) if isinstance(value, bytes) else uuid.UUID(value) if value else None


@pytest.mark.parametrize(("pg_type", "arrow", "values"), CASES, ids=lambda case: str(case) if isinstance(case, str | pa.DataType) else "")
@pytest.mark.parametrize("nulls", [True, False])
def test_psycopg_reads_the_value_back(pg_type: str, arrow: pa.DataType, values: list[Any], nulls: bool) -> None:
    values = values if nulls else [value for value in values if value is not None]
    wanted = [as_uuid(value) for value in values] if pg_type == "uuid" else values
    assert loaded(sent(pa.array(values, type=arrow), pg_type), pg_type) == wanted


@pytest.mark.parametrize(("pg_type", "arrow", "values"), CASES, ids=lambda case: str(case) if isinstance(case, str | pa.DataType) else "")
def test_null_alone(pg_type: str, arrow: pa.DataType, values: list[Any]) -> None:
    assert sent(pa.nulls(70, arrow), pg_type) == [None] * 70


def test_psycopg_would_send_the_same() -> None:
    def same(column: Any, pg_type: str, values: list[Any]) -> None:
        assert sent(column, pg_type) == [None if value is None else dumped(value) for value in values], pg_type

    same(pa.array(TIMESTAMPS, pa.timestamp("us")), "timestamp", TIMESTAMPS)
    same(pa.array(DATES, pa.date32()), "date", DATES)
    same(pa.array([str(UUIDS[2])]), "uuid", [UUIDS[2]])
    same(pa.array([dt.time(1, 2, 3, 4)]), "time", [dt.time(1, 2, 3, 4)])
    same(pa.array([1.5]), "float8", [1.5])
    same(pa.array([True, None]), "bool", [True, None])
    same(pa.array([Decimal("-12.345"), Decimal("1200.000")]), "numeric", [Decimal("-12.345"), Decimal("1200.000")])


def test_timestamptz_is_an_instant() -> None:
    values = [dt.datetime(2024, 7, 1, 12, tzinfo=dt.UTC), None, dt.datetime(1969, 12, 31, 23, tzinfo=dt.UTC)]
    for zone in ("UTC", "Europe/Madrid"):
        assert loaded(sent(pa.array(values, pa.timestamp("us", zone)), "timestamptz"), "timestamptz") == values


def test_json_and_jsonb() -> None:
    text = ['{"a": "é"}', None, "[]", ""]
    column = pa.array(text)
    assert sent(column, "json") == [value if value is None else value.encode() for value in text]
    assert sent(column, "jsonb") == [value if value is None else b"\x01" + value.encode() for value in text]
    assert loaded(sent(column, "jsonb")[:3], "jsonb") == [json.loads(text[0] or ""), None, []]


def test_not_a_number_stays_one() -> None:
    (single,) = loaded(sent(pa.array([float("nan")], pa.float32()), "float4"), "float4")
    (double,) = loaded(sent(pa.array([float("nan")]), "float8"), "float8")
    assert single != single
    assert double != double


def test_interval() -> None:
    column = from_duckdb("select interval '14 months -3 days 04:05:06.000007' i union all select null").column("i")
    assert sent(column, "interval") == [struct.pack("!qii", 14_706_000_007, -3, 14), None]
    with pytest.raises(Unsupported):
        sent(pa.array(["1 day"]), "interval")


def reference_numeric(value: Decimal, scale: int) -> bytes:
    """Straight from the description of the format, by way of the decimal text."""
    whole, _, fraction = f"{abs(value):.{scale}f}".partition(".")
    whole = whole.zfill(-(-len(whole) // 4) * 4)
    fraction = fraction.ljust(-(-len(fraction) // 4) * 4, "0")
    text = whole + fraction
    groups = [int(text[at : at + 4]) for at in range(0, len(text), 4)]
    weight = len(whole) // 4 - 1
    while groups and groups[0] == 0:
        del groups[0]
        weight -= 1
    while groups and groups[-1] == 0:
        del groups[-1]
    sign = 0x4000 if value < 0 else 0
    return struct.pack(f"!HhHH{len(groups)}H", len(groups), weight if groups else 0, sign, scale, *groups)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 38), st.data())
def test_numerics_of_every_width_and_scale(precision: int, data: st.DataObject) -> None:
    scale = data.draw(st.integers(0, precision))
    bound = 10**precision - 1
    near = st.sampled_from([0, 1, -1, bound, -bound, 2**63, -(2**63), 2**63 - 1, -(2**63) - 1, 2**64, 10**precision // 10, 10_000])
    unscaled = data.draw(st.lists(st.none() | st.integers(-bound, bound) | near.filter(lambda n: abs(n) <= bound), min_size=1, max_size=6))
    with decimal.localcontext(decimal.Context(prec=80)):
        values = [None if number is None else Decimal(number).scaleb(-scale) for number in unscaled]
        cells = sent(pa.array(values, type=pa.decimal128(precision, scale)), "numeric")
        assert cells == [None if value is None else reference_numeric(value, scale) for value in values]
        assert loaded(cells, "numeric") == values


def test_dates_that_python_does_not_know() -> None:
    batch = from_duckdb("select * from (values ('infinity'::date), ('-infinity'), ('4714-11-24 (BC)'), ('5874897-12-31')) v(d)")
    assert sent(batch.column("d"), "date") == [struct.pack("!i", days) for days in (2**31 - 1, -(2**31), -2_451_545, 2_145_031_948)]
    batch = from_duckdb("select * from (values ('infinity'::timestamp), ('-infinity'), ('4714-11-24 (BC) 00:00:00')) v(t)")
    wanted = [struct.pack("!q", micros) for micros in (2**63 - 1, -(2**63), -211_813_488_000_000_000)]
    assert sent(batch.column("t"), "timestamp") == wanted


@pytest.mark.parametrize(
    ("column", "pg_type"),
    [
        (pa.array([-2_451_545 + 10_957 - 1], pa.int32()).view(pa.date32()), "date"),
        (pa.array([2**31 - 2], pa.int32()).view(pa.date32()), "date"),
        (pa.array([-(2**31) + 2], pa.int32()).view(pa.date32()), "date"),
        (pa.array([-(2**63) + 2], pa.int64()).view(pa.timestamp("us")), "timestamp"),
        (pa.array([-211_813_488_000_000_000 + 946_684_800_000_000 - 1], pa.int64()).view(pa.timestamp("us")), "timestamp"),
        (pa.array([2**31]), "int4"),
        (pa.array([40_000], pa.int32()), "int2"),
        (pa.array([-1]), "oid"),
        (pa.array([2**63], pa.decimal128(38, 0)), "int8"),
        (pa.array(["f81d4fae-7dec-11d0-a765-00a0c91e6bf"]), "uuid"),
        (pa.array(["f81d4fae-7dec-11d0-a765-00a0c91e6bfg"]), "uuid"),
        (pa.array(["f81d4fae07dec-11d0-a765-00a0c91e6bf6"]), "uuid"),
    ],
    ids=str,
)
def test_a_value_the_type_cannot_hold_is_refused(column: Any, pg_type: str) -> None:
    with pytest.raises(ValueRefused):
        encode(batch_of(column), [ColumnFormat(pg_type)])


def test_what_lies_under_a_null_is_not_looked_at() -> None:
    hidden = pa.array([-(2**63) + 2, 0], pa.int64()).buffers()[1]
    column = pa.Array.from_buffers(pa.timestamp("us"), 2, [pa.py_buffer(b"\x02"), hidden])
    assert loaded(sent(column, "timestamp"), "timestamp") == [None, dt.datetime(1970, 1, 1)]


@pytest.mark.parametrize("pg_type", ["timetz", "inet", "_int4", "record", "xml", "no such type"])
def test_types_without_a_binary_form_here(pg_type: str) -> None:
    assert pg_type not in rows.BINARY_TYPES
    with pytest.raises(Unsupported) as refused:
        encode(batch_of(pa.array(["x"])), [ColumnFormat(pg_type)])
    assert refused.value.sqlstate == "0A000"


MISMATCHED = [(pg_type, column) for pg_type in sorted(rows.BINARY_TYPES) for column in (pa.array(["x"]), pa.array([b"x"]), pa.array([[1]]))]


@pytest.mark.parametrize(("pg_type", "column"), MISMATCHED, ids=lambda case: case if isinstance(case, str) else str(case.type))
def test_a_column_of_another_kind_is_never_guessed_at(pg_type: str, column: Any) -> None:
    texts = {"text", "varchar", "bpchar", "name", "json", "jsonb"}
    fits = (pg_type in texts and pa.types.is_string(column.type)) or (pg_type == "bytea" and pa.types.is_binary(column.type))
    if fits:
        assert encode(batch_of(column), [ColumnFormat(pg_type)])
        return
    with pytest.raises(ModakError) as refused:
        encode(batch_of(column), [ColumnFormat(pg_type)])
    assert isinstance(refused.value, Unsupported) or (pg_type == "uuid" and isinstance(refused.value, ValueRefused))


def test_a_timestamp_with_and_one_without_zone_are_not_mixed_up() -> None:
    now = dt.datetime(2024, 1, 1)
    with pytest.raises(Unsupported):
        sent(pa.array([now], pa.timestamp("us")), "timestamptz")
    with pytest.raises(Unsupported):
        sent(pa.array([now], pa.timestamp("us", "UTC")), "timestamp")


def test_everything_duckdb_hands_out() -> None:
    """The types of a real result, chunk offsets and all, in one row description's worth of binary columns."""
    columns = {
        "bool": "i % 2 = 0",
        "int2": "i::smallint",
        "int4": "i::integer",
        "int8": "sum(i) over ()",  # a hugeint
        "float4": "i::float",
        "float8": "i / 3",
        "numeric": "(i * 1.25)::decimal(20, 4)",
        "text": "'n' || i",
        "bytea": "('b' || i)::blob",
        "uuid": "md5(i::varchar)::uuid",
        "date": "date '2024-01-01' + i::integer",
        "timestamp": "timestamp '2024-01-01' + i * interval '1 second'",
        "timestamptz": "to_timestamp(1700000000 + i)",
        "time": "time '01:00:00' + i * interval '1 second'",
        "json": """('{"i":' || i || '}')::json""",
        "varchar": "case when i % 2 = 0 then 'even' else 'odd' end::enum('even', 'odd')",
    }
    select = ", ".join(f"case when i % 7 = 3 then null else {sql} end as {name}_" for name, sql in columns.items())
    with duckdb.connect() as connection:
        table = connection.sql(f"select {select} from range(300) r(i) order by i").to_arrow_table()
    (batch,) = table.combine_chunks().to_batches()
    found = decoded(encode(batch, [ColumnFormat(name) for name in columns]))
    by_column = [loaded([row[at] for row in found], name) for at, name in enumerate(columns)]
    parse: dict[str, Callable[[Any], Any]] = {"json": json.loads, "uuid": uuid.UUID}
    for name, ours, column in zip(columns, by_column, batch.columns, strict=True):
        assert ours == [value and parse.get(name, lambda same: same)(value) for value in column.to_pylist()], name
