"""What may be registered, decided from plain data; the flows' tests ask real tables."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modak.core.registration import IDENTIFIER_BYTES_MAX, Options, decide, derived_name, follows_name, heap_name, proven_unique, view_name
from modak.core.table import Column, Dependent, Leaf, Name, Relation, quoted
from modak.core.tier_key import TierKeyType
from modak.core.type_map import PgType, has_one_text
from modak.source.relation import parse_name

BIGINT = PgType("bigint", "int8")
PARTITION = Leaf(2, Name("public", "events_0"), 1, 1, True, "FOR VALUES FROM (0) TO (100)", None, ())
EVENTS = Relation(
    oid=1,
    name=Name("public", "events"),
    kind="p",
    persistence="p",
    owner="me",
    strategy="r",
    key_columns=("event_time",),
    columns=(Column("id", BIGINT, True), Column("event_time", BIGINT, True), Column("val", PgType("text", "text"))),
    primary_key=("id", "event_time"),
    unique_keys=(("id", "event_time"),),
    partitions=(PARTITION,),
)
OPTIONS = Options("event_time")


def problems(relation: Relation = EVENTS, options: Options = OPTIONS) -> list[str]:
    return [problem.code for problem in decide(relation, options).problems]


def test_a_sound_table_has_no_problem() -> None:
    decision = decide(EVENTS, OPTIONS)
    assert (decision.problems, decision.notes) == ((), ())
    assert (decision.primary_key, decision.key_type, decision.layout) == (("id", "event_time"), TierKeyType.BIGINT, "none")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"kind": "v", "partitions": ()}, "kind"),
        ({"is_partition": True}, "is_partition"),
        ({"inherits": True}, "inheritance"),
        ({"persistence": "u"}, "persistence"),
        ({"persistence": "t"}, "persistence"),
        ({"may_alter": False}, "owner"),
        ({"row_security": True}, "row_security"),
        ({"strategy": None, "partitions": ()}, "not_partitioned"),
        ({"strategy": "h"}, "partitioning"),
        ({"strategy": "l", "partitions": ()}, "partitioning"),
        ({"key_columns": ("event_time", "id")}, "partitioning"),
        ({"key_columns": ("",)}, "partitioning"),
        ({"key_columns": ("id",)}, "partitioning"),
        ({"primary_key": ()}, "no_primary_key"),
        ({"siblings": frozenset({"events_hot"})}, "name_taken"),
        ({"name": Name("public", "a\nb")}, "table_name"),
        ({"partitions": (replace(PARTITION, bound="DEFAULT"),)}, "default_partition"),
        ({"partitions": (replace(PARTITION, is_leaf=False),)}, "partitioning"),
        ({"partitions": (replace(PARTITION, kind="f"),)}, "foreign_partition"),
        ({"partitions": (replace(PARTITION, bound="FOR VALUES FROM ('x') TO ('y')"),)}, "bound"),
        ({"dependents": (Dependent("view", "public.v", "events", 9, 1),)}, "dependent"),
    ],
)
def test_each_rule_speaks_alone(change: dict[str, object], code: str) -> None:
    assert problems(replace(EVENTS, **change)) == [code]  # type: ignore[arg-type]


def test_the_heap_surface_minds_another_name_and_no_dependents() -> None:
    heap = replace(OPTIONS, surface="heap")
    table = replace(EVENTS, dependents=(Dependent("view", "public.v", "events", 9, 1),))
    assert problems(replace(table, siblings=frozenset({"events_hot"})), heap) == []
    assert problems(replace(table, siblings=frozenset({"events_all"})), heap) == ["name_taken"]


@pytest.mark.parametrize(
    ("kind", "on_oid", "follows"),
    [("view", 1, True), ("function", 1, True), ("materialized view", 1, False), ("foreign key", 1, False), ("view", 2, False)],
)
def test_only_views_and_functions_on_the_table_itself_follow_its_name(kind: str, on_oid: int, follows: bool) -> None:
    dependent = Dependent(kind, "x", "events", 9, on_oid)
    assert follows_name(EVENTS, dependent) is follows
    table = replace(EVENTS, dependents=(dependent,))
    assert problems(table, replace(OPTIONS, dependents="move")) == ([] if follows else ["dependent"])
    assert problems(table, replace(OPTIONS, dependents="keep")) == []


def test_notes_tell_what_does_not_stand_in_the_way() -> None:
    table = replace(EVENTS, publications=("p",), columns=(Column("id", BIGINT), *EVENTS.columns[1:]))
    notes = decide(table, replace(OPTIONS, primary_key=("id",))).notes
    assert [word for word in ("no unique index", "NOT NULL", "publication p") if not any(word in note for note in notes)] == []


@pytest.mark.parametrize(
    ("key", "proven"), [(("id", "event_time"), True), (("event_time", "id", "val"), True), (("id",), False), (("val",), False)]
)
def test_a_superset_of_a_unique_key_is_unique(key: tuple[str, ...], proven: bool) -> None:
    assert proven_unique(EVENTS, key) is proven


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=63))
def test_derived_names_fit_and_are_whole_characters(name: str) -> None:
    derived = derived_name(name, "_hot")
    assert len(derived.encode()) <= IDENTIFIER_BYTES_MAX
    assert derived.endswith("_hot")
    assert name.startswith(derived.removesuffix("_hot"))


def test_the_surface_decides_who_keeps_the_name() -> None:
    assert (heap_name(EVENTS, "view"), view_name(EVENTS, "view")) == ("events_hot", "events")
    assert (heap_name(EVENTS, "heap"), view_name(EVENTS, "heap")) == ("events", "events_all")


@given(st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=20))
def test_a_name_reads_back_as_it_was_printed(schema: str, table: str) -> None:
    name = Name(schema, table)
    assert parse_name(str(name)) == name


@pytest.mark.parametrize(
    ("identifier", "shown"), [("events", "events"), ("Events", '"Events"'), ("1a", '"1a"'), ('a"b', '"a""b"'), ("é", '"é"'), ("_x9", "_x9")]
)
def test_only_what_needs_quotes_gets_them(identifier: str, shown: str) -> None:
    assert quoted(identifier) == shown


@pytest.mark.parametrize(
    ("pg", "fits"),
    [
        (PgType("bigint", "int8"), True),
        (PgType("text", "text"), True),
        (PgType("numeric(10,2)", "numeric", modifier=(10 << 16 | 2) + 4), True),
        (PgType("numeric", "numeric"), False),
        (PgType("double precision", "float8"), False),
        (PgType("interval", "interval"), False),
        (PgType("jsonb", "jsonb"), False),
        (PgType("public.mood", "mood", "public", "e"), True),
        (PgType("public.citext", "citext", "public"), False),
        (PgType("integer[]", "_int4", element=PgType("integer", "int4")), False),
    ],
)
def test_a_key_has_one_text_per_value(pg: PgType, fits: bool) -> None:
    assert has_one_text(pg) is fits


def test_an_odd_name_is_told_as_a_name() -> None:
    refused = decide(replace(EVENTS, name=Name("public", "a\nb")), OPTIONS).problems[0]
    assert refused.message == "'public.a\\nb' has characters the lake cannot represent"
