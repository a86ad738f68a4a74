"""Every key type: text to integer and back, the order of both, and what is refused."""

from __future__ import annotations

import calendar
import datetime
import itertools

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from modak.core.tier_key import KEY_MAX, KEY_MIN, MICROSECONDS_PER_DAY, TierKeyType, civil_to_days, days_in_month, days_to_civil
from modak.errors import Refused, ValueRefused

EPOCH = datetime.datetime(1970, 1, 1)
TIMES = [TierKeyType.TIMESTAMPTZ, TierKeyType.TIMESTAMP, TierKeyType.DATE]
every_type = pytest.mark.parametrize("key_type", list(TierKeyType), ids=lambda one: one.name)
every_time = pytest.mark.parametrize("key_type", TIMES, ids=lambda one: one.name)


def keys(key_type: TierKeyType) -> st.SearchStrategy[int]:
    """The whole range, and the centuries around us more often than chance would."""
    whole = st.integers(key_type.minimum, key_type.maximum)
    day = MICROSECONDS_PER_DAY if key_type.unit == "µs" else 1
    near = st.integers(-2_000 * 366 * day, 2_000 * 366 * day) if key_type.is_time else st.integers(-1000, 1000)
    return st.one_of(whole, near, near.map(lambda key: key // day * day))


@every_type
@given(data=st.data())
def test_a_key_survives_the_way_through_text(key_type: TierKeyType, data: st.DataObject) -> None:
    key = data.draw(keys(key_type))
    assert key_type.decode(key_type.encode(key)) == key
    assert key_type.decode_bound(key_type.encode(key)) == key


def test_integers_end_where_their_type_does() -> None:
    integers = [TierKeyType.SMALLINT, TierKeyType.INTEGER, TierKeyType.BIGINT]
    assert [one.minimum for one in integers] == [-32_768, -2_147_483_648, KEY_MIN]
    assert [one.maximum for one in integers] == [32_767, 2_147_483_647, KEY_MAX]


@every_type
def test_the_ends_of_the_range_survive_and_the_next_keys_are_refused(key_type: TierKeyType) -> None:
    for key in (key_type.minimum, key_type.maximum):
        assert key_type.decode(key_type.encode(key)) == key
    for key in (key_type.minimum - 1, key_type.maximum + 1):
        with pytest.raises(ValueRefused, match="out of range"):
            key_type.encode(key)


@pytest.mark.parametrize(
    ("key_type", "text", "key"),
    [
        (TierKeyType.BIGINT, "-9223372036854775808", KEY_MIN),
        (TierKeyType.SMALLINT, "-7", -7),
        (TierKeyType.TIMESTAMPTZ, "2026-07-01 00:00:00+00", 1_782_864_000_000_000),
        (TierKeyType.TIMESTAMPTZ, "2026-07-01 02:00:00+02", 1_782_864_000_000_000),
        (TierKeyType.TIMESTAMPTZ, "2026-06-30 20:30:00-03:30", 1_782_864_000_000_000),
        (TierKeyType.TIMESTAMPTZ, "1970-01-01 05:53:28+05:53:28", 0),
        (TierKeyType.TIMESTAMPTZ, "1969-12-31 23:15:30-00:44:30", 0),
        (TierKeyType.TIMESTAMPTZ, "2026-07-01T00:00:00.5+00:00", 1_782_864_000_500_000),
        (TierKeyType.TIMESTAMPTZ, "1970-01-01T00:00:00Z", 0),
        (TierKeyType.TIMESTAMP, "1969-12-31 23:59:59.999999", -1),
        (TierKeyType.TIMESTAMP, "1970-01-01 00:00:00.07", 70_000),
        (TierKeyType.TIMESTAMP, "294247-01-10 04:00:54.775807", KEY_MAX),
        (TierKeyType.DATE, "2000-02-29", 11_016),
        (TierKeyType.DATE, "0001-12-31 BC", -719_163),
        (TierKeyType.DATE, "4714-11-24 BC", -2_440_588),
        (TierKeyType.DATE, "5874897-12-31", 2_145_042_905),
    ],
)
def test_known_values(key_type: TierKeyType, text: str, key: int) -> None:
    assert key_type.decode(text) == key


@pytest.mark.parametrize(
    ("key_type", "key", "text"),
    [
        (TierKeyType.TIMESTAMPTZ, 1_782_864_000_000_000, "2026-07-01 00:00:00+00"),
        (TierKeyType.TIMESTAMPTZ, 120_000, "1970-01-01 00:00:00.12+00"),
        (TierKeyType.TIMESTAMP, -1, "1969-12-31 23:59:59.999999"),
        (TierKeyType.TIMESTAMP, civil_to_days(-43, 3, 15) * MICROSECONDS_PER_DAY, "0044-03-15 00:00:00 BC"),
        (TierKeyType.DATE, civil_to_days(10_000, 1, 1), "10000-01-01"),
    ],
)
def test_known_literals(key_type: TierKeyType, key: int, text: str) -> None:
    assert key_type.encode(key) == text


@given(moment=st.datetimes(), offset_minutes=st.integers(-15 * 60, 15 * 60))
def test_agrees_with_python_where_python_reaches(moment: datetime.datetime, offset_minutes: int) -> None:
    microseconds = (moment - EPOCH) // datetime.timedelta(microseconds=1)
    assert TierKeyType.TIMESTAMP.decode(moment.isoformat(" ")) == microseconds
    assert TierKeyType.DATE.decode(moment.date().isoformat()) == (moment.date() - EPOCH.date()).days
    zone = datetime.timezone(datetime.timedelta(minutes=offset_minutes))
    text = moment.replace(tzinfo=zone).isoformat(" ")
    assert TierKeyType.TIMESTAMPTZ.decode(text) == microseconds - offset_minutes * 60_000_000


@given(days=st.integers(-(10**10), 10**10))
def test_the_calendar_has_no_gap(days: int) -> None:
    year, month, day = days_to_civil(days)
    assert civil_to_days(year, month, day) == days
    assert 1 <= day <= days_in_month(year, month)
    following = days_to_civil(days + 1)
    assert following > (year, month, day)
    assert following[2] == 1 or following == (year, month, day + 1)


def test_every_day_of_four_centuries_agrees_with_python() -> None:
    """The calendar repeats after 400 years, so this is all of it."""
    epoch = datetime.date(1970, 1, 1).toordinal()
    for ordinal in range(datetime.date(1700, 2, 1).toordinal(), datetime.date(2100, 4, 1).toordinal()):
        date = datetime.date.fromordinal(ordinal)
        assert days_to_civil(ordinal - epoch) == (date.year, date.month, date.day)
    for year, month in itertools.product(range(1700, 2101), range(1, 13)):
        assert days_in_month(year, month) == calendar.monthrange(year, month)[1]


@pytest.mark.parametrize(("year", "length"), [(2024, 29), (2023, 28), (1900, 28), (2000, 29), (0, 29), (-4, 29), (-100, 28)])
def test_leap_years_before_and_after_christ(year: int, length: int) -> None:
    assert days_in_month(year, 2) == length


@every_time
@given(data=st.data())
def test_order_of_keys_is_order_of_moments(key_type: TierKeyType, data: st.DataObject) -> None:
    low, high = sorted((data.draw(keys(key_type)), data.draw(keys(key_type))))
    assume(low < high)
    day = MICROSECONDS_PER_DAY if key_type.unit == "µs" else 1
    assert (days_to_civil(low // day), low % day) < (days_to_civil(high // day), high % day)


@every_time
@pytest.mark.parametrize("text", ["infinity", "-infinity"])
def test_an_infinite_value_is_refused_but_an_infinite_bound_is_open(key_type: TierKeyType, text: str) -> None:
    with pytest.raises(ValueRefused) as caught:
        key_type.decode(text)
    assert caught.value.hint
    assert key_type.decode_bound(text) == (KEY_MIN if text.startswith("-") else KEY_MAX)


@every_type
def test_open_bounds_go_both_ways(key_type: TierKeyType) -> None:
    assert key_type.decode_bound("MINVALUE") == KEY_MIN
    assert key_type.decode_bound("MAXVALUE") == KEY_MAX
    assert key_type.encode_bound(KEY_MIN) == "MINVALUE"
    assert key_type.encode_bound(KEY_MAX) == "MAXVALUE"
    assert key_type.encode_bound(5) == key_type.encode(5)


@pytest.mark.parametrize("text", ["294247-01-10 04:00:54.775808", "294276-12-31 23:59:59.999999"])
def test_past_int64_a_value_is_refused_and_a_bound_stays_hot(text: str) -> None:
    with pytest.raises(ValueRefused, match="out of range"):
        TierKeyType.TIMESTAMP.decode(text)
    assert TierKeyType.TIMESTAMP.decode_bound(text) == KEY_MAX
    assert TierKeyType.TIMESTAMPTZ.decode_bound(text + "+00") == KEY_MAX


@pytest.mark.parametrize(
    ("key_type", "text"),
    [
        (TierKeyType.BIGINT, "1.0"),
        (TierKeyType.BIGINT, "1_000"),
        (TierKeyType.BIGINT, "٣"),
        (TierKeyType.BIGINT, ""),
        (TierKeyType.BIGINT, "MAXVALUE"),
        (TierKeyType.SMALLINT, "32768"),
        (TierKeyType.DATE, "2023-02-29"),
        (TierKeyType.DATE, "0101-02-29 BC"),
        (TierKeyType.DATE, "0000-01-01"),
        (TierKeyType.DATE, "2023-13-01"),
        (TierKeyType.DATE, "2023-00-01"),
        (TierKeyType.DATE, "2023-01-00"),
        (TierKeyType.DATE, "01/02/2023"),
        (TierKeyType.DATE, "2023-01-01 00:00:00"),
        (TierKeyType.TIMESTAMP, "2023-01-01 24:00:00"),
        (TierKeyType.TIMESTAMP, "2023-01-01 00:60:00"),
        (TierKeyType.TIMESTAMP, "2023-01-01 00:00:00.1234567"),
        (TierKeyType.TIMESTAMP, "2023-01-01 00:00:00+00"),
        (TierKeyType.TIMESTAMPTZ, "2023-01-01 00:00:00"),
        (TierKeyType.TIMESTAMPTZ, "2023-01-01 00:00:00+16"),
        (TierKeyType.TIMESTAMPTZ, "2023-01-01 00:00:00+00\n"),
    ],
)
def test_what_is_no_key_is_refused_with_the_type(key_type: TierKeyType, text: str) -> None:
    with pytest.raises(ValueRefused, match=key_type.value):
        key_type.decode(text)


@pytest.mark.parametrize(
    ("name", "key_type"),
    [
        *((one.value, one) for one in TierKeyType),
        ("int2", TierKeyType.SMALLINT),
        ("int4", TierKeyType.INTEGER),
        ("int8", TierKeyType.BIGINT),
        ("timestamptz", TierKeyType.TIMESTAMPTZ),
        ("timestamp", TierKeyType.TIMESTAMP),
        ("timestamp(3) with time zone", TierKeyType.TIMESTAMPTZ),
        ("timestamp(0) without time zone", TierKeyType.TIMESTAMP),
    ],
)
def test_names_of_types(name: str, key_type: TierKeyType) -> None:
    assert TierKeyType.from_pg(name) is key_type


@pytest.mark.parametrize("name", ["text", "uuid", "numeric", "numeric(10,2)", '"Date"', "date[]", ""])
def test_other_types_are_refused_with_the_supported_list(name: str) -> None:
    with pytest.raises(Refused) as caught:
        TierKeyType.from_pg(name)
    assert all(one.value in str(caught.value.hint) for one in TierKeyType)


def test_units() -> None:
    assert [one.unit for one in TierKeyType] == ["", "", "", "µs", "µs", "days"]
    assert [one for one in TierKeyType if one.is_time] == TIMES
