"""The Postgres side of files on their way into the lake: which corrections they replace, and which rows are newer than they are.

Whatever has the key of a row in a new file and is older gives way to it; the files' own ages come from the sequence that numbers
corrections. Where the tier key is no part of the primary key, only Postgres can tell, and the files' keys are copied here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import sql

from modak.connection import Connection
from modak.core.lake_table import Shape
from modak.core.table import Column, Name, Relation
from modak.source.corrections import Corrections
from modak.source.expressions import canonical_key, encoded_key, raw, reference, row_image
from modak.source.relation import SQL
from modak.source.spill import identifier
from modak.source.view import delta_name


def keys_name(table_id: int, op_id: str) -> Name:
    """One for each operation: a task that outlived an older one finds nothing to write to."""
    return Name("modak", f"incoming_{table_id}_{op_id[:13]}")


def drop_keys(connection: Connection, table_id: int, op_id: str) -> None:
    connection.execute(sql.SQL("drop table if exists {}").format(identifier(keys_name(table_id, op_id))))


@dataclass(frozen=True)
class Incoming:
    """The files of one operation on a table."""

    shape: Shape
    relation: Relation
    op_id: str

    @property
    def key_says_place(self) -> bool:
        return self.shape.tier_key in self.shape.primary_key

    @property
    def columns(self) -> tuple[Column, ...]:
        """The key's, and the one that says where a row stands."""
        names = dict.fromkeys((*self.shape.primary_key, self.shape.tier_key))
        return tuple(column for name in names if (column := self.relation.column(name)))

    def create_keys(self, connection: Connection) -> None:
        definitions = [sql.SQL("{} {}").format(sql.Identifier(column.name), raw(column.type.display)) for column in self.columns]
        connection.execute(self._template("incoming_create", columns=sql.SQL(", ").join(definitions)))

    def record_replaced(self, connection: Connection) -> None:
        """Note which corrections are older than the files; the publication clears these and no others."""
        connection.execute(sql.SQL("analyze {}").format(self._name))
        connection.execute(self._template("incoming_record"))

    def settle(self, connection: Connection, heap: Name, line: int, spills: Sequence[Name]) -> int:
        """Inside the publication: older corrections go, newer ones and hot rows keep their place. Returns how many rows of the delta
        are others than before."""
        changed = Corrections(self.shape, self.relation).clear(connection, self.op_id, spills, replaced=True)
        if self.key_says_place:
            return changed
        same = " and ".join(f"{reference(name, 'h')} = {reference(name, 'i')}" for name in self.shape.primary_key)
        for name in ("incoming_place", "incoming_unseat"):
            parts: dict[str, sql.Composable] = {
                "heap": identifier(heap),
                "heap_has_key": raw(same),
                "is_hot": raw(self._is_hot(line)),
            }
            changed += connection.execute(self._template(name, **parts)).rowcount
        return changed

    def meets(self, connection: Connection, spill: Name, spans: Sequence[tuple[int, int]]) -> bool:
        """Whether late rows of a spill may have a key of the files, which span these tier keys, both ends included."""
        if self.key_says_place:
            key = canonical_key(self.shape.key_type, reference(self.shape.tier_key, "s"))
            found = " or ".join(f"{key} between {int(low)} and {int(high)}" for low, high in spans) or "false"
        else:
            own, theirs = (encoded_key(self.shape.primary_key, row) for row in ("s", "i"))
            found = f"{own} in (select {theirs} from {self._name.as_string()} i)"  # noqa: S608
        row = connection.execute(SQL.template("incoming_meets", spill=identifier(spill), meets=raw(found))).fetchone()
        return bool(row and row["found"])

    def _is_hot(self, line: int) -> str:
        """Compared in the heap's own type, where a key may be infinite."""
        key, text = reference(self.shape.tier_key, "h"), self.shape.key_type.encode_bound(line)
        if text in ("MINVALUE", "MAXVALUE"):
            return "true" if text == "MINVALUE" else "false"
        return f"{key} >= {sql.Literal(text).as_string()}::{self.shape.key_type.value}"

    @property
    def _name(self) -> sql.Composable:
        return identifier(keys_name(self.shape.table_id, self.op_id))

    def _template(self, name: str, **parts: sql.Composable) -> sql.Composed:
        keys = [column for column in self.shape.columns if column.name in self.shape.primary_key]
        shared: dict[str, sql.Composable] = {
            "incoming": self._name,
            "delta": identifier(delta_name(self.shape.table_id)),
            "table_id": sql.Literal(self.shape.table_id),
            "op_id": sql.Literal(self.op_id),
            "pk": raw(encoded_key(self.shape.primary_key, "i")),
            "canonical": raw(canonical_key(self.shape.key_type, reference(self.shape.tier_key, "i"))),
            "image": raw(row_image(keys, "i")),
        }
        return SQL.template(name, **{**shared, **parts})
