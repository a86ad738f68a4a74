"""The first word of a statement: found as Postgres finds it, in a time that grows with the text and no faster."""

from __future__ import annotations

import time

import pytest

from modak.core.opening import end_of_comment, is_query, opening_word


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("select 1", "select"),
        (" \t\r\n\f\v((SELECT 1))", "select"),
        ("-- why\nselect 1", "select"),
        ("-- why\rselect 1", "select"),
        ("--\n--\nselect 1", "select"),
        ("/* a */ ( /* b */ values (1)", "values"),
        ("/**/with a as (select 1) table a", "with"),
        ("/* /* a */ select */ delete from t", "delete"),
        ("/* a *//* b */table t", "table"),
        ("/*/ */select", "select"),
        ("/***/select", "select"),
        ("/* -- */select", "select"),
        ("-- /*\nselect", "select"),
        ("select/* a */1", "select"),
        ("insert into t select 1", "insert"),
        ("explain select 1", "explain"),
        ("selection", "selection"),
        ("select$1", "select$1"),
        ("selecté", "selecté"),
        ("", ""),
        ("--", ""),
        ("-- select", ""),
        ("/* select", ""),
        ("/* /* */ select", ""),
        ("*/ select", ""),
        ("- - select", ""),
        ("/ * select", ""),
        ("1", ""),
        ("'select'", ""),
        ('"select"', ""),
        ("\u00a0select", ""),
    ],
)
def test_the_first_word(text: str, word: str) -> None:
    assert opening_word(text) == word
    assert is_query(text) == (word in ("select", "with", "values", "table"))


def test_where_a_comment_ends() -> None:
    assert end_of_comment("x /* a /* b */ c */ d", 2) == 19
    assert end_of_comment("/* a */", 0) == 7
    assert end_of_comment("/* a /* b */", 0) is None


@pytest.mark.parametrize("piece", ["/**/", "/* */\n", "(/**/", "--\n", "-- /*\n", " ", "(", "/*", "*/", "/*/", "/***/--\n"])
def test_no_text_takes_long(piece: str) -> None:
    """A megabyte of each. To a pattern each further comment was twice the work."""
    began = time.monotonic()
    assert not is_query(piece * (1_000_000 // len(piece)) + "x")
    assert time.monotonic() - began < 5
