"""Reading the registered name once rows are cold: what Postgres shows is what the table was."""

from __future__ import annotations

import pytest
from tests import events
from tests.gateways import RunningGateway
from tests.support import rows

from modak.app import App
from modak.connection import Connection

pytestmark = pytest.mark.spark


def test_the_name_shows_both_tiers(app: App, connection: Connection, gateway: RunningGateway) -> None:
    events.create(connection)
    events.put_under_modak(app, connection)
    assert rows(connection, "select * from public.events order by id") == events.ROWS
    events.tier(app)
    assert rows(connection, "select tier_key_hi from modak.cutline") == [(200,)]
    assert rows(connection, "select * from public.events order by id") == events.ROWS
    assert rows(connection, "select count(*), sum(id) from public.events where event_time < 150") == [(3, 6)]
