"""Columns whose names the triggers use themselves, and columns that are gone: no name stands in the way of comparing rows."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from tests.gateways import RunningGateway
from tests.support import reclaim_all
from tests.writing import Session

from modak.app import App
from modak.catalog import profiles
from modak.connection import Connection
from modak.core.registration import Options
from modak.core.table import Name
from modak.jobs.tier import tier
from modak.registration.register import register

pytestmark = [pytest.mark.spark, pytest.mark.inline]

COLUMNS = '"old" text, "new" int, "h" text, "changed" numeric, "standing" text[], "version" jsonb, "entry" text'
ROWS = """(1, 10, 'a', 1, 'h', 1.0, '{x}', '{}', 'e'), (2, 210, 'b', 2, 'h', 1.00, '{y}', '[]', null),
(3, 220, 'c', 3, null, 2, null, 'null', '//')"""


@pytest.fixture
def session(app: App, connection: Connection, gateway: RunningGateway) -> Iterator[Session]:
    connection.execute(
        f"create table public.odd (id bigint not null, gone int, at bigint, {COLUMNS}, primary key (id, at)) partition by range (at)"
    )
    connection.execute("alter table public.odd drop column gone")
    for number in range(2):
        connection.execute(
            f"create table public.odd_{number} partition of public.odd for values from ({number * 100}) to ({number * 100 + 100})"
        )
    # A partition that was a table before has its columns in another order.
    connection.execute(f"create table public.odd_2 ({COLUMNS}, left_over int, at bigint not null, id bigint not null)")
    connection.execute("alter table public.odd_2 drop column left_over")
    connection.execute("alter table public.odd attach partition public.odd_2 for values from (200) to (300)")
    connection.execute(f"insert into public.odd values {ROWS}")
    connection.execute(f"create table public.twin (id bigint, at bigint, {COLUMNS}, primary key (id, at))")
    connection.execute(f"insert into public.twin values {ROWS}")
    profile, name = profiles.get(connection, None), Name("public", "odd")
    options = Options(tier_key="at", lag="0", width="100")
    register(connection, app.lake(profile), name, options, profile=profile.name)
    with app.job(name) as job:
        assert tier(job).rows
        reclaim_all(job)
    with psycopg.connect(app.dsn, autocommit=True) as made:
        yield made


@pytest.mark.parametrize(
    "statement",
    [
        """update public.{t} set "old" = "h", "new" = "new" + 1 returning *""",
        """update public.{t} set "changed" = 1.000 where "changed" = 1 returning *""",
        """update public.{t} set "version" = '{{"k": 1}}', "standing" = '{{a,null}}' where id > 1 returning *""",
        """update public.{t} set "h" = "h", "old" = "old" returning *""",
        """delete from public.{t} where "entry" is null or "new" = 3 returning *""",
        """update public.{t} t set "h" = o."old" from public.{t} o where o.id = 2 returning t.*""",
    ],
)
def test_no_name_stands_in_the_way(session: Session, statement: str) -> None:
    for _ in range(2):
        found, wanted = (sorted(session.execute(statement.format(t=table)).fetchall(), key=str) for table in ("odd", "twin"))
        assert found == wanted
        assert wanted or "delete" in statement or "o." in statement
    everything = "select * from public.{} order by id"
    assert session.execute(everything.format("odd")).fetchall() == session.execute(everything.format("twin")).fetchall()
