"""The SQL of loads into one table, composed once. ``s`` is a staged row, ``h`` one of the heap, ``v`` one of the view."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

from psycopg import sql

from modak.core.lake_table import LakeColumn, lake_columns
from modak.core.table import Name
from modak.core.tier_key import TierKeyType
from modak.load.table import SQL, LoadTable
from modak.source.expressions import canonical_key, encoded_key, is_finite, raw, reference, row_image
from modak.source.spill import identifier
from modak.source.view import delta_name
from modak.sqlfiles import trusted

# Above the locks of publications and jobs, which have the table's OID in their lower 32 bits.
KEY_LOCK = 0x6D66 << 40
KEY_BUCKETS = 128

_STRAY = re.compile(r"%(?!\((?:first|last|line|floor|set|partial)\)s)")


def _often(condition: str) -> str:
    """A condition that Postgres expects of every second row. Of a plain comparison it expects one in two hundred, for want of statistics,
    and then looks each staged row up by reading a table."""
    return f"case when {condition} then true else false end"


def _fits(lake: Sequence[LakeColumn]) -> str:
    """Every value of the row is one that the lake can hold."""
    fits = [
        f"({reference(column.name, 's')} is null or {column.type.holds_sql.format(column=reference(column.name, 's'))})"
        for column in lake
        if column.type.holds_sql is not None
    ]
    return " and ".join(fits) or "true"


def key_parameter(key_type: TierKeyType, key: int | None) -> int | str | None:
    """T or R as a parameter of these statements; beyond what the type holds it is an open end."""
    if key is None or not key_type.is_time:
        return key
    text = key_type.encode_bound(key)
    return {"MINVALUE": "-infinity", "MAXVALUE": "infinity"}.get(text, text)


class Statements:
    """Each property or method is one statement, with parameters %(line)s and %(floor)s for T and R. The staging table holds one batch."""

    def __init__(self, table: LoadTable, stage: str) -> None:
        self._table = table
        self._key_type = table.registered.key_type
        self.stage = sql.Identifier("pg_temp", stage)
        self._line, self._floor = self._typed("line"), self._typed("floor")
        tier_key = reference(table.tier_key, "s")
        is_null = " or ".join(f"{reference(name, 's')} is null" for name in table.place)
        infinite = f"not {is_finite(self._key_type, tier_key)}"
        self._parts: dict[str, sql.Composable] = {
            "stage": self.stage,
            "heap": identifier(table.registered.heap),
            "view": identifier(table.registered.view),
            # A mirror whose heap is complete has no corrections, and nothing of it is cold.
            "delta": identifier(delta_name(table.table_id) if table.registered.has_seam else Name("modak", "delta")),
            "table_id": sql.Literal(table.table_id),
            "hot": raw(f"{tier_key} >= {self._line}"),
            "cold": raw(f"{tier_key} < {self._line}"),
            "is_null": raw(is_null),
            "infinite": raw(infinite),
            "wrong": raw(f"{is_null} or {infinite} or {tier_key} < {self._floor}"),
            "tier_key": raw(tier_key),
            "keys": self._references(table.key, "s"),
            "pk": raw(encoded_key(table.key, "s")),
            "canonical": raw(canonical_key(self._key_type, tier_key)),
            "heap_has_key": raw(" and ".join(f"{reference(name, 'h')} = {reference(name, 's')}" for name in table.key)),
        }

    def _typed(self, name: str) -> str:
        return f"%({name})s::text::{self._key_type.value}" if self._key_type.is_time else f"%({name})s::bigint"

    def _references(self, names: Sequence[str], row: str | None = None) -> sql.SQL:
        return raw(", ".join(reference(name, row) for name in names))

    def _template(self, name: str, **parts: sql.Composable) -> sql.SQL:
        """Names and conditions of the user's may hold a percent sign; only our own parameters mean one."""
        return trusted(_STRAY.sub("%%", SQL.template(name, **{**self._parts, **parts}).as_string()))

    @functools.cached_property
    def create(self) -> sql.Composed:
        definitions = [
            sql.SQL(" ").join(
                [
                    sql.Identifier(column.name),
                    sql.SQL(column.type.display),
                    *([sql.SQL("collate {}").format(sql.Identifier(*column.collation))] if column.collation else []),
                ]
            )
            for column in self._table.stored
        ]
        return SQL.template("stage", stage=self.stage, columns=sql.SQL(", ").join(definitions))

    @functools.cached_property
    def empty(self) -> sql.Composed:
        return sql.SQL("delete from {}").format(self.stage)

    def copy_stage(self, columns: Sequence[str]) -> sql.Composed:
        names = sql.SQL(", ").join(map(sql.Identifier, ("_modak_line", "_modak_set", *columns)))
        return sql.SQL("copy {} ({}) from stdin").format(self.stage, names)

    def copy_heap(self, columns: Sequence[str], line: int) -> sql.Composed:
        """Straight into the heap, hot rows with sound keys only: the number of rows that it took says whether all were."""
        tier_key = reference(self._table.tier_key)
        literal = sql.Literal(key_parameter(self._key_type, line)).as_string()
        conditions = [f"{tier_key} >= {literal}::{self._key_type.value if self._key_type.is_time else 'bigint'}"]
        if self._key_type.is_time:
            conditions.append(f"{tier_key} < 'infinity'")
        conditions += [f"{reference(name)} is not null" for name in self._table.key if name != self._table.tier_key]
        return sql.SQL("copy {} ({}) from stdin where {}").format(
            self._parts["heap"], sql.SQL(", ").join(map(sql.Identifier, columns)), raw(" and ".join(conditions))
        )

    @functools.cached_property
    def summary(self) -> sql.SQL:
        return self._template("summary")

    @functools.cached_property
    def wrong_key(self) -> sql.SQL:
        nulls = " ".join(f"when {reference(name, 's')} is null then {sql.Literal(name).as_string()}" for name in self._table.place)
        return self._template("wrong_key", nulls=raw(nulls), tier_key_text=sql.Literal(self._table.tier_key))

    @functools.cached_property
    def has_duplicates(self) -> sql.SQL:
        return self._template("has_duplicates")

    @functools.cached_property
    def duplicate(self) -> sql.SQL:
        return self._template("duplicate")

    @functools.cached_property
    def lock_keys(self) -> sql.SQL:
        base = KEY_LOCK + self._table.table_id * KEY_BUCKETS
        return self._template("lock_keys", base=sql.Literal(base), buckets=sql.Literal(KEY_BUCKETS - 1))

    def _needs(self) -> sql.SQL:
        """Rows whose old image, or whose very existence, only the cold tier knows: not those whose copy stands in the heap."""
        partial = _often("s._modak_set = any(%(partial)s::integer[])")
        blind = "true" if self._table.registered.check_cold_keys else partial
        sides = f"({self._sql('cold')} and {blind})" if self._table.key_says_tier else f"({self._sql('hot')} or {blind})"
        heap_name, has_key = self._sql("heap"), self._sql("heap_has_key")
        return raw(f"s._modak_set >= 0 and {sides} and not exists (select from {heap_name} h where {has_key} and {self._above_floor()})")

    def _sql(self, part: str) -> str:
        return self._parts[part].as_string()

    def _above_floor(self) -> str:
        return f"({self._floor} is null or {reference(self._table.tier_key, 'h')} >= {self._floor})"

    @functools.cached_property
    def needs_cold(self) -> sql.SQL:
        return self._template("needs_cold", needs=self._needs())

    @functools.cached_property
    def awaits_adoption(self) -> sql.SQL:
        between = f"{self._sql('canonical')} between l.tier_key_lo and l.tier_key_hi"
        return self._template(
            "awaits_adoption",
            needs=self._needs(),
            is_partial=raw("s._modak_set = any(%(partial)s::integer[])"),
            may_hold=raw(between if self._table.key_says_tier else "true"),
        )

    def _unseat_parts(self) -> dict[str, sql.Composable]:
        key = self._table.key
        return {
            "needs": self._needs(),
            "line": raw(self._line),
            "tier_key": sql.Identifier(self._table.tier_key),
            "needy_keys": self._references(key, "s"),
            "same_key": raw(" and ".join(f"{reference(name, 'v')} = {reference(name, 'n')}" for name in key)),
            "listed": raw(
                " and ".join(f"{reference(name, 'v')} = any (array(select {reference(name, 'n')} from needy n))" for name in key)  # noqa: S608
            ),
        }

    @functools.cached_property
    def unseat(self) -> sql.SQL:
        return self._template("unseat", **self._unseat_parts())

    def complete(self, sets: Sequence[tuple[str, ...]], whole: int) -> sql.SQL:
        lacking = {
            name: [number for number, names in enumerate(sets) if number != whole and name not in names]
            for name in self._table.stored_names
            if name not in self._table.place
        }
        completed = [
            f"{reference(name)} = case when s._modak_set = any (array{numbers}::integer[]) "
            f"then {reference(name, 'g')} else {reference(name, 's')} end"
            for name, numbers in lacking.items()
            if numbers
        ]
        return self._template(
            "complete",
            **self._unseat_parts(),
            gone_columns=self._references(list(dict.fromkeys((*self._table.key, *lacking))), "v"),
            completed=raw(", ".join(completed)),
            whole=sql.Literal(whole),
            is_gone=raw(" and ".join(f"{reference(name, 's')} = {reference(name, 'g')}" for name in self._table.key)),
        )

    def upsert(self, columns: Sequence[str], *, only: bool, ordered: bool = False, part: bool = False) -> sql.SQL:
        """``only``: no row gives other columns. ``part``: the lines from %(first)s to %(last)s, to find one that is refused."""
        table = self._table
        always = {column.name for column in table.columns if column.identity == "a"}
        chosen = [
            "s._modak_set >= 0" if only else _often("s._modak_set = %(set)s"),
            *(["s._modak_line between %(first)s and %(last)s"] if part else []),
        ]
        parts: dict[str, sql.Composable] = {
            "columns": self._references(columns),
            "values": self._references(columns, "s"),
            "overriding": raw("overriding system value" if always & set(columns) else ""),
            "order": self._order(ordered=ordered),
            "chosen": raw(" and ".join(chosen)),
        }
        changed = [name for name in columns if name not in table.key and name not in always] or [table.key[0]]
        if not table.unique_key:
            assignments = [f"{reference(name)} = {reference(name, 's')}" for name in changed]
            return self._template(
                "update_then_insert", **parts, assignments=raw(", ".join(assignments)), above_floor=raw(self._above_floor())
            )
        assignments = [f"{reference(name)} = excluded.{reference(name)}" for name in changed]
        return self._template(
            "insert_or_update", **parts, unique_key=self._references(table.unique_key), assignments=raw(", ".join(assignments))
        )

    @functools.cached_property
    def has_corrections(self) -> sql.SQL:
        return self._template("has_corrections")

    @functools.cached_property
    def uncorrected(self) -> sql.SQL:
        return self._template("uncorrected")

    def mark_bypass(self, whole: int, spills: Sequence[str | None], lake: Sequence[LakeColumn] | None) -> sql.SQL:
        """``lake``: the columns of the lake, for rows that go there; None: all of them become corrections."""
        return self._template(
            "mark_bypass",
            is_whole=raw(_often(f"s._modak_set = {int(whole)}")),
            in_spill=raw(" or ".join(f"({condition or 'true'})" for condition in spills) or "false"),
            to_lake=raw("false" if lake is None else _fits(lake)),
        )

    def mark_bulk(self, lake: Sequence[LakeColumn]) -> sql.SQL:
        return self._template("mark_bulk", to_lake=raw(_fits(lake)))

    @functools.cached_property
    def first_hot(self) -> sql.SQL:
        return self._template("first_hot")

    def correct(self, *, ordered: bool) -> sql.SQL:
        columns, _ = lake_columns(self._table.columns, self._table.place, self._table.registered.text_cols)
        return self._template("correct", image=raw(row_image(columns, "s")), order=self._order(ordered=ordered))

    @functools.cached_property
    def overtaken(self) -> sql.SQL:
        return self._template("overtaken")

    def _order(self, *, ordered: bool) -> sql.Composable:
        return sql.SQL("order by {}").format(self._parts["keys"]) if ordered else raw("")

    @functools.cached_property
    def unchecked(self) -> sql.SQL | None:
        """None for a heap that refuses nothing."""
        table = self._table
        refusals = [(column.name, f"{reference(column.name, 's')} is null") for column in table.stored if column.not_null]
        refusals += [(name, f"({condition}) is false") for name, condition in table.checks]
        if not refusals:
            return None
        violations = " ".join(f"when {condition} then {sql.Literal(name).as_string()}" for name, condition in refusals)
        return self._template("unchecked", violations=raw(violations), violated=raw(" or ".join(condition for _, condition in refusals)))

    def spooled(self, columns: Sequence[LakeColumn]) -> sql.Composed:
        """Without parameters, which COPY does not take."""
        items = [f"{column.type.read_sql.format(column=reference(column.name, 's'))} as {reference(column.name)}" for column in columns]
        return SQL.template(
            "spooled",
            stage=self.stage,
            projection=raw(", ".join(items)),
            order=self._references(list(dict.fromkeys((self._table.tier_key, *self._table.key))), "s"),
        )
