"""Which files a condition excludes, case by case: bounds cut short, unknown, of older types, of partitions; NULL and NaN."""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modak.core.tier_key import TierKeyType
from modak.scan.bounds import Range, decode, parse, partition_range
from modak.scan.manifests import Deletion
from modak.scan.predicate import Predicate
from modak.scan.prune import KeyRange, prune
from modak.scan.snapshot import DataFile, DeleteFile, Field, PartitionPart, Snapshot
from modak.scan.snapshots import with_deletes

DAY = 86_400_000_000


def data_file(name: str = "f", *, rows: int = 10, low: bytes | None = None, high: bytes | None = None, **given: Any) -> DataFile:
    values: dict[str, Any] = {
        "path": f"/{name}",
        "location": f"file:/{name}",
        "rows": rows,
        "bytes": 1000,
        "sequence_number": 1,
        "spec_id": 0,
        "partition": (),
        "lower": {} if low is None else {1: low},
        "upper": {} if high is None else {1: high},
        "nulls": {},
        "nans": {},
        "row_groups": 1,
    }
    return DataFile(**(values | given))


def snapshot(kind: str, *files: DataFile, spec: tuple[PartitionPart, ...] = ()) -> Snapshot:
    return Snapshot("uuid", 1, 1, (Field(1, "x", kind, False), Field(2, "later", "string", False)), {0: spec}, 0, tuple(files))


def long(number: int) -> bytes:
    return number.to_bytes(8, "little", signed=True)


def keeps(kind: str, operator: Any, *values: str, **given: Any) -> bool:
    return bool(prune(snapshot(kind, data_file(**given)), [Predicate("x", operator, values)]))


@pytest.mark.parametrize(
    ("operator", "value", "kept"),
    [
        ("=", 9, False),
        ("=", 10, True),
        ("=", 20, True),
        ("=", 21, False),
        ("<", 10, False),
        ("<", 11, True),
        ("<=", 9, False),
        ("<=", 10, True),
        (">", 20, False),
        (">", 19, True),
        (">=", 21, False),
        (">=", 20, True),
    ],
)
def test_a_range_of_numbers(operator: str, value: int, kept: bool) -> None:
    assert keeps("long", operator, str(value), low=long(10), high=long(20)) is kept
    # The file was written when the column was an int.
    assert keeps("long", operator, str(value), low=long(10)[:4], high=long(20)[:4]) is kept


@pytest.mark.parametrize("operator", ["=", "<", "<=", ">", ">=", "in", "is null", "is not null"])
def test_what_is_unknown_is_kept(operator: str) -> None:
    values = () if operator.startswith("is") else ("5",)
    assert keeps("long", operator, *values)
    assert keeps("no_such_type", operator, *values, low=b"?", high=b"?")
    assert keeps("long", operator, *["x" for _ in values], low=long(10), high=long(20), nulls={1: 1})
    assert prune(snapshot("long", data_file()), [Predicate("not_there_yet", operator, values)])  # type: ignore[arg-type]


def test_in_is_any_of_its_values() -> None:
    bounds = {"low": long(10), "high": long(20)}
    assert not keeps("long", "in", "5", "25", **bounds)
    assert keeps("long", "in", "5", "15", **bounds)
    assert keeps("long", "in", "5", "what?", **bounds)


def test_nulls() -> None:
    assert not keeps("long", "is null", nulls={1: 0})
    assert keeps("long", "is null", nulls={1: 1})
    assert not keeps("long", "is not null", nulls={1: 10})
    assert keeps("long", "is not null", nulls={1: 9})
    assert not keeps("long", "=", "5", nulls={1: 10})


def test_an_empty_file_is_dropped() -> None:
    assert prune(snapshot("long", data_file(rows=0)), []) == []


@pytest.mark.parametrize(
    ("operator", "value", "kept"),
    [
        ("=", "b" * 15 + "c", True),  # the raised bound itself
        ("=", "b" * 40, True),
        ("=", "b" * 15 + "d", False),
        (">", "b" * 15 + "c", True),
        (">", "b" * 15 + "cz", True),  # would be missed if the writer had cut and not raised
        (">", "c", False),
        ("<", "a", True),
        ("<", "Z", False),
        ("=", "aa", True),
    ],
)
def test_bounds_of_text_are_cut_short(operator: str, value: str, kept: bool) -> None:
    assert keeps("string", operator, value, low=b"a", high=b"b" * 15 + b"c") is kept


def test_text_compares_by_code_point() -> None:
    """UTF-16 would put the emoji before the private-use letter."""
    assert keeps("string", "=", "\uf8ff", low=b"a", high="😀".encode())
    assert not keeps("string", "=", "😀", low=b"a", high="\uf8ff".encode())
    assert keeps("string", "=", "z", low=b"a", high="é".encode()[:1])


def test_nan_is_above_all_numbers_and_outside_of_bounds() -> None:
    bounds = {"low": struct.pack("<d", 1.0), "high": struct.pack("<d", 2.0)}
    assert keeps("double", ">", "5", **bounds)
    assert keeps("double", ">=", "5", nans={1: 3}, **bounds)
    assert not keeps("double", ">", "5", nans={1: 0}, **bounds)
    assert not keeps("double", "<", "0.5", **bounds)
    assert not keeps("double", "=", "5", **bounds)
    assert keeps("double", "=", "NaN", **bounds)
    assert keeps("double", "=", "5", low=struct.pack("<d", float("nan")), high=struct.pack("<d", float("nan")))


def test_floats_of_four_bytes_equal_their_text() -> None:
    bounds = {"low": struct.pack("<f", 0.1), "high": struct.pack("<f", 0.1)}
    assert keeps("float", "=", "0.1", **bounds)
    assert keeps("float", "<", "0.1", nans={1: 0}, **bounds)
    assert keeps("float", ">", "0.1", nans={1: 0}, **bounds)
    assert not keeps("float", "=", "0.2", **bounds)
    assert keeps("float", "=", "1e300", **bounds)


def test_decimals_compare_exactly() -> None:
    unscaled = 12345678901234567890123456789012345678
    raw = unscaled.to_bytes(16, "big", signed=True)
    assert decode("decimal(38,2)", raw) == Decimal("123456789012345678901234567890123456.78")
    assert not keeps("decimal(38,2)", ">", "123456789012345678901234567890123456.78", low=raw, high=raw)
    assert keeps("decimal(38,2)", ">", "123456789012345678901234567890123456.77", low=raw, high=raw)
    assert decode("decimal(9,2)", (-1).to_bytes(1, "big", signed=True)) == Decimal("-0.01")


@pytest.mark.parametrize("text", ["0044-03-15 BC", "4713-11-24 BC", "0001-01-01", "9999-12-31", "20000-02-29"])
def test_dates_beyond_pythons(text: str) -> None:
    days = TierKeyType.DATE.decode(text)
    raw = days.to_bytes(4, "little", signed=True)
    assert keeps("date", "=", text, low=raw, high=raw)
    assert not keeps("date", "<", text, low=raw, high=raw)
    assert keeps("date", "<", "infinity", low=raw, high=raw)
    assert not keeps("date", "<", "-infinity", low=raw, high=raw)


def test_uuids_of_several_row_groups_are_trusted_as_far_as_both_orders_agree() -> None:
    low, high = UUID(int=1 << 100), UUID(int=(1 << 128) - (1 << 90))
    bounds = {"low": low.bytes, "high": high.bytes}
    assert not keeps("uuid", "=", str(UUID(int=0)), **bounds)
    assert not keeps("uuid", "=", str(UUID(int=0)), row_groups=2, **bounds)
    assert not keeps("uuid", "=", str(UUID(int=2**128 - 1)), row_groups=2, **bounds)
    # Merged by signed halves: group one holds 00…ff, group two 90…95, and the bounds became 90…7f.
    merged = {"low": b"\x90" + bytes(15), "high": b"\x7f" + bytes(15), "row_groups": 2}
    for number in (0x20, 0x85, 0xA0):
        assert keeps("uuid", "=", str(UUID(bytes=bytes([number]) + bytes(15))), **merged)


@pytest.mark.parametrize(
    ("transform", "kind", "value", "expected"),
    [
        ("identity", "long", 7, (7, 7)),
        ("truncate[10]", "int", -20, (-20, -11)),
        ("day", "timestamptz", -1, (-DAY, -1)),
        ("day", "date", 5, (5, 5)),
        ("hour", "timestamp", 1, (3_600_000_000, 7_199_999_999)),
        ("month", "date", -1, (-31, -1)),
        ("month", "date", 25, (TierKeyType.DATE.decode("1972-02-01"), TierKeyType.DATE.decode("1972-02-29"))),
        (
            "year",
            "timestamptz",
            -2014,
            (TierKeyType.DATE.decode("0045-01-01 BC") * DAY, TierKeyType.DATE.decode("0044-01-01 BC") * DAY - 1),
        ),
        ("bucket[4]", "long", 3, (None, None)),
        ("day", "timestamptz", None, (None, None)),
        ("void", "long", None, (None, None)),
        ("truncate[3]", "string", "abc", (None, None)),
    ],
)
def test_partitions_say_where_bounds_do_not(transform: str, kind: str, value: object, expected: tuple[Any, Any]) -> None:
    assert partition_range(transform, kind, value) == expected
    found = snapshot(kind, data_file(partition=(value,)), spec=(PartitionPart(1, transform, "x_part"),))
    assert found.ranges(found.fields[0]) == (Range(*expected, None, 0, 10),)


def test_the_range_of_tier_keys() -> None:
    found = snapshot("timestamptz", *[data_file(str(n), low=long(n * DAY), high=long((n + 1) * DAY - 1)) for n in range(5)])

    def names(keys: KeyRange) -> list[str]:
        return [file.path for file in prune(found, [], keys)]

    assert names(KeyRange("x", 2 * DAY, 3 * DAY)) == ["/2"]
    assert names(KeyRange("x", 2 * DAY - 1, 3 * DAY + 1)) == ["/1", "/2", "/3"]
    assert names(KeyRange("x", high=DAY)) == ["/0"]
    assert names(KeyRange("x", low=4 * DAY)) == ["/4"]
    assert names(KeyRange("x")) == ["/0", "/1", "/2", "/3", "/4"]


@given(st.lists(st.one_of(st.none(), st.text(max_size=25)), min_size=1, max_size=8), st.text(max_size=25), st.integers(1, 18))
def test_text_that_is_there_is_never_pruned(stored: list[str | None], value: str, length: int) -> None:
    """Bounds cut at any length, and a writer that does not raise the upper one."""
    texts = sorted(text for text in stored if text is not None)
    file = data_file(
        rows=len(stored),
        low=texts[0][:length].encode() if texts else None,
        high=texts[-1][:length].encode() if texts else None,
        nulls={1: stored.count(None)},
    )
    matches = {
        "=": value in texts,
        "<": any(text < value for text in texts),
        "<=": any(text <= value for text in texts),
        ">": any(text > value for text in texts),
        ">=": any(text >= value for text in texts),
    }
    for operator, matching in matches.items():
        assert bool(prune(snapshot("string", file), [Predicate("x", operator, (value,))])) or not matching  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("boolean", "t", True),
        ("boolean", "maybe", None),
        ("binary", "\\x00ff", b"\x00\xff"),
        ("binary", "escaped", None),
        ("uuid", "not one", None),
        ("int", "1.5", None),
        ("timestamp", "1970-01-01 00:00:01.5", 1_500_000),
        ("timestamptz", "1969-12-31 23:59:59+00", -1_000_000),
        ("decimal(5,2)", "NaN", None),
        ("list<int>", "{}", None),
    ],
)
def test_text_of_postgres(kind: str, text: str, value: object) -> None:
    assert parse(kind, text) == value


def _delete(name: str, sequence_number: int, target: str | None, partition: tuple[object, ...] = (), spec_id: int = 0) -> Deletion:
    return Deletion(DeleteFile(f"/{name}", f"file:/{name}", 2, 100, target), sequence_number, spec_id, partition)


def test_deletes_meet_files_of_their_time_and_place() -> None:
    files = [data_file("old", sequence_number=1, partition=(1,)), data_file("new", sequence_number=3, partition=(1,))]
    files += [data_file("elsewhere", partition=(2,)), data_file("respecced", partition=(1,), spec_id=1)]
    deletions = [
        _delete("of_old", 2, "/old"),
        _delete("same_commit", 3, "/new"),
        _delete("too_early", 2, "/new"),
        _delete("of_partition", 2, None, (1,)),
        _delete("dangling", 9, "/compacted_away"),
    ]
    found = {file.path: [delete.path for delete in file.deletes] for file in with_deletes(files, deletions)}
    assert found == {"/old": ["/of_old", "/of_partition"], "/new": ["/same_commit"], "/elsewhere": [], "/respecced": []}
