"""Changes of one table, collapsed: of everything that happened to a key only its last row is left.

The order of changes is the order of commits. What a key was before the first change is the lake's business; what is known of it here is
whether there can have been a row at all, so that a batch of new rows only is an append.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from modak.errors import ModakError


class Mark(enum.Enum):
    """A large value that an update left as it was: Postgres does not send it again."""

    UNCHANGED = "unchanged"


UNCHANGED: Literal[Mark.UNCHANGED] = Mark.UNCHANGED
Value = bytes | None | Literal[Mark.UNCHANGED]
Row = tuple[Value, ...]
Key = tuple[bytes, ...]

# What Python takes for a row and its entry, besides the values.
ROW_BYTES = 300


class KeyMissing(ModakError):
    """A change does not say whose it is."""

    code = "key_missing"


@dataclass(slots=True)
class Last:
    """The last word on a key. ``row`` None: deleted. ``before``: the lake may hold rows of this key from before the batch.

    ``origin`` is the key under which the lake has the row whose unchanged values this one keeps.
    """

    row: Row | None
    before: bool
    origin: Key | None = None


@dataclass
class Collapse:
    """``key_places``: where the key's columns stand in a row. ``bytes`` is what whoever reads the stream counts here."""

    key_places: Sequence[int]
    truncated: bool = False
    changes: int = 0
    bytes: int = 0
    last: dict[Key, Last] = field(default_factory=dict)

    def insert(self, row: Row) -> None:
        key = self.key(row)
        known = self.last.get(key)
        self.last[key] = Last(row, known.before if known else False)
        self.changes += 1

    def update(self, row: Row, old: Row | None = None, *, is_whole: bool = False) -> None:
        """``old`` is the row before, or its key alone; None where the key stayed."""
        if old is not None and is_whole and UNCHANGED in row:
            row = tuple(was if value is UNCHANGED else value for value, was in zip(row, old, strict=True))
        elif old is not None:
            row = self.with_key(row, old)
        key = self.key(row)
        old_key = key if old is None else self.key(old)
        known = self.last.get(old_key)
        origin: Key | None = None
        if UNCHANGED in row:
            if known is not None and known.row is not None:
                row = tuple(was if value is UNCHANGED else value for value, was in zip(row, known.row, strict=True))
                origin = known.origin
            else:
                origin = old_key
            origin = origin if UNCHANGED in row else None
        if old_key != key:
            self._gone(old_key)
            taken = self.last.get(key)
            # A key is free before a row moves to it: if nothing was heard of it, the lake has nothing either.
            self.last[key] = Last(row, taken.before if taken else False, origin)
        else:
            self.last[key] = Last(row, known.before if known else True, origin)
        self.changes += 1

    def delete(self, old: Row) -> None:
        self._gone(self.key(old))
        self.changes += 1

    def truncate(self) -> None:
        self.last.clear()
        self.truncated = True
        self.changes += 1

    def key(self, row: Row) -> Key:
        found = []
        for place in self.key_places:
            value = row[place]
            if not isinstance(value, bytes):
                raise KeyMissing("a change came without its key", hint="the table's replica identity was changed; run `modak resync`")
            found.append(value)
        return tuple(found)

    def gone(self) -> Iterator[Key]:
        """Keys whose rows in the lake have to go, replaced or not."""
        return (key for key, last in self.last.items() if last.before)

    def rows(self) -> Iterator[tuple[Key, Last]]:
        return ((key, last) for key, last in self.last.items() if last.row is not None)

    def with_key(self, row: Row, old: Row) -> Row:
        """A key that is stored out of line and stayed is in the old row only."""
        if not any(row[place] is UNCHANGED for place in self.key_places):
            return row
        return tuple(old[place] if value is UNCHANGED and place in self.key_places else value for place, value in enumerate(row))

    def _gone(self, key: Key) -> None:
        known = self.last.get(key)
        if known is not None and not known.before:
            del self.last[key]
        else:
            self.last[key] = Last(None, True)
