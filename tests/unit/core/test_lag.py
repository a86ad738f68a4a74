"""Lags: every spelling, the calendar arithmetic against Python's, and the refusals."""

from __future__ import annotations

import calendar
import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modak.core.lag import Lag
from modak.core.tier_key import KEY_MAX, KEY_MIN, MICROSECONDS_PER_DAY, TierKeyType
from modak.errors import UsageError

HOUR = 3_600_000_000
EPOCH = datetime.datetime(1970, 1, 1)
int4 = st.integers(0, 2**31 - 1)
intervals = st.builds(Lag, int4, int4, st.integers(0, KEY_MAX))
whole_days = st.builds(Lag, st.integers(0, 5_000), st.integers(0, 100_000))
moments = st.datetimes(min_value=datetime.datetime(1000, 1, 1))


def microseconds_of(moment: datetime.datetime) -> int:
    return (moment - EPOCH) // datetime.timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("text", "lag"),
    [
        ("30 days", Lag(days=30)),
        ("1 year 2 mons", Lag(months=14)),
        ("6 hours", Lag(microseconds=6 * HOUR)),
        ("1 day 02:03:04.5", Lag(days=1, microseconds=2 * HOUR + 184_500_000)),
        ("90 min", Lag(microseconds=90 * 60_000_000)),
        ("P1Y2M10DT2H", Lag(months=14, days=10, microseconds=2 * HOUR)),
        ("PT5M", Lag(microseconds=5 * 60_000_000)),
        ("P5M", Lag(months=5)),
        ("P2W", Lag(days=14)),
        ("PT0.5S", Lag(microseconds=500_000)),
        ("2 weeks 1 day", Lag(days=15)),
        ("1.5 weeks", Lag(days=10, microseconds=12 * HOUR)),
        ("1.5 years", Lag(months=18)),
        ("0.25 d", Lag(microseconds=6 * HOUR)),
        ("1 YEAR", Lag(months=12)),
        ("3hrs2mins", Lag(microseconds=3 * HOUR + 120_000_000)),
        ("10 ms", Lag(microseconds=10_000)),
        ("7 usecs", Lag(microseconds=7)),
        ("02:03", Lag(microseconds=2 * HOUR + 180_000_000)),
        ("1000:00:00", Lag(microseconds=1000 * HOUR)),
        ("  0 days ", Lag()),
    ],
)
def test_spellings_of_intervals(text: str, lag: Lag) -> None:
    assert Lag.parse(text, TierKeyType.TIMESTAMPTZ) == lag


@pytest.mark.parametrize(
    "text",
    ["", "days", "-1 day", "1 day ago", "1 fortnight", "3 m", "0.5 months", "1 day 2 days", "2 hours 01:00", "P", "PT", "P1YT",
     "1 day 02:60", "0.1 us", "9999999999 days", "9" * 30 + " days", "1 1", "infinity", "1_0 days", "1e3 days", "1 day,"],
)  # fmt: skip
def test_what_is_no_interval_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        Lag.parse(text, TierKeyType.TIMESTAMP)


@pytest.mark.parametrize("key_type", [one for one in TierKeyType if one.is_time])
def test_a_bare_number_on_a_time_key_names_the_way_out(key_type: TierKeyType) -> None:
    with pytest.raises(UsageError) as caught:
        Lag.parse("30", key_type)
    assert caught.value.hint == "say 30 days"


@pytest.mark.parametrize("text", ["1_000", "-1", "+1", "1.5", "30 days", "", "1e3", "٣", str(KEY_MAX + 1)])
def test_integer_keys_take_digits_only(text: str) -> None:
    with pytest.raises(UsageError):
        Lag.parse(text, TierKeyType.BIGINT)


def test_a_lone_m_is_refused_because_it_has_two_meanings() -> None:
    with pytest.raises(UsageError) as caught:
        Lag.parse("6 m", TierKeyType.TIMESTAMP)
    assert "minutes or months" in str(caught.value.hint)


@pytest.mark.parametrize("text", ["6 hours", "1.5 days", "24:00:00", "1 day 00:00:01"])
def test_date_keys_have_no_part_of_a_day(text: str) -> None:
    with pytest.raises(UsageError, match="below a day"):
        Lag.parse(text, TierKeyType.DATE)
    assert Lag.parse("1 mon 0 hours", TierKeyType.DATE) == Lag(months=1)


@given(lag=intervals)
def test_the_text_of_an_interval_reads_back(lag: Lag) -> None:
    assert Lag.parse(lag.text, TierKeyType.TIMESTAMP) == lag


@given(number=st.integers(0, KEY_MAX))
def test_the_text_of_a_number_reads_back(number: int) -> None:
    assert Lag.parse(str(number), TierKeyType.INTEGER) == Lag(number=number)
    assert Lag(number=number).text == str(number)


@pytest.mark.parametrize(
    ("lag", "text"),
    [
        (Lag(14, 3, 4 * HOUR + 306_000_000), "1 year 2 mons 3 days 04:05:06"),
        (Lag(24, 1, 0), "2 years 1 day"),
        (Lag(1, 0, 1), "1 mon 00:00:00.000001"),
        (Lag(), "00:00:00"),
    ],
)
def test_the_text_is_what_postgres_prints(lag: Lag, text: str) -> None:
    assert lag.text == text


@given(key=st.integers(KEY_MIN, KEY_MAX), number=st.integers(0, KEY_MAX))
def test_numbers_subtract_and_stop_at_the_lowest_key(key: int, number: int) -> None:
    assert Lag(number=number).before(key, TierKeyType.BIGINT) == max(KEY_MIN, key - number)


@given(moment=moments, months=st.integers(0, 9_000), days=st.integers(0, 9_000), microseconds=st.integers(0, 10**13))
def test_intervals_subtract_months_then_days_then_time(moment: datetime.datetime, months: int, days: int, microseconds: int) -> None:
    year, month_from_zero = divmod(moment.year * 12 + moment.month - 1 - months, 12)
    last_day = calendar.monthrange(year, month_from_zero + 1)[1]
    expected = moment.replace(year=year, month=month_from_zero + 1, day=min(moment.day, last_day))
    expected -= datetime.timedelta(days=days, microseconds=microseconds)
    lag = Lag(months, days, microseconds)
    for key_type in (TierKeyType.TIMESTAMP, TierKeyType.TIMESTAMPTZ):
        assert lag.before(microseconds_of(moment), key_type) == microseconds_of(expected)


@given(days=st.integers(-500_000, 500_000), lag=whole_days)
def test_a_date_moves_as_its_midnight_does(days: int, lag: Lag) -> None:
    midnight = lag.before(days * MICROSECONDS_PER_DAY, TierKeyType.TIMESTAMP)
    assert lag.before(days, TierKeyType.DATE) * MICROSECONDS_PER_DAY == midnight


@pytest.mark.parametrize(
    ("key", "lag", "expected"),
    [
        ("2024-03-31", "1 mon", "2024-02-29"),
        ("2023-03-31", "1 mon", "2023-02-28"),
        ("2024-02-29", "1 year", "2023-02-28"),
        ("2024-03-31", "1 mon 1 day", "2024-02-28"),
        ("0001-01-31", "1 mon", "0001-12-31 BC"),
    ],
)
def test_the_day_is_held_inside_the_month(key: str, lag: str, expected: str) -> None:
    key_type = TierKeyType.DATE
    assert key_type.encode(Lag.parse(lag, key_type).before(key_type.decode(key), key_type)) == expected


@given(key=st.integers(KEY_MIN, KEY_MAX), lag=intervals)
def test_before_never_lies_after_and_never_leaves_the_range(key: int, lag: Lag) -> None:
    assert KEY_MIN <= lag.before(key, TierKeyType.TIMESTAMP) <= key


@given(one=intervals, other=intervals)
def test_approximate_counts_a_month_as_thirty_days(one: Lag, other: Lag) -> None:
    total = datetime.timedelta(days=1) // datetime.timedelta(microseconds=1) * (30 * one.months + one.days) + one.microseconds
    assert one.approximate(TierKeyType.TIMESTAMP) == total
    assert Lag(one.months, one.days).approximate(TierKeyType.DATE) == 30 * one.months + one.days
    assert Lag(number=one.days).approximate(TierKeyType.BIGINT) == one.days


def test_a_year_outlasts_three_hundred_fifty_nine_days_but_not_three_hundred_sixty_one() -> None:
    lengths = [Lag.parse(text, TierKeyType.DATE).approximate(TierKeyType.DATE) for text in ("359 days", "1 year", "361 days")]
    assert lengths == sorted(lengths)
    assert len(set(lengths)) == 3


@pytest.mark.parametrize(
    ("lag", "key_type", "words"),
    [
        (Lag(number=1), TierKeyType.DATE, "30 days"),
        (Lag(days=1), TierKeyType.BIGINT, "a number"),
        (Lag(microseconds=1), TierKeyType.DATE, "below a day"),
    ],
)
def test_a_lag_of_another_kind_of_key_is_refused(lag: Lag, key_type: TierKeyType, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        lag.before(0, key_type)
    with pytest.raises(UsageError, match=words):
        lag.approximate(key_type)


@pytest.mark.parametrize("parts", [{"days": -1}, {"number": -1}, {"months": 2**31}, {"number": 1, "days": 1}])
def test_a_lag_that_makes_no_sense_cannot_be_built(parts: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        Lag(**parts)
