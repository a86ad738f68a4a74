"""Loads that stage their cold rows, the jobs that take them in, and what the table then shows."""

from __future__ import annotations

from typing import Any

from modak.app import App
from modak.catalog import tables
from modak.connection import Connection
from modak.core.table import Name
from modak.jobs.adopt import AdoptOutcome, adopt
from modak.jobs.fold import FoldOutcome, fold
from modak.load import LoadClient, LoadOptions, LoadRequest, LoadResult, lake_storage
from tests.loading import World, content

Row = dict[str, Any]
# A key that says where its row is, and one that has to be looked for in both tiers.
BOTH = ["pairs", "events"]


class Loads:
    """Loads of one table under labels of their own."""

    def __init__(self, made: World, table: str) -> None:
        self._made, self._table, self._count = made, table, 0

    def _load(self, rows: list[Row], **options: Any) -> LoadResult:
        self._count += 1
        with LoadClient(LoadOptions(self._made.dsn, f"public.{self._table}", **options)) as client:
            return client.load(LoadRequest(f"label {self._count}", rows))

    def stage(self, *rows: Row) -> LoadResult:
        result = self._load(list(rows), spool_threshold=0, storage=lake_storage(self._made.dsn, self._made.app.settings))
        assert (result.state, result.spooled_rows) == ("staged", len(rows))
        return result

    def volume(self, rows: list[Row]) -> LoadResult:
        """Cold rows are staged, as far as they may be."""
        return self._load(rows, spool_threshold=0, storage=lake_storage(self._made.dsn, self._made.app.settings))

    def trickle(self, *rows: Row) -> LoadResult:
        result = self._load(list(rows))
        assert result.state == "committed"
        return result


def row(number: int, place: int, text: str | None = "x", n: int = 0) -> Row:
    return {"id": number, "event_time": place, "val": text, "n": n}


def run_adopt(app: App, table: str) -> AdoptOutcome:
    with app.job(Name("public", table)) as job:
        return adopt(job)


def run_fold(app: App, table: str) -> FoldOutcome:
    with app.job(Name("public", table)) as job:
        return fold(job)


def shown(connection: Connection, table: str) -> dict[int, tuple[int, str | None]]:
    found = content(connection, table)
    result = {one["id"]: (one["event_time"], one["val"]) for one in found}
    assert len(result) == len(found), f"a key is there twice: {found}"
    return result


def seam_of(connection: Connection, table: str) -> tuple[int, int | None]:
    found = tables.get(connection, Name("public", table))
    line = tables.cutline(connection, found.table_id)
    return line.tier_key_hi, line.snapshot
