"""Partition names for any date that Postgres has."""

from __future__ import annotations

from datetime import date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modak.core.tier_key import civil_to_days
from modak.lake.calendar import human_day, human_hour


@given(st.dates())
def test_a_day_is_named_as_python_names_it(day: date) -> None:
    assert human_day((day - date(1970, 1, 1)).days) == day.isoformat()


@given(st.datetimes())
def test_an_hour_is_named_as_python_names_it(moment: datetime) -> None:
    hours = (moment - datetime(1970, 1, 1)) // timedelta(hours=1)
    assert human_hour(hours) == moment.isoformat("-", "hours")


@pytest.mark.parametrize(("year", "name"), [(-43, "-043-03-15"), (0, "0000-03-15"), (12345, "12345-03-15")])
def test_years_that_python_does_not_have(year: int, name: str) -> None:
    assert human_day(civil_to_days(year, 3, 15)) == name
