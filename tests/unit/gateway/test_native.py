"""Which names go to the heap, and that nothing else of a statement is touched."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from modak.core.table import Name
from modak.gateway.native import on_the_heap


def heap_of(parts: Sequence[str]) -> Name | None:
    return {
        ("events",): Name("public", "events_hot"),
        ("public", "events"): Name("public", "events_hot"),
        ("Odd",): Name("s", "Odd_hot"),
    }.get(tuple(parts))


HOT = '"public"."events_hot"'


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            "insert into events (id) values (1) on conflict (id) do update set val = excluded.val || events.val -- über",
            f'insert into {HOT} AS "events" (id) values (1) on conflict (id) do update set val = excluded.val || events.val -- über',
        ),
        ("insert into public.Events as e values (1) on conflict do nothing", f"insert into {HOT} as e values (1) on conflict do nothing"),
        (
            "select * from events e where id = $1 for update skip locked",
            f"select * from {HOT} e where id = $1 for update skip locked",
        ),
        ("select * from events where id = 1 for no key update", f'select * from {HOT} AS "events" where id = 1 for no key update'),
        (
            'select a.id from events a join other o on o.id = a.id join "Odd" using (id) for share of a',
            f'select a.id from {HOT} a join other o on o.id = a.id join "s"."Odd_hot" AS "Odd" using (id) for share of a',
        ),
        (
            "merge into events t using other s on s.id = t.id when matched then delete",
            f"merge into {HOT} t using other s on s.id = t.id when matched then delete",
        ),
        (
            "with x as (insert into events values (1) on conflict do nothing returning *) select * from x",
            f'with x as (insert into {HOT} AS "events" values (1) on conflict do nothing returning *) select * from x',
        ),
    ],
)
def test_the_name_becomes_the_heaps(given: str, expected: str) -> None:
    assert on_the_heap(given, heap_of) == expected


@pytest.mark.parametrize(
    "given",
    [
        "insert into events values (1)",
        "select 'for update' from events",
        "select * from other for update",
        "insert into other select * from events on conflict do nothing",
        "select * from events where note = 'x on conflict y'",
        "not sql at all for update",
    ],
)
def test_everything_else_stays(given: str) -> None:
    assert on_the_heap(given, heap_of) is None
