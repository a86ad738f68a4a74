"""Between a plan and its answer: the seam is read, lake snapshots are pinned and pruned, hot rows and corrections are loaded."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import duckdb

from modak.core.type_map import LakeType
from modak.gateway.analytics import hot
from modak.gateway.analytics.answer import LakeAnswer, engine_failure
from modak.gateway.analytics.merge import Cold, check_followed, cold_rows, merged_sql, shown, with_key
from modak.gateway.analytics.plan import Plan
from modak.gateway.analytics.reader import Reader
from modak.gateway.analytics.relations import RegisteredRelation, RelationColumn, Relations
from modak.gateway.analytics.seam import Client, Declined, Seam, Stale, read_seams
from modak.gateway.analytics.statement import Use
from modak.gateway.pins import PinKeeper
from modak.lake.storage import io_properties
from modak.scan.engine import Cursor
from modak.scan.snapshot import Snapshot
from modak.scan.table import ColdTables


@dataclass(frozen=True)
class Tables:
    """What preparations share."""

    cold: ColdTables
    relations: Relations
    pins: PinKeeper


@dataclass
class Prepared:
    """One use of a relation, ready to be read. ``hot`` and ``delta`` are Postgres's queries for its hot rows and its corrections; None:
    it needs none."""

    use: Use
    seam: Seam
    columns: tuple[RelationColumn, ...]
    cold: Cold
    hot: str | None
    delta: str | None


@dataclass
class Preparation:
    """Runs on one worker thread; ``cancel`` from any."""

    tables: Tables
    plan: Plan
    reader: Reader
    client: Client
    _loaded: dict[str, str] = field(default_factory=dict)
    _cancelled: bool = False

    def run(self) -> LakeAnswer:
        held = contextlib.ExitStack()
        try:
            uses = self.uses(held)
            self.check_worth(uses)
            cursor = self.tables.cold.engine.cursor()
            held.callback(cursor.close)
            relations = {one.use.name: self._relation(cursor, one) for one in uses}
            return LakeAnswer(cursor, self.plan, relations, held, next((one.seam.notice for one in uses if one.seam.notice), None))
        except BaseException:
            held.close()
            raise

    def check_worth(self, uses: Sequence[Prepared]) -> None:
        """Where the lake has no part in the answer, copying hot rows out of Postgres gains nothing."""
        if all(one.cold.sql is None and one.delta is None and not one.use.relation.is_mirror for one in uses):
            raise Declined("only hot rows are asked for, which Postgres holds itself")

    def cancel(self) -> None:
        self._cancelled = True
        self.reader.cancel()

    def uses(self, held: contextlib.ExitStack) -> list[Prepared]:
        """Each use with its seam and the files it reads; ``held`` keeps pins and snapshots."""
        seams = self._seams(list({use.relation.table_id: use.relation for use in self.plan.uses}.values()))
        snapshots: dict[int, Snapshot] = {}
        return [self._prepared(use, seams[use.relation.table_id], snapshots, held) for use in self.plan.uses]

    def _seams(self, relations: Sequence[RegisteredRelation]) -> dict[int, Seam]:
        try:
            return read_seams(self.reader, relations, self.client)
        except Stale:
            self.tables.relations.refresh(force=True)
            raise

    def _snapshot(self, seam: Seam, held: contextlib.ExitStack) -> Snapshot:
        relation = seam.relation
        held.enter_context(self.tables.pins.hold(relation.table_id, seam.sequence_number))
        self.tables.relations.published(relation.table_id, seam.sequence_number, seam.metadata_location)
        found = self.tables.cold.snapshot(seam.metadata_location, seam.sequence_number, io_properties(relation.storage))
        held.callback(_let_go, found)
        return found

    def _prepared(self, use: Use, seam: Seam, snapshots: dict[int, Snapshot], held: contextlib.ExitStack) -> Prepared:
        columns = shown(use.relation, use.columns)
        rows = hot.hot_sql(seam, columns, use.predicates)
        if hot.is_only_hot(use.relation, seam.tier_key_hi, use.predicates):
            # The lake is not even asked: it may be out of reach.
            return Prepared(use, seam, columns, Cold(None, ()), rows, None)
        delta = hot.delta_sql(seam, columns) if seam.delta_rows else None
        if seam.sequence_number is None:
            return Prepared(use, seam, columns, Cold(None, ()), rows, delta)
        if use.relation.table_id not in snapshots:
            snapshots[use.relation.table_id] = self._snapshot(seam, held)
        if use.relation.is_mirror:
            check_followed(use.relation, snapshots[use.relation.table_id], columns)
        read = with_key(use.relation, columns) if delta is not None else columns
        cold = cold_rows(self.tables.cold, seam, snapshots[use.relation.table_id], read, use.predicates)
        return Prepared(use, seam, columns, cold, rows, delta)

    def _relation(self, cursor: Cursor, one: Prepared) -> str:
        """The use as a SELECT of the engine, its hot rows and corrections loaded."""
        relation, kinds = one.use.relation, [column.lake for column in one.columns]
        keys = [column.lake for name in relation.primary_key if (column := relation.column(name)) is not None]
        loaded = self._load(cursor, one.hot, kinds) if one.hot is not None else None
        delta = self._load(cursor, one.delta, [*keys, *kinds], op=True) if one.delta is not None else None
        return merged_sql(relation, one.columns, loaded, one.cold, delta)

    def _load(self, cursor: Cursor, query: str, kinds: Sequence[LakeType], *, op: bool = False) -> str:
        """Two uses that ask the same of Postgres share one table."""
        if query not in self._loaded:
            name = f"modak:rows {len(self._loaded)}"
            try:
                hot.load(self.reader, cursor, name, query, kinds, op=op)
            except duckdb.Error as cause:
                raise engine_failure(str(cause), cancelled=self._cancelled) from cause
            self._loaded[query] = name
        return self._loaded[query]


def _let_go(_: Snapshot) -> None:
    """What was prepared for a snapshot in the engine goes when nobody holds it any more."""
