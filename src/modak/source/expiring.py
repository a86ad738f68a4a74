"""Corrections that a rising retention line leaves behind: which of them the lake must hear of, and what becomes of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import sql

from modak.connection import Connection
from modak.core.table import Name
from modak.source import spilled
from modak.source.corrections import PLACE, Corrections
from modak.source.expressions import canonical_key, raw, reference
from modak.source.spill import identifier


@dataclass(frozen=True)
class Expiring(Corrections):
    """The corrections of a table whose R rises to ``line``.

    Most lie below it with all they speak of, and just go. *Strayed* ones have an image below the line while the lake's row is, or may be,
    at or above it: without them that older image would show again.
    """

    line: int

    def strayed(self, session: Connection) -> int:
        row = session.execute(
            self._sql("select count(*) as n from {delta} d where d.table_id = {table_id} and {strayed}", strayed=raw(self._strayed()))
        ).fetchone()
        return int(row["n"]) if row else 0

    def strayed_keys_sql(self) -> str:
        """Their primary keys in the lake's types."""
        return self._select(self._keys, self._strayed(), self._key_values())

    def record_strayed(self, session: Connection, op_id: str) -> None:
        """Note which versions the operation's commit deletes in the lake; any other strayed one leaves a tombstone."""
        text = "insert into modak.folded (op_id, version, table_id) select {op_id}, d.version, {table_id} from {delta} d "
        session.execute(
            self._sql(text + "where d.table_id = {table_id} and {strayed}", op_id=sql.Literal(op_id), strayed=raw(self._strayed()))
        )

    def expire(self, session: Connection, op_id: str, spills: Sequence[Name]) -> int:
        """Purge what lies below the line, spilled rows too; returns how many corrections that was."""
        key = canonical_key(self.shape.key_type, reference(self.shape.tier_key, "s"))
        for spill in spills:
            # These rows do go: a foreign key that points to one acts as it was declared to, or forbids it.
            referenced = spilled.listeners(session, spill).foreign_keys
            with self._taking_away(session, heard=bool(referenced)):
                session.execute(sql.SQL("delete from {} s where {} < {}").format(identifier(spill), raw(key), sql.Literal(self.line)))
        searched = f"exists (select from modak.folded f where f.op_id = {sql.Literal(op_id).as_string()} and f.version = d.version)"
        row = session.execute(
            self._template(
                "corrections_expired",
                line=sql.Literal(self.line),
                searched=raw(searched),
                placed=raw(self._placed()),
                key_columns=sql.Literal(list(self.shape.primary_key)),
            )
        ).fetchone()
        return int(row["n"]) if row else 0

    def _strayed(self) -> str:
        line = int(self.line)
        return f"d.tier_key < {line} and ({PLACE} >= {line} or not {self._placed()})"
