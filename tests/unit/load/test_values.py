"""Values as the text that Postgres reads; what Postgres makes of it is tested in tests/flows."""

from __future__ import annotations

import datetime
import enum
import json
import uuid
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modak.core.type_map import PgType
from modak.load.values import Form, form_of, json_texts, text_of

ARRAY = Form("array", element=Form())
JSON = Form("json")
UUID = uuid.UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")


class Colour(enum.StrEnum):
    RED = "red"


class Old(str, enum.Enum):  # noqa: UP042 - as people still write it
    RED = "red"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, None),
        ("", ""),
        ("a\tb", "a\tb"),
        (True, "true"),
        (False, "false"),
        (0, "0"),
        (-(2**70), str(-(2**70))),
        (1.5, "1.5"),
        (1e300, "1e+300"),
        (Decimal("1.50"), "1.50"),
        (datetime.date(2026, 3, 1), "2026-03-01"),
        (datetime.time(1, 2, 3, 4), "01:02:03.000004"),
        (datetime.datetime(2026, 3, 1, 1, 2, 3, tzinfo=datetime.UTC), "2026-03-01 01:02:03+00:00"),
        (datetime.timedelta(days=-1, seconds=5, microseconds=6), "-1 days 5 seconds 6 microseconds"),
        (UUID, str(UUID)),
        (b"\xde\xad", "\\xdead"),
        (memoryview(b""), "\\x"),
        ({"a": [1, None]}, '{"a":[1,null]}'),
        (Colour.RED, "red"),
        (Old.RED, "red"),
        (np.int64(5), "5"),
        (np.float64(1.5), "1.5"),
        (np.bool_(True), "true"),
    ],
)
def test_a_value_is_its_text(value: Any, text: str | None) -> None:
    assert text_of(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([], "{}"),
        ([1, None, 3], '{"1",NULL,"3"}'),
        ([[1, 2], [3, 4]], '{{"1","2"},{"3","4"}}'),
        (["a b", 'q"uote', "back\\slash", "NULL", ""], '{"a b","q\\"uote","back\\\\slash","NULL",""}'),
        ((True, 1.5), '{"true","1.5"}'),
        ("{1,2}", "{1,2}"),
    ],
)
def test_lists_are_arrays(value: Any, text: str) -> None:
    assert text_of(value, ARRAY) == text


def test_elements_have_their_own_form() -> None:
    assert text_of([{"a": 1}, [1], "x", None], Form("array", element=JSON)) == '{"{\\"a\\":1}","[1]","\\"x\\"",NULL}'
    assert text_of([UUID.bytes], Form("array", element=Form("uuid"))) == f'{{"{UUID.hex}"}}'
    assert text_of(["(1,1),(0,0)"], Form("array", element=Form(), delimiter=";")) == '{"(1,1),(0,0)"}'


@pytest.mark.parametrize("value", [{"k": 1}, [1.5, True], "text", 5, 1.5, True, "", {"at": "ü\n"}])
def test_json_is_itself(value: Any) -> None:
    assert json.loads(text_of(value, JSON) or "") == value


@pytest.mark.parametrize("value", [object(), {1, 2}, 1j, {"a": object()}, [object()]])
def test_what_has_no_text_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="Python type"):
        text_of(value, JSON if isinstance(value, dict) else ARRAY)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), Decimal("0.1234567890123456789012")])
def test_json_carries_no_number_that_it_would_change(value: Any) -> None:
    with pytest.raises(ValueError, match=r"JSON|Out of range"):
        text_of({"n": value}, JSON)
    assert text_of(Decimal("0.5"), JSON) == "0.5"


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(JSON_VALUES, max_size=8))
def test_a_column_of_json_is_dumped_as_its_values_are(values: list[Any]) -> None:
    texts = json_texts(values)
    assert [None if text is None else json.loads(text) for text in texts] == values
    assert texts == [text_of(value, JSON) for value in values]


def test_forms_follow_types() -> None:
    assert form_of(PgType("jsonb", "jsonb")).kind == "json"
    assert form_of(PgType("public.jsonb", "jsonb", namespace="public")).kind == "plain"
    assert form_of(PgType("uuid", "uuid")).kind == "uuid"
    assert form_of(PgType("numeric(5,2)", "numeric")).is_number
    assert form_of(PgType("json[]", "_json", element=PgType("json", "json"))).element == Form("json")
    assert form_of(PgType("box[]", "_box", element=PgType("box", "box"))).delimiter == ";"
