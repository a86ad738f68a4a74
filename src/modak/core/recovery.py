"""What catalog, database and lake say of each other after a restore, and what brings them together. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Finding:
    """One thing that does not fit. ``action`` is what ``--apply`` does about it; None: a person has to."""

    code: str
    what: str
    action: str | None = None
    table: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return {"code": self.code, "table": self.table, "what": self.what, "action": self.action}


def match_columns(columns: Sequence[tuple[int, str]], fields: Mapping[str, int]) -> dict[int, int] | None:
    """Which field of the lake each column (number, name) is, by name; a restore leaves no gaps in the numbers.

    None where both sides have a name that the other lacks: then one may be the other, renamed, and guessing would lose values.
    """
    names = {name for _, name in columns}
    if names - fields.keys() and fields.keys() - names:
        return None
    return {number: fields[name] for number, name in columns if name in fields}


@dataclass(frozen=True)
class LakeCommit:
    """A snapshot after the published one: made by an operation of Modak's or by somebody else, known to the journal or not."""

    is_ours: bool
    is_known: bool


@dataclass(frozen=True)
class LakeState:
    """Where a lake table stands, seen from the published S.

    ``later``: snapshots from S (not included) to the current one; None where the current one does not descend from S.
    """

    is_published: bool
    has_snapshot: bool
    has_pointer: bool
    later: Sequence[LakeCommit] | None


def judge(state: LakeState) -> str | None:
    """What is wrong with a lake table, in one word; None if nothing is.

    Rows of a pass that the catalog does not know are in the heap it was restored with, so its commit goes. A commit that the journal
    knows is left to whoever finishes operations, and a stranger's to a person.
    """
    if not state.is_published:
        return "ahead" if state.later and all(one.is_ours and not one.is_known for one in state.later) else None
    if not state.has_snapshot:
        return "behind" if state.has_pointer else "lost"
    if state.later is None:
        return "rolled_back"
    if any(not one.is_known for one in state.later):
        return "ahead" if all(one.is_ours for one in state.later if not one.is_known) else "foreign"
    return None if state.has_pointer else "pointer"
