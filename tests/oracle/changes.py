"""Random changes. Each is a statement that is run on the table and on its twin, or a pair of statements that must mean the same.

A change is chosen by what the twin holds, so that it is legal there; what it does to the tiered table is what the test is about.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from psycopg.types.json import Jsonb

from tests.oracle.world import COLUMNS, CONTESTED, CONTESTED_IDS, SHARED, World

Key = tuple[int, Any]
_NAMES = ", ".join(COLUMNS)
_ROW = "(%s, %s, %s, %s, %s, %s)"
_SHARED = ["n = n + %s", "n = n + %s, amount = amount + 1", "n = n + %s, val = %s"]
_SHARED_MOVE = "n = n + %s, ts = %s"


@dataclass(frozen=True)
class Change:
    """``sql`` has {t} for the table. ``twin_sql``: what the twin gets instead, after the table. ``rows``: what COPY sends.

    ``if_done``: the twin follows only if the table's statement changed something: it goes by the heap's own name, which shows no row
    that is in the lake alone. ``may_exist``: a unique violation on the table is as good as a change. ``as_answered``: the twin is the
    ledger of what the table acknowledged, and its statement gets the ids that the table returned.
    """

    sql: str
    parameters: tuple[Any, ...] = ()
    twin_sql: str | None = None
    twin_parameters: tuple[Any, ...] | None = None
    rows: tuple[tuple[Any, ...], ...] = ()
    if_done: bool = False
    may_exist: bool = False
    as_answered: bool = False

    @property
    def ids(self) -> set[int]:
        found: set[int] = set()
        for value in (*self.parameters, *(row[0] for row in self.rows)):
            if isinstance(value, Jsonb) and isinstance(value.obj, dict):
                value = value.obj.get("id")
            found |= {one for one in (value if isinstance(value, list) else [value]) if isinstance(one, int)}
        return found


class Changes:
    """The changes of one client, to rows whose ids lie in [first, last)."""

    def __init__(self, world: World, dice: random.Random, first: int, last: int, *, functions: bool) -> None:
        self._world, self.dice, self._first, self._last, self._next = world, dice, first, last, first
        grown: list[tuple[int, Callable[[list[Key]], Change | None]]] = [
            (10, self._insert),
            (6, self._insert_many),
            (3, self._insert_selected),
            (4, self._copy),
            (12, self._update),
            (5, self._update_range),
            (10, self._move),
            (5, self._move_many),
            (6, self._rename),
            (3, self._rename_to_deleted),
            (6, self._delete),
            (2, self._delete_range),
            (5, self._update_from),
            (3, self._delete_using),
            (3, self._by_function),
            (4, self._through_the_heap),
            (3, self._upsert_in_the_heap),
            (3, self._insert_known),
            (3, self._delete_and_insert),
        ]
        if functions:
            grown += [(8, self._modak_upsert), (5, self._modak_delete)]
        self._weights, self._kinds = [weight for weight, _ in grown], [kind for _, kind in grown]

    def next(self, rows: list[Key]) -> Change:
        """A change of rows like these, which are all the client has above the floor."""
        if len(rows) < 8:
            return self._insert_many(rows)
        while True:
            kind = self.dice.choices(self._kinds, self._weights)[0]
            change = (self._delete if len(rows) > 80 and self.dice.random() < 0.5 else kind)(rows)
            if change is not None:
                return change

    def shared(self) -> Change:
        """Changes that come to the same in whichever order clients make them, or that the last one decides."""
        ids = self.dice.sample(SHARED, self.dice.choice([1, 1, 1, 2]))
        more, key = self.dice.randint(1, 9), self._key()
        what = self.dice.choice([*_SHARED, _SHARED_MOVE])
        given = [value for part, value in (("ts =", key), ("val =", f"s{more}")) if part in what]
        return Change(f"update public.{{t}} set {what} where id = any(%s) returning id, n", (more, *given, ids))

    def contested(self) -> Change:
        """Rows that every client inserts, changes and deletes, each at a place of its own: what one of them gets depends on the others, so
        whatever the table acknowledges is done to the twin, which must answer the same."""
        world = self._world
        places = [world.floor + number * (world.top - world.floor) // (CONTESTED + 1) for number in range(1, CONTESTED + 1)]
        act = self.dice.random()
        if act < 0.4:
            place = self.dice.choice(places)
            change = self._upsert_in_the_heap([(CONTESTED_IDS + place, world.shape.key(place))])
            sql = f"insert into public.{{t}} ({_NAMES}) values {_ROW} returning *"
            return Change(sql, change.parameters, twin_sql=change.twin_sql, may_exist=True)
        ids = [CONTESTED_IDS + place for place in self.dice.sample(places, self.dice.choice([1, 2, len(places)]))]
        what = "delete from public.{t} where" if act < 0.75 else "update public.{t} set n = n + 1, val = val || '.' where"
        sql = f"{what} id = any(%s) returning *"
        return Change(sql, (ids,), twin_sql=sql.replace("{t}", "twin"), if_done=True, as_answered=True)

    def _key(self) -> Any:
        return self._world.shape.key(self.dice.randrange(self._world.floor, self._world.top))

    def _new_id(self) -> int:
        self._next += 1
        assert self._next < self._last
        return self._next

    def _value(self) -> str | None:
        return self.dice.choice([None, "", "ä'\\\t\n%", f"v{self.dice.randrange(10**6)}"])

    def _row(self, identity: int | None = None, key: Any = None) -> tuple[Any, ...]:
        doc = self.dice.choice([None, {"k": self.dice.randrange(9)}, {"a": [1, None, "x"]}])
        amount = self.dice.choice([None, self.dice.randrange(10**6) / 100])
        return (
            self._new_id() if identity is None else identity,
            self._key() if key is None else key,
            self.dice.randrange(1000),
            self._value(),
            amount,
            None if doc is None else Jsonb(doc),
        )

    def _some(self, rows: list[Key], most: int = 4) -> list[Key]:
        return self.dice.sample(rows, min(len(rows), self.dice.randint(1, most)))

    def _insert(self, rows: list[Key]) -> Change:
        if self.dice.random() < 0.2:
            return Change(
                "insert into public.{t} (id, ts, val) values (%s, %s, %s) returning *", (self._new_id(), self._key(), self._value())
            )
        row = self._row()
        if len(self._world.shape.primary_key) > 1 and self.dice.random() < 0.2:
            identity, key = self.dice.choice(rows)[0], self._key()
            row = self._row(identity, key) if (identity, key) not in rows else row
        return Change(f"insert into public.{{t}} ({_NAMES}) values {_ROW} returning *", row)

    def _insert_many(self, rows: list[Key]) -> Change:
        made = [self._row() for _ in range(self.dice.randint(2, 12))]
        return Change(
            f"insert into public.{{t}} ({_NAMES}) values {', '.join([_ROW] * len(made))} returning id, ts, n",
            tuple(v for row in made for v in row),
        )

    def _insert_selected(self, rows: list[Key]) -> Change:
        ids, keys = zip(*[(self._new_id(), self._key()) for _ in range(5)], strict=True)
        kind = self._world.shape.type
        return Change(
            f"insert into public.{{t}} (id, ts, val) select i, k, 'selected' from unnest(%s::bigint[], %s::{kind}[]) s(i, k) returning *",
            (list(ids), list(keys)),
        )

    def _copy(self, rows: list[Key]) -> Change:
        return Change(f"copy public.{{t}} ({_NAMES}) from stdin", rows=tuple(self._row() for _ in range(self.dice.randint(1, 8))))

    def _update(self, rows: list[Key]) -> Change:
        chosen = self._some(rows)
        if self.dice.random() < 0.5:
            return Change("update public.{t} set n = n + 1, val = val || '.' where id = any(%s) returning *", ([key[0] for key in chosen],))
        sets = self.dice.choice(
            ["val = null", "amount = coalesce(amount, 0) * 2", "doc = coalesce(doc, '{}') || '{\"u\": 1}'", "n = default"]
        )
        return Change(f"update public.{{t}} set {sets} where id = %s and ts = %s returning *", chosen[0])

    def _update_range(self, rows: list[Key]) -> Change:
        low, high = sorted((self._key(), self._key()))
        where = "id between %s and %s and ts >= %s and ts < %s and n %% 2 = 0"
        return Change(f"update public.{{t}} set n = n + 1 where {where} returning id, ts, n", (self._first, self._last, low, high))

    def _move(self, rows: list[Key]) -> Change | None:
        identity, key = self.dice.choice(rows)
        target = self._key()
        if (identity, target) in rows:
            return None
        return Change("update public.{t} set ts = %s, n = n + 1 where id = %s and ts = %s returning *", (target, identity, key))

    def _move_many(self, rows: list[Key]) -> Change | None:
        """Each row by as much, within the table and without meeting another row of its id."""
        world, places = self._world, self.dice.randint(-300, 300)
        low, high, step = world.shape.key(world.floor), world.shape.key(world.top), world.shape.later(places)
        ids = [key[0] for key in rows]
        fit = [identity for identity, key in rows if ids.count(identity) == 1 and low <= key + step < high]
        if not fit:
            return None
        return Change("update public.{t} set ts = ts + %s where id = any(%s) returning *", (step, self.dice.sample(fit, min(5, len(fit)))))

    def _rename(self, rows: list[Key]) -> Change:
        identity, key = self.dice.choice(rows)
        if self.dice.random() < 0.3:
            return Change(
                "update public.{t} set id = %s, ts = %s where id = %s and ts = %s returning *", (self._new_id(), self._key(), identity, key)
            )
        return Change("update public.{t} set id = %s where id = %s and ts = %s returning *", (self._new_id(), identity, key))

    def _free(self, rows: list[Key]) -> list[int]:
        taken = {key[0] for key in rows} | self._world.buried
        return [identity for identity in range(self._first + 1, self._next) if identity not in taken]

    def _rename_to_deleted(self, rows: list[Key]) -> Change | None:
        free = self._free(rows)
        if not free:
            return None
        if self.dice.random() < 0.5:
            return Change(f"insert into public.{{t}} ({_NAMES}) values {_ROW} returning *", self._row(self.dice.choice(free)))
        identity, key = self.dice.choice(rows)
        return Change("update public.{t} set id = %s where id = %s and ts = %s returning *", (self.dice.choice(free), identity, key))

    def _delete(self, rows: list[Key]) -> Change:
        chosen = self._some(rows)
        if self.dice.random() < 0.5:
            return Change("delete from public.{t} where id = %s and ts = %s returning *", chosen[0])
        return Change("delete from public.{t} where id = any(%s) returning *", ([key[0] for key in chosen],))

    def _delete_range(self, rows: list[Key]) -> Change:
        low, high = sorted((self._key(), self._key()))
        where = "id between %s and %s and ts >= %s and ts < %s and n %% 5 = 0"
        return Change(f"delete from public.{{t}} where {where} returning id, ts", (self._first, self._last, low, high))

    def _update_from(self, rows: list[Key]) -> Change:
        chosen = self._some(rows, 6)
        values = list(dict(chosen))
        return Change(
            "update public.{t} x set val = v.val, n = x.n + v.more from unnest(%s::bigint[], %s::text[], %s::int[]) v(id, val, more) "
            "where x.id = v.id returning x.id, x.ts, x.n, x.val, v.more",
            (values, [f"from {one}" for one in values], [one % 7 for one in values]),
        )

    def _delete_using(self, rows: list[Key]) -> Change:
        ids = [key[0] for key in self._some(rows)]
        return Change("delete from public.{t} x using unnest(%s::bigint[]) v(id) where x.id = v.id returning x.*", (ids,))

    def _by_function(self, rows: list[Key]) -> Change:
        return Change("select public.bump_{t}(%s, %s)", ([key[0] for key in self._some(rows)], self.dice.randint(1, 5)))

    def _through_the_heap(self, rows: list[Key]) -> Change:
        """By the heap's own name, which has rows that are hot, spilled, or tiered and not dropped yet."""
        one = self.dice.choice(rows)
        what = self.dice.choice(["update public.{t} set n = n + 10, val = 'heap' where", "delete from public.{t} where"])
        sql = f"{what} id = %s and ts = %s returning *"
        return Change(sql.replace("{t}", "t_hot"), one, twin_sql=sql.replace("{t}", "twin"), if_done=True)

    def _upsert_in_the_heap(self, rows: list[Key]) -> Change:
        """ON CONFLICT knows what stands in the heap; a row that only the lake has is replaced by the insert."""
        identity, key = self.dice.choice(rows)
        row = self._row(identity, key)
        sets = ", ".join(f"{name} = excluded.{name}" for name in COLUMNS[2:])
        sql = f"insert into public.{{t}} ({_NAMES}) values {_ROW} on conflict ({{key}}) do update set {sets} returning *"
        twin = sql.format(t="twin", key=", ".join(self._world.shape.primary_key))
        return Change(sql.format(t="t_hot", key="id, ts"), row, twin_sql=twin)

    def _insert_known(self, rows: list[Key]) -> Change:
        """An insert of a key that only the lake has replaces it; where the heap has it, the heap refuses."""
        change = self._upsert_in_the_heap(rows)
        return Change(
            f"insert into public.{{t}} ({_NAMES}) values {_ROW} returning *", change.parameters, twin_sql=change.twin_sql, may_exist=True
        )

    def _delete_and_insert(self, rows: list[Key]) -> Change:
        """Both in one statement, which sees the table as it was before either."""
        identity = self.dice.choice(rows)[0]
        return Change(
            "with gone as (delete from public.{t} where id = %s returning *) "
            "insert into public.{t} (id, ts, val, n) select %s, min(ts), 'again', count(*)::int from gone having count(*) > 0 returning *",
            (identity, self._new_id()),
        )

    def _image(self, row: tuple[Any, ...]) -> dict[str, Any]:
        named = dict(zip(COLUMNS, row, strict=True))
        named["ts"] = named["ts"] if self._world.shape.type == "bigint" else named["ts"].isoformat()
        named["doc"] = named["doc"].obj if named["doc"] is not None else None
        return named

    def _modak_upsert(self, rows: list[Key]) -> Change:
        """A row that is known, in its place or moved, or a new one; columns that the image lacks keep their value or their default."""
        key_columns = self._world.shape.primary_key
        identity, key = self.dice.choice(rows)
        row = self._row(identity, key if "ts" in key_columns or self.dice.random() < 0.5 else self._key())
        row = self._row() if self.dice.random() < 0.3 else row
        given = ["id", "ts", "n", *self.dice.sample(COLUMNS[3:], self.dice.randint(0, 3))]
        named = dict(zip(COLUMNS, row, strict=True))
        image = {name: value for name, value in self._image(row).items() if name in given}
        sets = ", ".join(f"{name} = excluded.{name}" for name in given if name not in key_columns)
        return Change(
            "select public.modak_upsert('public.t', %s)",
            (Jsonb(image),),
            twin_sql=f"insert into public.twin ({', '.join(given)}) values ({', '.join(['%s'] * len(given))}) "
            f"on conflict ({', '.join(key_columns)}) do update set {sets}",
            twin_parameters=tuple(named[name] for name in given),
        )

    def _modak_delete(self, rows: list[Key]) -> Change:
        identity, key = self.dice.choice(rows)
        shown = key if self._world.shape.type == "bigint" else key.isoformat()
        only_key = "ts" not in self._world.shape.primary_key and self.dice.random() < 0.5
        return Change(
            "select public.modak_delete('public.t', %s)",
            (Jsonb({"id": identity} if only_key else {"id": identity, "ts": shown}),),
            twin_sql="delete from public.twin where id = %s and ts = %s",
            twin_parameters=(identity, key),
        )
