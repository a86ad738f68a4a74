"""The error tree: one code per class, and the same words at every door."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from modak import errors
from modak.errors import ModakError, Problem, Refused, UsageError


def tree(root: type[ModakError] = ModakError) -> Iterator[type[ModakError]]:
    yield root
    for below in root.__subclasses__():
        if below.__module__ == errors.__name__:
            yield from tree(below)


def test_every_class_has_its_own_code() -> None:
    codes = [found.code for found in tree()]
    assert len(codes) == len(set(codes))
    assert all(re.fullmatch("[a-z_]+", code) for code in codes)


@pytest.mark.parametrize("found", list(tree()))
def test_every_class_has_a_sqlstate_a_retry_class_and_an_exit_code(found: type[ModakError]) -> None:
    assert re.fullmatch("[0-9A-Z]{5}", found.sqlstate)
    assert isinstance(found.retry, errors.Retry)
    assert found.exit_code == (2 if issubclass(found, UsageError) else 1)


def test_what_where_next() -> None:
    error = ModakError("it broke", hint="mend it", table="public.events", expected=100, found=None)
    assert str(error) == "it broke (table=public.events, expected=100)"
    assert error.as_dict() == {
        "error": "error",
        "message": "it broke",
        "hint": "mend it",
        "facts": {"table": "public.events", "expected": 100},
    }


def test_facts_of_any_kind_survive_json() -> None:
    error = ModakError("x", path=object(), flag=True, number=5)
    facts = json.loads(json.dumps(error.as_dict()))["facts"]
    assert (facts["flag"], facts["number"]) == (True, 5)
    assert facts["path"].startswith("<object")


def test_a_refusal_lists_its_problems_one_per_line() -> None:
    refused = Refused("no", [Problem("a", "first", "do this"), Problem("b", "second")], hint="nothing was changed")
    assert str(refused).splitlines() == ["no", "  - first; do this", "  - second"]
    assert refused.as_dict()["problems"] == [
        {"code": "a", "message": "first", "hint": "do this"},
        {"code": "b", "message": "second", "hint": None},
    ]
