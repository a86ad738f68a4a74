"""The Postgres side of untier: new partitions beside the heap, corrections carried over to them, and their place in the heap.

They hang below a staging table that is partitioned as the heap is, so that Postgres routes rows to them, and whoever writes there fires no
trigger of the user's. A crash leaves the staging table, and dropping that drops all of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import sql

from modak.connection import Connection
from modak.core import bounds
from modak.core.lake_table import Shape
from modak.core.table import Name, Relation
from modak.core.tier_key import KEY_MIN, TierKeyType
from modak.errors import Refused
from modak.source import spilled
from modak.source.corrections import PLACE
from modak.source.expressions import canonical_key, encoded_key, key_texts, raw, reference
from modak.source.relation import SQL
from modak.source.spill import identifier
from modak.source.view import delta_name, image_value

CHECK = "modak_untier"
HELPER = "modak_untier_key"
# As a partition that is made for its table has it: neither identity, which is the parent's, nor comments and statistics.
_LIKE = "including defaults including generated including constraints including indexes including storage including compression"


@dataclass(frozen=True)
class NewPartition:
    """A partition that is being filled, and the table it is for: the heap, or one of its regions."""

    parent: Name
    name: Name
    lower: int
    upper: int

    def as_json(self) -> dict[str, Any]:
        parent, name = ([one.schema, one.name] for one in (self.parent, self.name))
        return {"parent": parent, "name": name, "lower": self.lower, "upper": self.upper}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> NewPartition:
        return cls(Name(*data["parent"]), Name(*data["name"]), data["lower"], data["upper"])


def staging_name(table_id: int, op_id: str) -> Name:
    """One for each operation: a task that outlived an older one finds nothing to write to."""
    return Name("modak", f"untier_{table_id}_{op_id[:13]}")


@dataclass(frozen=True)
class Staging:
    """The new partitions of one operation on a heap."""

    shape: Shape
    relation: Relation
    op_id: str
    partitions: tuple[NewPartition, ...]

    @property
    def name(self) -> Name:
        return staging_name(self.shape.table_id, self.op_id)

    @property
    def columns(self) -> list[str]:
        """What can be written; generated columns make themselves."""
        return [column.name for column in self.relation.columns if not column.generated]

    def create(self, connection: Connection) -> None:
        """Everything empty, inside the caller's transaction."""
        if not self.partitions:
            return
        parents = self._create_parents(connection)
        for partition in self.partitions:
            _execute(connection, f"create table {{}} (like {{}} {_LIKE})", partition.name, partition.parent)
            connection.execute(
                sql.SQL("alter table {} owner to {}").format(identifier(partition.name), sql.Identifier(self.relation.owner))
            )
            attach(connection, parents[partition.parent], partition, self.shape.key_type)
            # Said once more for itself, so that the heap takes the filled table without reading it.
            row = connection.execute(SQL.query("read_partition_constraint"), _keys(partition.name)).fetchone()
            assert row is not None
            check = sql.SQL("alter table {} add constraint {} check ({})")
            connection.execute(check.format(identifier(partition.name), sql.Identifier(CHECK), raw(row["definition"])))
            if not self._finds_keys():
                columns = sql.SQL(", ").join(map(sql.Identifier, self.shape.primary_key))
                connection.execute(
                    sql.SQL("create index {} on {} ({})").format(
                        sql.Identifier(_helper(partition.name)), identifier(partition.name), columns
                    )
                )

    def _create_parents(self, connection: Connection) -> dict[Name, Name]:
        """The staging table, and for a LIST heap its regions; by the table that each stands for."""
        _execute(
            connection,
            "create table {} (like {} including generated) partition by {}",
            self.name,
            self.relation.name,
            raw(_partition_key(connection, self.relation.oid)),
        )
        found = {self.relation.name: self.name}
        if self.relation.strategy == "r":
            return found
        regions = [leaf for leaf in self.relation.partitions if leaf.oid in bounds.range_parents(self.relation)]
        for number, region in enumerate(regions):
            found[region.name] = Name(self.name.schema, f"{self.name.name}_{number}")
            key = raw(_partition_key(connection, region.oid))
            _execute(
                connection, "create table {} partition of {} {} partition by {}", found[region.name], self.name, raw(region.bound), key
            )
        return found

    def _finds_keys(self) -> bool:
        """Whether an index of the heap's own finds a row by its key."""
        return any(key[0] in self.shape.primary_key for key in self.relation.unique_keys if key)

    def add_foreign_keys(self, connection: Connection, partition: NewPartition) -> None:
        """When the rows are there, since Postgres would look each of them up; for those that come from now on they hold."""
        for row in connection.execute(SQL.query("list_foreign_keys"), _keys(partition.parent)).fetchall():
            late = "" if "NOT VALID" in row["definition"] else " not valid"
            change = sql.SQL("alter table {} add constraint {} {}").format(
                identifier(partition.name), sql.Identifier(row["name"]), raw(row["definition"] + late)
            )
            connection.execute(change)

    def validate(self, connection: Connection, partition: NewPartition) -> None:
        """Foreign keys and statistics: reads the rows, and locks nobody out meanwhile."""
        for row in connection.execute(SQL.query("list_foreign_keys"), _keys(partition.parent)).fetchall():
            if row["validated"]:
                change = sql.SQL("alter table {} validate constraint {}")
                connection.execute(change.format(identifier(partition.name), sql.Identifier(row["name"])))
        _execute(connection, "analyze {}", partition.name)

    def catch_up(self, connection: Connection, number: int, spans: Sequence[tuple[int, int]]) -> int:
        """Carry over the corrections that no earlier round did; returns how many. They stay where they are, for whoever reads the lake."""
        parts = self._parts(f"{self.op_id}/{number}")
        noted = connection.execute(SQL.template("untier_noted", **parts)).rowcount
        if noted and self.partitions:
            connection.execute(SQL.template("untier_hidden", **parts, same_key=raw(self._same_key()), pk=raw(self._pk())))
            typed = [image_value(column) for column in self.relation.columns if not column.generated]
            names = sql.SQL(", ").join(map(sql.Identifier, self.columns))
            in_range = " or ".join(f"d.tier_key >= {int(low)} and d.tier_key < {int(high)}" for low, high in spans)
            connection.execute(
                SQL.template("untier_shown", **parts, columns=names, corrected=raw(", ".join(typed)), in_range=raw(in_range))
            )
        return noted

    def settle(self, connection: Connection, line: int, *, cold_left: bool) -> int:
        """Clear the corrections that the heap speaks for from now on; returns how many. ``cold_left``: the lake keeps rows below."""
        row = connection.execute(
            SQL.template(
                "untier_settled",
                **self._parts(""),
                line=sql.Literal(line),
                # There is no key below the least one, where the first partition begins at MINVALUE; then no row is left there either.
                below=sql.Literal(max(line - 1, KEY_MIN)),
                place=raw(PLACE),
                placed=raw("true" if self.shape.tier_key in self.shape.primary_key else "d.placed"),
                cold_left=raw("true" if cold_left else "false"),
                key_names=sql.Literal(list(self.shape.primary_key)),
            )
        ).fetchone()
        return int(row["settled"]) + int(row["hidden"]) if row else 0

    def clear_spills(self, connection: Connection, spills: Sequence[Name], line: int) -> None:
        """Take out the spill's rows that stand in a partition by now, and older ones of a key that has moved there; before ``settle``."""
        # The spill's trigger would take that for deletions by the user.
        connection.execute("select set_config('modak.folding', %s, true)", [str(self.shape.table_id)])
        key = canonical_key(self.shape.key_type, reference(self.shape.tier_key, "s"))
        for spill in spills:
            found = spilled.listeners(connection, spill)
            parts = {"spill": identifier(spill), "key": raw(key), "pk": raw(self._pk()), "line": sql.Literal(line)}
            with spilled.unheard(connection):
                removed = connection.execute(SQL.template("untier_unspilled", **self._parts(""), **parts)).rowcount
            # A reference that was kept silent finds the row in its partition.
            heard = [*(() if found.silenced else found.foreign_keys), *found.triggers]
            if removed and heard:
                raise Refused(
                    f"late rows would leave {spill} for partitions of their own, and {', '.join(heard)} would take that for their deletion",
                    hint="run it as a role that may keep them silent: grant set on parameter session_replication_role to …",
                )

    def hand_over(self, connection: Connection) -> list[tuple[int, Name, int, int]]:
        """Attach the filled partitions to the heap, and forget the staging table; returns them with their OIDs."""
        if not self.partitions:
            return []
        # A foreign key that is checked at the end would stand in the way of every ALTER TABLE.
        connection.execute("set constraints all immediate")
        found = []
        for partition in self.partitions:
            row = connection.execute(SQL.query("read_partition_constraint"), _keys(partition.name)).fetchone()
            assert row is not None
            below = sql.Identifier(row["parent_schema"], row["parent_name"])
            connection.execute(sql.SQL("alter table {} detach partition {}").format(below, identifier(partition.name)))
            attach(connection, partition.parent, partition, self.shape.key_type)
            connection.execute(sql.SQL("alter table {} drop constraint {}").format(identifier(partition.name), sql.Identifier(CHECK)))
            if not self._finds_keys():
                helper = Name(partition.name.schema, _helper(partition.name))
                _execute(connection, "drop index if exists {}", helper)
            found.append((row["oid"], partition.name, partition.lower, partition.upper))
        drop(connection, self.shape.table_id, self.op_id)
        return found

    def _same_key(self) -> str:
        """The key in its own types, so that an index finds it."""
        names = self.shape.primary_key
        texts = key_texts(names, "d")
        kinds = {column.name: column.type.display for column in self.relation.columns}
        return " and ".join(
            f"{reference(name, 's')} OPERATOR(pg_catalog.=) ({text})::{kinds[name]}" for name, text in zip(names, texts, strict=True)
        )

    def _pk(self) -> str:
        return encoded_key(self.shape.primary_key, "s")

    def _parts(self, number: str) -> dict[str, sql.Composable]:
        return {
            "staging": identifier(self.name),
            "delta": identifier(delta_name(self.shape.table_id)),
            "table_id": sql.Literal(self.shape.table_id),
            "round": sql.Literal(number),
            "operation": sql.Literal(f"{self.op_id}/"),
        }


def drop(connection: Connection, table_id: int, op_id: str) -> None:
    """The staging table with every partition that still hangs below it."""
    _execute(connection, "drop table if exists {}", staging_name(table_id, op_id))


def attach(connection: Connection, parent: Name, partition: NewPartition, key_type: TierKeyType) -> None:
    lower, upper = (_bound(key_type, key) for key in (partition.lower, partition.upper))
    statement = sql.SQL("alter table {} attach partition {} for values from ({}) to ({})")
    connection.execute(statement.format(identifier(parent), identifier(partition.name), lower, upper))


def _bound(key_type: TierKeyType, key: int) -> sql.Composable:
    text = key_type.encode_bound(key)
    return sql.SQL(text) if text in ("MINVALUE", "MAXVALUE") else sql.Literal(text)


def _helper(name: Name) -> str:
    return f"{HELPER}_{name.name}"[:63]


def _partition_key(connection: Connection, oid: int) -> str:
    row = connection.execute("select pg_get_partkeydef(%s::oid) as definition", [oid]).fetchone()
    assert row is not None
    return str(row["definition"])


def _keys(name: Name) -> dict[str, str]:
    return {"schema": name.schema, "name": name.name}


def _execute(connection: Connection, text: str, *parts: Name | sql.Composable) -> None:
    connection.execute(sql.SQL(text).format(*(identifier(part) if isinstance(part, Name) else part for part in parts)))
