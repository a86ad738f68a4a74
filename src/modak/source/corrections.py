"""Corrections as the fold reads them: which ones, where the lake holds their rows, and their keys and images in the heap's own types."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from psycopg import sql

from modak.connection import Connection
from modak.core.lake_table import LakeColumn, Shape
from modak.core.table import Name, Relation
from modak.source import spilled
from modak.source.expressions import encoded_key, key_texts, raw, reference
from modak.source.heap import projection
from modak.source.relation import SQL
from modak.source.spill import identifier
from modak.source.view import delta_name, image_value

PLACE = "coalesce(d.old_tier_key, d.tier_key)"


@dataclass(frozen=True)
class Batch:
    """The oldest corrections, up to a version."""

    upto: int
    rows: int
    upserts: int
    unplaced: int  # the lake may hold their keys anywhere


@dataclass(frozen=True)
class Corrections:
    """The corrections of one table. Those whose values the lake cannot hold are passed over: they stay in the delta and are read there."""

    shape: Shape
    relation: Relation

    def newest(self, session: Connection) -> int:
        row = session.execute(self._sql("select coalesce(max(d.version), 0) as n from {delta} d where d.table_id = {table_id}")).fetchone()
        return int(row["n"]) if row else 0

    def unfit(self, session: Connection) -> int:
        row = session.execute(
            self._sql("select count(*) as n from {delta} d where d.table_id = {table_id} and not ({fits})", fits=raw(self._fits()))
        ).fetchone()
        return int(row["n"]) if row else 0

    def batch(self, session: Connection, *, upto: int, rows_max: int) -> Batch | None:
        row = session.execute(
            self._template("corrections_chosen", upto=sql.Literal(upto), rows_max=sql.Literal(rows_max), placed=raw(self._placed()))
        ).fetchone()
        return Batch(row["upto"], row["rows"], row["upserts"], row["unplaced"]) if row and row["rows"] else None

    def record(self, session: Connection, op_id: str, upto: int) -> None:
        """Note which versions an operation carries; its publication clears these and no others."""
        place_of = raw("null, null" if self._key_says_place() else "d.pk, d.tier_key")
        session.execute(self._template("corrections_recorded", op_id=sql.Literal(op_id), upto=sql.Literal(upto), place_of=place_of))

    def touched(self, session: Connection, upto: int, ranges: Sequence[tuple[int, int]]) -> list[int]:
        """Which of the ranges of tier keys (both ends included) hold a row that a correction up to this version speaks of."""
        lows, highs = [low for low, _ in ranges], [high for _, high in ranges]
        rows = session.execute(self._template("corrections_touched", upto=sql.Literal(upto)), {"lows": lows, "highs": highs}).fetchall()
        return [int(row["place"]) for row in rows]

    def upsert_ranges(self, session: Connection, upto: int, parts: int) -> list[tuple[int, int]]:
        """The tier keys of new images in about equal parts: [first, last], both included, apart from each other."""
        marks = [number / parts for number in range(1, parts)]
        row = session.execute(self._template("corrections_spread", upto=sql.Literal(upto)), {"marks": marks}).fetchone()
        if row is None or row["low"] is None:
            return []
        edges = sorted({row["low"], *(row["marks"] or ()), row["high"] + 1})
        return [(low, high - 1) for low, high in itertools.pairwise(edges)]

    def keys_sql(self, upto: int, low: int, high: int, *, unplaced: bool) -> str:
        """Primary keys whose rows the lake holds between two tier keys, in the lake's types; with ``unplaced``, the unknown ones too."""
        near = f"{PLACE} between {int(low)} and {int(high)}"
        if unplaced:
            near = f"({near} or not {self._placed()})"
        return self._select(self._keys, f"d.version <= {int(upto)} and {near} and {self._fits()}", self._key_values())

    def images_sql(self, upto: int, low: int, high: int) -> str:
        where = f"d.version <= {int(upto)} and d.op = 0 and d.tier_key between {int(low)} and {int(high)} and {self._fits()}"
        values = {column.name: image_value(column) for column in self.relation.columns}
        return self._select(self.shape.columns, where, values) + " order by modak_key"

    def clear(self, session: Connection, op_id: str, spills: Sequence[Name], *, replaced: bool = False) -> int:
        """Take out exactly what was folded, and the spill's rows that stood for it; returns how many corrections went.

        What was corrected again meanwhile stays, and learns where the lake has its row now. Late rows that somebody listens to stay as
        copies of the lake's. ``replaced``: the lake has newer rows of these keys instead, so that such copies keep their corrections.
        """
        go, stay = spilled.leaving(session, spills)
        pk = encoded_key(self.shape.primary_key, "s")
        removed = [
            f", spill{number} as (delete from {identifier(spill).as_string()} s using gone g where g.op = 0 and g.pk = {pk})"  # noqa: S608
            for number, spill in enumerate(go)
        ]
        kept = [f" and not exists (select from {identifier(spill).as_string()} s where {pk} = d.pk)" for spill in stay if replaced]
        with self._taking_away(session):
            row = session.execute(
                self._template("corrections_cleared", op_id=sql.Literal(op_id), removed=raw("".join(removed)), kept=raw("".join(kept)))
            ).fetchone()
        return int(row["n"]) if row else 0

    @contextlib.contextmanager
    def _taking_away(self, session: Connection, *, heard: bool = False) -> Iterator[None]:
        """Rows that go here were not deleted by a user: the spill's own triggers must not take it for that, nor, unless ``heard``, his."""
        session.execute("select set_config('modak.folding', %s, true)", [str(self.shape.table_id)])
        with contextlib.nullcontext() if heard else spilled.unheard(session):
            yield

    @property
    def _keys(self) -> list[LakeColumn]:
        return [column for name in self.shape.primary_key for column in self.shape.columns if column.name == name]

    def _key_values(self) -> dict[str, str]:
        """The key's columns in their own types. A tombstone need not have an image; then its encoded key says what they are."""
        named = {column.name: column for column in self.relation.columns}
        texts = zip(self.shape.primary_key, key_texts(self.shape.primary_key, "d"), strict=True)
        return {name: image_value(named[name], otherwise=text) for name, text in texts}

    def _select(self, columns: Sequence[LakeColumn], where: str, values: Mapping[str, str]) -> str:
        typed = ", ".join(f"{values[column.name]} as {reference(column.name)}" for column in columns)
        delta = identifier(delta_name(self.shape.table_id)).as_string()
        source = f"select d.tier_key as modak_key, {typed} from {delta} d where d.table_id = {int(self.shape.table_id)}"  # noqa: S608
        return f"select {projection(columns)} from ({source} and {where}) corrected"  # noqa: S608

    def _key_says_place(self) -> bool:
        """A key that holds the tier key says itself where its row is."""
        return self.shape.tier_key in self.shape.primary_key

    def _placed(self) -> str:
        return "true" if self._key_says_place() else "d.placed"

    def _fits(self) -> str:
        named = {column.name: column for column in self.relation.columns}
        values = [(column.type.holds_sql, f"({image_value(named[column.name])})") for column in self.shape.columns]
        checks = [f"({value} is null or {holds.format(column=value)})" for holds, value in values if holds is not None]
        return f"(d.op = 1 or ({' and '.join(checks)}))" if checks else "true"

    def _template(self, name: str, **parts: sql.Composable) -> sql.Composed:
        shared: dict[str, sql.Composable] = {
            "delta": identifier(delta_name(self.shape.table_id)),
            "table_id": sql.Literal(self.shape.table_id),
            "fits": raw(self._fits()),
            "place": raw(PLACE),
        }
        return SQL.template(name, **{**shared, **parts})

    def _sql(self, text: str, **parts: sql.Composable) -> sql.Composed:
        return raw(text).format(delta=identifier(delta_name(self.shape.table_id)), table_id=sql.Literal(self.shape.table_id), **parts)
