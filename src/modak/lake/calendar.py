"""PyIceberg writes a partition's name into each snapshot's summary, through Python's dates, which end at the years 1 and 9999.

Postgres's do not, and a row of the year 44 BC must not stop a commit. The two names that need a calendar get ours; within Python's
years they are letter for letter what PyIceberg writes.
"""

from __future__ import annotations

from pyiceberg.utils import datetime as iceberg_datetime

from modak.core.tier_key import days_to_civil


def human_day(day_ordinal: int) -> str:
    year, month, day = days_to_civil(day_ordinal)
    return f"{year:0=4d}-{month:02}-{day:02}"


def human_hour(hour_ordinal: int) -> str:
    days, hour = divmod(hour_ordinal, 24)
    return f"{human_day(days)}-{hour:02}"


def use_long_calendar() -> None:
    """Once per process that commits; again is harmless."""
    iceberg_datetime.to_human_day = human_day
    iceberg_datetime.to_human_hour = human_hour
