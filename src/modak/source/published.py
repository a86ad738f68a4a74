"""What a table's stream relies on: an entry of the publication that leaves nothing out, and rows that name their key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from modak.connection import Connection
from modak.errors import Problem
from modak.source.relation import SQL

EVERYTHING = "insert, update, delete, truncate"


@dataclass(frozen=True)
class Published:
    """``mark`` is another one whenever the publication, or the table's entry in it, was altered, even if that was taken back."""

    publication: str
    mark: str
    exists: bool
    tells_all: bool
    by_root: bool
    has_table: bool
    has_filter: bool
    has_columns: bool
    has_key: bool
    other_identity: str | None
    silent_partition: str | None

    @property
    def leaves_out(self) -> bool:
        """Whether changes of the table do not reach the stream, or not all of their columns."""
        return not (self.has_table and self.tells_all and self.by_root) or self.has_filter or self.has_columns

    def problems(self, key: Sequence[str]) -> list[Problem]:
        name = self.publication
        found = []
        if not self.exists:
            found.append(Problem("publication", f"publication {name} is gone"))
        elif not self.has_table:
            found.append(Problem("publication", f"publication {name} does not have the table any more"))
        found += self.option_problems()
        if self.has_filter:
            found.append(Problem("publication", f"publication {name} has a row filter on the table"))
        if self.has_columns:
            found.append(Problem("publication", f"publication {name} has a list of columns for the table"))
        if not self.has_key:
            found.append(Problem("identity", f"no index proves any more that ({', '.join(key)}) identifies a row"))
        if self.other_identity is not None:
            found.append(Problem("identity", f"the replica identity of {self.other_identity} does not name ({', '.join(key)})"))
        if self.silent_partition is not None:
            hint = "detach it, or for an unlogged one: alter table … set logged"
            found.append(Problem("partition", f"partition {self.silent_partition}: what is written to it is not in the stream", hint))
        return found

    def option_problems(self) -> list[Problem]:
        if not self.exists:
            return []
        name, found = self.publication, []
        if not self.tells_all:
            hint = f"alter publication {name} set (publish = '{EVERYTHING}')"
            found.append(Problem("publication", f"publication {name} does not publish every kind of change", hint))
        if not self.by_root:
            hint = f"alter publication {name} set (publish_via_partition_root = true)"
            found.append(Problem("publication", f"publication {name} does not publish via the partition root", hint))
        return found


def read(connection: Connection, publication: str, table_id: int, key: Sequence[str]) -> Published:
    row = connection.execute(SQL.query("read_published"), {"name": publication, "oid": table_id, "key": list(key)}).fetchone()
    assert row is not None
    return Published(publication=publication, **row)
