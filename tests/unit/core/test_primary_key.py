"""Key texts: one key, one text."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from modak.core import primary_key
from modak.errors import ValueRefused

# The two special characters often enough that escapes meet each other.
texts = st.text(st.one_of(st.sampled_from("\\\x1f|a'\"é"), st.characters(exclude_characters="\0", codec="utf-8")), max_size=8)
keys = st.lists(texts, min_size=1, max_size=4)


@given(parts=keys)
@example(parts=["a\\", "\x1fb"])
@example(parts=["a\\b"])
def test_a_key_survives_the_way_through_text(parts: list[str]) -> None:
    assert primary_key.decode(primary_key.encode(parts), len(parts)) == tuple(parts)


@given(text=texts)
@example(text="a\\b")
@example(text="a\x1fb")
def test_a_key_of_one_column_is_left_alone(text: str) -> None:
    assert primary_key.encode([text]) == text
    assert primary_key.decode(text, 1) == (text,)


@given(count=st.integers(1, 4), data=st.data())
def test_no_two_keys_share_a_text(count: int, data: st.DataObject) -> None:
    one, other = (data.draw(st.lists(texts, min_size=count, max_size=count)) for _ in range(2))
    assert (primary_key.encode(one) == primary_key.encode(other)) == (one == other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a", "b|c"), ("a|b", "c")),
        (("a\x1f", "b"), ("a", "\x1fb")),
        (("a\\", "b"), ("a", "\\b")),
        (("\\\x1f", ""), ("\\", "\x1f")),
        (("", "a"), ("a", "")),
    ],
)
def test_pairs_made_to_collide_do_not(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    assert primary_key.encode(one) != primary_key.encode(other)


def test_the_published_encoding() -> None:
    assert primary_key.encode(["1", "d2"]) == "1\x1fd2"
    assert primary_key.encode(["a\\b", "c\x1fd"]) == "a\\\\b\x1fc\\\x1fd"


@pytest.mark.parametrize("parts", [[None], ["a", None], []])
def test_null_and_nothing_are_refused(parts: list[str | None]) -> None:
    with pytest.raises(ValueRefused, match="none is NULL"):
        primary_key.encode(parts)


def test_a_text_in_place_of_parts_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(TypeError):
        primary_key.encode("ab")
    with pytest.raises(TypeError):
        primary_key.sql_expression("ab")
    with pytest.raises(TypeError):
        primary_key.sql_expression([])


@pytest.mark.parametrize(("text", "count"), [("a", 2), ("a\x1fb", 3), ("a\x1fb\x1fc", 2), ("a\\b\x1fc", 2), ("a\x1fb\\", 2)])
def test_a_damaged_text_is_refused(text: str, count: int) -> None:
    with pytest.raises(ValueRefused):
        primary_key.decode(text, count)


def test_sql_of_one_column_is_its_text() -> None:
    assert primary_key.sql_expression(['"id"']) == 'pg_catalog.concat("id")'
    assert primary_key.sql_expression(['"id"'], "new.") == 'pg_catalog.concat(new."id")'


def test_sql_of_a_composite_key_escapes_the_escape_first_and_is_one_operand() -> None:
    sql = primary_key.sql_expression(["a", "b"], "r.")
    escaped = "replace(replace(pg_catalog.concat(r.{}), chr(92), chr(92) || chr(92)), chr(31), chr(92) || chr(31))"
    assert sql == f"({escaped.format('a')} || chr(31) || {escaped.format('b')})"


@given(count=st.integers(1, 5))
def test_sql_needs_no_string_literal(count: int) -> None:
    sql = primary_key.sql_expression([f'"c{number}"' for number in range(count)])
    assert re.search(r"['\\%]", sql) is None
