"""Commits that were sent to a catalog, and whose answer got lost: whether one that is not there may still arrive.

A REST catalog, or a proxy before it, may carry a request out long after whoever sent it was told that it failed. Its files and its line in
the journal stay so long, or what arrives would be a commit that everybody takes for settled, of files that are gone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from modak.catalog.migrate import SQL

if TYPE_CHECKING:
    from modak.gateway.decoupled.world import World

# Beyond what any server or proxy works at one request.
ARRIVAL_SECONDS = 3600.0
_LOOK_SECONDS = (2.0, 30.0)
_LOCK_TIMEOUT = "1s"
Change = Mapping[str, Any]


@dataclass
class Awaited:
    """One of them. ``since`` counts from our own first look: when the request was sent, nobody may be left to tell."""

    profiles: frozenset[str]
    since: float
    next: float
    pause: float
    _numbers: dict[str, int] = field(default_factory=dict)

    def may_come(self, change: Change, number: int | None) -> bool:
        """``number`` is the table's last sequence number, None where the table is gone. No snapshot comes with one that was given away.

        The first snapshot of a table is the exception, and so is a table that is made.
        """
        if change["profile"] not in self.profiles or change["kind"] == "create":
            return change["profile"] in self.profiles
        return number is not None and not number > self._numbers.setdefault(change["ref"], number) > 0


class Arrivals:
    """Every method may be called from any thread."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._awaited: dict[str, Awaited] = {}
        self._lock = threading.Lock()

    def is_due(self, commit_id: str) -> bool:
        """Whether it is time to look again: each look takes the turn of a table."""
        with self._lock:
            known = self._awaited.get(commit_id)
            return known is None or time.monotonic() >= known.next

    def awaited(self, commit_id: str, changes: Sequence[Change]) -> Awaited | None:
        """Before a look, with the turns of its tables in hand, so that nobody is at it. None: what is not there now never will be."""
        storages = {change["profile"]: self._world.lake(change["profile"]).storage for change in changes}
        for change in changes:
            storage = storages[change["profile"]]
            if not storage.is_rest:
                self._wait_for_pointer(storage.catalog_name, change["ref"])
        slow = frozenset(profile for profile, storage in storages.items() if storage.is_rest)
        return self._again(commit_id, slow) if slow else None

    def forget(self, commit_id: str) -> None:
        with self._lock:
            self._awaited.pop(commit_id, None)

    def limit(self, commit_ids: Iterable[str]) -> None:
        """To those that are open: another gateway may have settled the others."""
        with self._lock:
            kept = set(commit_ids)
            self._awaited = {commit_id: one for commit_id, one in self._awaited.items() if commit_id in kept}

    def _again(self, commit_id: str, profiles: frozenset[str]) -> Awaited | None:
        now = time.monotonic()
        with self._lock:
            known = self._awaited.setdefault(commit_id, Awaited(profiles, now, now, _LOOK_SECONDS[0]))
            known.next, known.pause = now + known.pause, min(2 * known.pause, _LOOK_SECONDS[1])
            return known if now - known.since < ARRIVAL_SECONDS else None

    def _wait_for_pointer(self, catalog: str, ref: str) -> None:
        """In the embedded catalog a commit changes a row of Postgres's: once the row can be locked, it has happened or it never will."""
        namespace, name = ref.split(".", 1)
        given = {"catalog": catalog, "namespace": namespace, "name": name}
        with self._world.connection() as connection, connection.transaction():
            connection.execute("select set_config('lock_timeout', %s, true)", [_LOCK_TIMEOUT])
            connection.execute(SQL.query("hold_lake_pointer"), given)
