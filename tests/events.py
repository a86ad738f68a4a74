"""The fixture table E of the scenarios: five rows in three partitions."""

from __future__ import annotations

from dataclasses import replace
from typing import NoReturn

from modak.app import App
from modak.catalog import profiles
from modak.connection import Connection
from modak.core.registration import Options
from modak.core.table import Name
from modak.jobs import fold as folding
from modak.jobs import maintain as upkeep
from modak.jobs import retain as retention
from modak.jobs import tier as tiering
from modak.jobs.fold import FoldOutcome
from modak.jobs.maintain import MaintainOutcome
from modak.jobs.reclaim import Reclaimed
from modak.jobs.retain import RetainOutcome
from modak.jobs.tier import TierOutcome
from modak.registration.register import register
from tests.support import reclaim_patiently

EVENTS = Name("public", "events")
ROWS = [(1, 10, "a"), (2, 20, "b"), (3, 110, "c"), (4, 210, "hot"), (5, 220, "hot")]


def create(connection: Connection, *, key: str = "primary key (id, event_time)", partitions: int = 3) -> None:
    connection.execute(
        f"create table public.events (id bigint not null, event_time bigint not null, val text, {key}) partition by range (event_time)"
        if key
        else "create table public.events (id bigint not null, event_time bigint not null, val text) partition by range (event_time)"
    )
    for number in range(partitions):
        add_partition(connection, number)
    for row in ROWS:
        connection.execute("insert into public.events values (%s, %s, %s)", row)


def add_partition(connection: Connection, number: int, table: str = "public.events") -> None:
    connection.execute(f"create table public.p{number} partition of {table} for values from ({number * 100}) to ({number * 100 + 100})")


def put_under_modak(app: App, connection: Connection, **options: object) -> None:
    wanted = {"tier_key": "event_time", "primary_key": ("id",), "lag": "0", "width": "100", **options}
    profile = profiles.get(connection, None)
    register(connection, app.lake(profile), EVENTS, Options(**wanted), profile=profile.name)  # type: ignore[arg-type]


def tier(app: App, *, lock_attempts: int = 4, **options: object) -> TierOutcome:
    with app.job(EVENTS) as job:
        return tiering.tier(replace(job, lock_attempts=lock_attempts), **options)  # type: ignore[arg-type]


def drop_tiered(app: App, *, patience: float = 30) -> Reclaimed:
    """Where something is meant to stay, there is no point in patience."""
    with app.job(EVENTS) as job:
        return reclaim_patiently(job, patience)


def fold(app: App, *, lock_attempts: int = 4, **options: object) -> FoldOutcome:
    with app.job(EVENTS) as job:
        return folding.fold(replace(job, lock_attempts=lock_attempts), **options)  # type: ignore[arg-type]


def retain(app: App, *, lock_attempts: int = 4) -> RetainOutcome:
    """Retention needs no Spark, and gets none."""
    with app.job(EVENTS) as job:
        return retention.retain(replace(job, lock_attempts=lock_attempts, spark=_no_spark))


def maintain(app: App, *, lock_attempts: int = 4, **options: bool) -> MaintainOutcome:
    with app.job(EVENTS) as job:
        return upkeep.maintain(replace(job, lock_attempts=lock_attempts), **options)


def _no_spark() -> NoReturn:
    raise AssertionError("retention asked for Spark")
