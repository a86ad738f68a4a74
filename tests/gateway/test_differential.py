"""Random queries over a tiered table with corrections, and over its plain twin: the same rows through the name, modak.query and the port.

The seed of a failing query is in its name; before it is shown, everything that is not needed for the difference is taken out of it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import psycopg
import pytest
from tests.worlds import KEYS, World

pytestmark = pytest.mark.spark

Session = psycopg.Connection[tuple[Any, ...]]
SEEDS = range(20)

# Conditions on every type, true for some rows and false for others; {n} is a small random number.
CONDITIONS = [
    "{a}.id % 7 = {n} % 7",
    "{a}.id between {n} * 10 and {n} * 15",
    "{a}.id in ({n}, {n} + 1, 10000 + {n}, 40)",
    "{a}.small <> 3",
    "{a}.small is not null and {a}.n >= {n}",
    "{a}.big / 1000003 > {n}",
    "{a}.f > {n} / 3.0",
    "{a}.d <= {n}",
    "{a}.num * 2 - 1 > {n}",
    "{a}.loose > {n}",
    "{a}.t is null",
    "{a}.t like 'Zeile {n}%'",
    "{a}.t = 'corrected' or {a}.t = ''",
    "{a}.t > 'Zeile {n}'",
    "{a}.v in ('v1', 'v3')",
    "{a}.c = 'c1'",
    "not {a}.b",
    "{a}.b is distinct from ({a}.n > {n})",
    "{a}.day >= date '2026-01-01' + {n}",
    "extract(month from {a}.day) = 2",
    "{a}.at < timestamptz '2026-03-29 00:00+00' + {n} * interval '1 day'",
    "{a}.u <> md5('{n}')::uuid",
    "{a}.raw > '\\x80'",
    "{a}.j @> '{{\"k\": 2}}'",
    "{a}.tags @> array['{n}']",
    "{a}.gap > interval '{n} minutes'",
    "{a}.key >= (select k.key from {t} k where k.id = {n} + 1)",
    "{a}.n in (select s.n from {t} s where s.small = {n} % 7)",
    "coalesce({a}.t, 'none') <> 'late'",
    "case when {a}.b then {a}.n else {a}.small end > {n} % 20",
]
# Through the name each of these is a query of the lake per row, so a query has at most one of them, and no join.
CORRELATED = [
    "a.n = (select max(m.n) from {t} m where m.small = a.small)",
    "a.num > (select avg(m.num) from {t} m where m.v = a.v and m.id <> a.id)",
    "a.key = (select min(m.key) from {t} m where m.n = a.n and m.b is not distinct from a.b)",
    "exists (select from {t} m where m.id = a.id + {n} and m.small <> a.small)",
    "(select count(*) from {t} m where m.n = a.n and m.day >= a.day) between 2 and 5",
]
PLAIN = ["id", "key", "small", "n", "big", "f", "d", "num", "loose", "t", "v", "c", "b", "day", "at", "u", "raw", "j", "tags", "gap"]
AGGREGATES = [
    "count(*)",
    "sum({a}.n)",
    "sum({a}.big)",
    "sum({a}.num)",
    "min({a}.key)",
    "max({a}.at)",
    "avg({a}.n)",
    "avg({a}.num)",
    "max({a}.d)",
]
AGGREGATES += ["count(distinct {a}.v)", "bool_or({a}.b)", "min({a}.id) filter (where {a}.b)", "max({a}.day)"]
GROUPS = ["{a}.small", "{a}.n", "{a}.b", "{a}.v", "{a}.day", "{a}.small + 1"]
WINDOWS = ["row_number() over (order by {a}.id, {a}.key)", "rank() over (partition by {a}.small order by {a}.n)"]
WINDOWS += ["sum({a}.n) over (partition by {a}.b order by {a}.id)", "lag({a}.num) over (order by {a}.id)"]


@dataclass(frozen=True)
class Query:
    """A query in parts that can be left out one by one."""

    outputs: tuple[str, ...]
    conditions: tuple[str, ...] = ()
    join: str = ""
    groups: tuple[str, ...] = ()
    limit: str = ""
    cte: bool = False

    def sql(self, table: str) -> str:
        outputs = ", ".join((*self.groups, *self.outputs))
        places = ", ".join(f"{place + 1} nulls first" for place in range(len(self.groups) + len(self.outputs)))
        text = f"select {outputs} from {'picked' if self.cte else '{t}'} a {self.join}"
        text += f" where {' and '.join(f'({condition})' for condition in self.conditions)}" if self.conditions else ""
        text += f" group by {', '.join(self.groups)}" if self.groups else ""
        if self.limit:
            text += f" order by {places} {self.limit}"
        text = f"with picked as (select * from {{t}} where id % 3 <> 1) {text}" if self.cte else text
        return text.replace("{t}", table)

    def smaller(self) -> Iterator[Query]:
        for place in range(len(self.conditions)):
            yield replace(self, conditions=self.conditions[:place] + self.conditions[place + 1 :])
        for place in range(len(self.outputs)):
            if len(self.outputs) > 1:
                yield replace(self, outputs=self.outputs[:place] + self.outputs[place + 1 :])
        yield from (replace(self, limit=""), replace(self, cte=False))
        if self.join and not any("b." in part for part in (*self.outputs, *self.conditions, *self.groups)):
            yield replace(self, join="")


def generated(seed: int) -> Query:
    dice = random.Random(seed)
    joined = dice.random() < 0.3

    def fill(text: str) -> str:
        alias = dice.choice(["a", "b"]) if joined else "a"
        return text.replace("{a}", alias).replace("{n}", str(dice.randint(0, 40))).replace("{{", "{").replace("}}", "}")

    conditions = tuple(fill(text) for text in dice.sample(CONDITIONS, dice.randint(0, 3)))
    if not joined and dice.random() < 0.35:
        conditions += (fill(dice.choice(CORRELATED)),)
    join = dice.choice(["join", "left join"]) + " {t} b on b.id = a.id + 40 and b.small = a.small" if joined else ""
    if dice.random() < 0.4:
        groups = tuple(fill(text) for text in dice.sample(GROUPS, dice.randint(0, 2)))
        return Query(
            tuple(fill(text) for text in dice.sample(AGGREGATES, dice.randint(1, 4))), conditions, join, groups, "", dice.random() < 0.2
        )
    outputs = ["a.id", *(f"a.{name}" for name in dice.sample(PLAIN, dice.randint(1, 6)))]
    outputs += [text.replace("{a}", "a") for text in dice.sample(WINDOWS, dice.randint(0, 1))]
    sortable = not {"a.j", "a.tags"} & set(outputs)
    limit = f"limit {dice.randint(1, 30)} offset {dice.randint(0, 5)}" if sortable and not joined and dice.random() < 0.3 else ""
    return Query(tuple(outputs), conditions, join, (), limit, dice.random() < 0.2)


def rows_of(session: Session, sql: str) -> list[tuple[Any, ...]] | str:
    try:
        return sorted(session.execute(sql).fetchall(), key=repr)
    except psycopg.Error as error:
        return str(error.sqlstate)


def by_query(session: Session, sql: str) -> list[tuple[Any, ...]] | str:
    """Through modak.query, with the columns that Postgres itself says the statement has."""
    try:
        columns = session.execute(f"select * from ({sql}) q limit 0").description or []
        types = [column.type_display for column in columns]
    except psycopg.Error as error:
        return str(error.sqlstate)
    shape = ", ".join(f"c{place} {name}" for place, name in enumerate(types))
    return rows_of(session, f"select * from modak.query($modak${sql}$modak$) as t({shape})")


def minimal(query: Query, differs: Callable[[Query], bool]) -> Query:
    for candidate in query.smaller():
        if candidate != query and differs(candidate):
            return minimal(candidate, differs)
    return query


@pytest.mark.parametrize("seed", SEEDS)
def test_random_queries_read_the_same_through_every_door(session: Session, people: Session, seed: int) -> None:
    query, key_type = generated(seed), random.Random(seed).choice(list(KEYS))
    tiered, plain = f"public.t_{key_type}", f"public.p_{key_type}"
    session.execute("set timezone = 'UTC'" if seed % 2 else "set timezone = 'Asia/Kathmandu'")
    people.execute("set timezone = 'UTC'" if seed % 2 else "set timezone = 'Asia/Kathmandu'")
    doors: dict[str, Callable[[str], list[tuple[Any, ...]] | str]] = {
        "the name": lambda sql: rows_of(session, sql),
        "the port": lambda sql: rows_of(people, sql),
        "modak.query": lambda sql: by_query(session, sql),
    }
    for door, ask in doors.items():

        def differs(candidate: Query, ask: Callable[[str], list[tuple[Any, ...]] | str] = ask) -> bool:
            return ask(candidate.sql(tiered)) != rows_of(session, candidate.sql(plain))

        if differs(query):
            smallest = minimal(query, differs).sql(tiered)
            expected = rows_of(session, smallest.replace(tiered, plain))
            pytest.fail(f"seed {seed}, through {door}: {smallest}\nfound    {ask(smallest)}\nexpected {expected}")


def test_the_generator_is_worth_its_while(world: World) -> None:
    """Most queries must be valid and give rows; else the comparison above would compare nothing."""
    with psycopg.connect(world.dsn, autocommit=True) as session:
        found = [rows_of(session, generated(seed).sql("public.p_bigint")) for seed in SEEDS]
    assert sum(isinstance(rows, str) for rows in found) <= len(found) // 10
    assert sum(bool(rows) and not isinstance(rows, str) for rows in found) >= len(found) // 2
