"""Where a statement would run and what it would cost there, without running it."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass

from modak.core.table import Name
from modak.gateway.analytics.preparation import Preparation, Prepared
from modak.gateway.analytics.seam import Declined


@dataclass(frozen=True)
class RouteRelation:
    """One use of a registered relation: the seam it is read at, and what of each tier."""

    name: Name
    tier_key_hi: str
    snapshot: int | None
    columns: tuple[str, ...]
    cold_files: int
    cold_bytes: int
    cold_rows: int
    hot_rows: int
    delta_rows: int


@dataclass(frozen=True)
class Route:
    """``engine`` is ``lake`` or ``postgres``; ``reason`` says why it is Postgres. ``sql`` is what the engine would run."""

    engine: str
    reason: str = ""
    relations: tuple[RouteRelation, ...] = ()
    sql: str = ""

    @property
    def cold_files(self) -> int:
        return sum(relation.cold_files for relation in self.relations)

    @property
    def cold_bytes(self) -> int:
        return sum(relation.cold_bytes for relation in self.relations)

    @property
    def hot_rows(self) -> int:
        """As Postgres's planner estimates them."""
        return sum(relation.hot_rows for relation in self.relations)


def read_route(preparation: Preparation) -> Route:
    """Reads the seam and the files' statistics; no rows. Runs on a worker thread."""
    with contextlib.ExitStack() as held:
        uses = preparation.uses(held)
        relations = tuple(_relation(preparation, one) for one in uses)
        try:
            preparation.check_worth(uses)
        except Declined as declined:
            return Route("postgres", declined.reason, relations)
        return Route("lake", "", relations, preparation.plan.sql)


def _relation(preparation: Preparation, one: Prepared) -> RouteRelation:
    relation, files = one.use.relation, one.cold.files
    return RouteRelation(
        name=relation.name,
        tier_key_hi=relation.key_type.encode_bound(one.seam.tier_key_hi),
        snapshot=one.seam.sequence_number,
        columns=tuple(column.name for column in one.columns),
        cold_files=len(files),
        cold_bytes=sum(file.bytes for file in files),
        cold_rows=sum(file.live_rows for file in files),
        hot_rows=_estimated(preparation, one.hot) if one.hot is not None else 0,
        delta_rows=one.seam.delta_rows,
    )


def _estimated(preparation: Preparation, query: str) -> int:
    lines = preparation.reader.rows(f"explain (format json) {query}", copy=False)
    return int(json.loads("\n".join(str(line[0]) for line in lines))[0]["Plan"]["Plan Rows"])
