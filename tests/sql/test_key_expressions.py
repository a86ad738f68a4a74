"""Keys computed by Postgres equal keys computed by core, for nasty values and under any session."""

from __future__ import annotations

import itertools

import psycopg
import pytest
from tests.support import rows, value

from modak.connection import Connection
from modak.core import primary_key
from modak.core.tier_key import KEY_MAX, KEY_MIN, TierKeyType
from modak.source.expressions import canonical_key, encoded_key, is_finite, reference

ZONES = ["UTC", "Asia/Kathmandu", "America/New_York", "Pacific/Apia"]

TIMES = [
    "1970-01-01 00:00:00", "1969-12-31 23:59:59.999999", "2026-03-29 02:30:00.000001", "0001-01-01 00:00:00", "0001-12-31 23:59:59 BC",
    "0044-03-15 12:00:00.5 BC", "4713-11-25 00:00:00 BC", "9999-12-31 23:59:59.999999", "10000-01-01 00:00:00",
    "294246-12-31 23:59:59.999999", "1582-10-10 00:00:00", "1900-02-28 23:59:59", "2000-02-29 00:00:00",
]  # fmt: skip
VALUES = {
    TierKeyType.SMALLINT: ["-32768", "-1", "0", "32767"],
    TierKeyType.INTEGER: ["-2147483648", "2147483647"],
    TierKeyType.BIGINT: [str(KEY_MIN), "-1", str(KEY_MAX)],
    TierKeyType.DATE: ["1970-01-01", "1969-12-31", "0044-03-15 BC", "4713-11-25 BC", "5874897-12-31", "1582-10-10"],
    TierKeyType.TIMESTAMP: TIMES,
    TierKeyType.TIMESTAMPTZ: [text.removesuffix(" BC") + "+00" + (" BC" if text.endswith("BC") else "") for text in TIMES],
}
CASES = [(key_type, text) for key_type, texts in VALUES.items() for text in texts]


@pytest.mark.parametrize("zone", ZONES)
def test_the_canonical_key_is_cores(connection: Connection, zone: str) -> None:
    connection.execute("select set_config('timezone', %s, false)", [zone])
    for key_type, text in CASES:
        expression = canonical_key(key_type, "x.v")
        found = value(connection, f"select {expression} from (select %s::{key_type.value} as v) x", text)
        assert found == key_type.decode(text), (key_type, text)


def test_core_writes_what_postgres_reads_and_prints(connection: Connection) -> None:
    for key_type, text in CASES:
        key = key_type.decode(text)
        literal = key_type.encode(key)
        assert value(connection, f"select %s::{key_type.value}::text", literal) == literal
        assert value(connection, f"select {canonical_key(key_type, 'x.v')} from (select %s::{key_type.value} as v) x", literal) == key


@pytest.mark.parametrize("key_type", [key_type for key_type in TierKeyType if key_type.is_time])
def test_infinity_is_told_apart(connection: Connection, key_type: TierKeyType) -> None:
    for text, finite in (("infinity", False), ("-infinity", False), ("2026-01-01", True)):
        assert value(connection, f"select {is_finite(key_type, 'x.v')} from (select %s::{key_type.value} as v) x", text) is finite


PARTS = ["", "a", "b", "\x1f", "\\", "\\\x1f", "\x1f\\", "a|b", "'", '"', "é日本🎉", " ", "%s {x}", "NULL", "\n"]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_encoded_primary_key_is_cores_and_injective(connection: Connection, count: int) -> None:
    columns = ['a"b', "B {x}", "c%s"][:count]
    expression = encoded_key(columns, "r")
    names = ", ".join(reference(column) for column in columns)
    seen: dict[str, tuple[str, ...]] = {}
    keys = list(itertools.product(PARTS, repeat=count)) if count < 3 else [(a, b, "x") for a in PARTS for b in PARTS]
    with connection.transaction(), connection.cursor() as cursor:
        cursor.execute(f"create temporary table r (n int, {', '.join(f'{reference(column)} text' for column in columns)}) on commit drop")
        insert = f"insert into r (n, {names.replace('%', '%%')}) values (%s{', %s' * count})"
        cursor.executemany(insert, [(number, *key) for number, key in enumerate(keys)])
        found = rows(connection, f"select n, {expression} from r order by n")
    for number, encoded in found:
        assert encoded == primary_key.encode(keys[number])
        assert primary_key.decode(encoded, count) == keys[number]
        assert seen.setdefault(encoded, keys[number]) == keys[number]
    assert len(seen) == len(keys)


SAMPLES = {
    "bigint": "42",
    "uuid": "00000000-0000-0000-0000-000000000001",
    "text": "x",
    "date": "0044-03-15 BC",
    "timestamptz": "2026-01-01 00:00:00+00",
    "bytea": "\\xde00",
    "numeric(10,2)": "1.50",
    "char(5)": "ab   ",  # as COPY and logical decoding print it, padded
    "interval": "1 day 02:00:00",
    "boolean": "t",
}


def test_keys_of_any_type_are_encoded_by_their_text(connection: Connection) -> None:
    columns = [f"c{number}" for number in range(len(SAMPLES))]
    source = ", ".join(f"%s::{column_type} as {column}" for column, column_type in zip(columns, SAMPLES, strict=True))
    found = value(connection, f"select {encoded_key(columns, 'x')} from (select {source}) x", *SAMPLES.values())
    assert found == primary_key.encode(list(SAMPLES.values()))


@pytest.mark.parametrize("zone", ZONES)
def test_key_text_reads_as_postgres_prints(dsn: str, zone: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("select set_config('timezone', %s, false), set_config('datestyle', 'SQL, DMY', false)", [zone])
        for key_type, text in CASES:
            row = connection.execute("select modak.key_text(%s, %s)", [key_type.decode(text), key_type.value]).fetchone()
            shown = text.replace("+00", "") if key_type is TierKeyType.TIMESTAMPTZ else text
            expected = {str(KEY_MIN): "-infinity", str(KEY_MAX): "infinity"}.get(shown, shown)
            assert row == (expected,), (key_type, text)


@pytest.mark.parametrize("key_type", list(TierKeyType))
def test_key_text_never_fails(connection: Connection, key_type: TierKeyType) -> None:
    edges = [KEY_MIN, KEY_MIN + 1, key_type.minimum, key_type.minimum - 1 if key_type.minimum > KEY_MIN else 0, -1, 0, 1, key_type.maximum]
    for key in [*edges, KEY_MAX - 1, KEY_MAX, 2145031948, 2145031949, -2440588, -2440589, None]:
        shown = value(connection, "select modak.key_text(%s, %s)", key, key_type.value)
        assert (shown is None) is (key is None)
        if key is not None and key_type.minimum <= key <= key_type.maximum and KEY_MIN < key < KEY_MAX:
            assert shown == key_type.encode(key).replace("+00", "")
