"""The two-tier view in itself: how it reads T, and how it finds corrections. Nothing here is cold, so nothing needs a gateway."""

from __future__ import annotations

import pytest
from tests.support import default_lake, rows

from modak.app import App
from modak.connection import Connection
from modak.core.registration import Options
from modak.core.table import Name
from modak.core.tier_key import KEY_MAX, KEY_MIN, TierKeyType
from modak.registration.register import register
from modak.source.view import line_value

# The key's type, that of the tier key, the partition's bounds, a late row's keys, a hot row's.
TABLES = [
    ("bigint", "bigint", ("100", "200"), ("7", "50"), ("8", "150")),
    ("integer", "integer", ("100", "200"), ("7", "50"), ("8", "150")),
    ("smallint", "smallint", ("100", "200"), ("7", "50"), ("8", "150")),
    ("text", "date", ("2026-02-01", "2026-03-01"), ("late", "2026-01-05"), ("hot", "2026-02-05")),
    ('text collate "C"', "timestamp", ("2026-02-01", "2026-03-01"), ("late", "2026-01-05 01:02:03.000004"), ("hot", "2026-02-05")),
    ("uuid", "timestamptz", ("2026-02-01+00", "2026-03-01+00"), (f"{7:032}", "2026-01-05 01:02:03.5+00"), (f"{8:032}", "2026-02-05+00")),
    (
        "numeric(10, 2)",
        "timestamptz(3)",
        ("2026-02-01+00", "2026-03-01+00"),
        ("1.50", "2026-01-05 01:02:03.123+00"),
        ("2", "2026-02-05+00"),
    ),
    ("varchar(9)", "timestamp(0)", ("2026-02-01", "2026-03-01"), ("late", "0044-01-05 01:02:03 BC"), ("hot", "2026-02-05")),
]


def plan_of(connection: Connection, query: str) -> str:
    return "\n".join(line for (line,) in rows(connection, f"explain {query}"))


@pytest.mark.parametrize(("key", "tier_key", "bounds", "late", "hot"), TABLES)
def test_corrections_are_found_by_index(
    app: App, connection: Connection, key: str, tier_key: str, bounds: tuple[str, str], late: tuple[str, str], hot: tuple[str, str]
) -> None:
    """Else a look-up of a hot row would read all of them."""
    connection.execute(f"create table public.things (k {key}, at {tier_key}, note text, primary key (k, at)) partition by range (at)")
    connection.execute(f"create table public.things_1 partition of public.things for values from ('{bounds[0]}') to ('{bounds[1]}')")
    chosen = Options(tier_key="at", primary_key=("k", "at"), lag="0" if "int" in tier_key else "1 day")
    register(connection, default_lake(app, connection), Name("public", "things"), chosen, profile="default")
    for place, keys in (("late", late), ("hot", hot)):
        connection.execute("insert into public.things values (%s, %s, %s)", [*keys, place])
    assert rows(connection, "select count(*) from modak.delta") == [(1,)]
    connection.execute("set timezone = 'Asia/Kathmandu'; set enable_seqscan = off; set enable_bitmapscan = off")
    for place, keys in (("late", late), ("hot", hot)):
        for condition in (f"at = '{keys[1]}'", f"k = '{keys[0]}'"):
            query = f"select note from public.things where {condition}"
            assert rows(connection, query) == [(place,)], query
            plan = plan_of(connection, query)
            assert "Index Scan using delta_" in plan, plan
            assert "_by_" in plan, plan


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kathmandu"])
def test_the_view_reads_every_line_as_core_writes_it(connection: Connection, zone: str) -> None:
    connection.execute("select set_config('timezone', %s, false)", [zone])

    def shown(key_type: TierKeyType, key: int, what: str) -> object:
        value = f"({line_value(key_type, f'({key})::bigint')})::{key_type.value}"
        found = connection.execute(f"select {what.format(value=value)} as found").fetchone()
        return found["found"] if found else None

    for key_type in TierKeyType:
        for key in (key_type.minimum, key_type.minimum + 1, -86_400_000_001, -1, 0, 1, 20_000, 1_790_812_800_000_001, key_type.maximum - 1):
            if key_type.minimum <= key <= key_type.maximum:
                assert shown(key_type, key, f"{{value}} = '{key_type.encode(key)}'") is True, (key_type, key)
        if key_type.is_time:
            assert [shown(key_type, key, "{value}::text") for key in (KEY_MIN, KEY_MAX)] == ["-infinity", "infinity"], key_type
