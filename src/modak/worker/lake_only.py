"""Decoupled tables in the worker's cycle: nothing but their maintenance is the worker's business, and that not often."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field

import psycopg

from modak.app import App
from modak.catalog import decoupled
from modak.connection import Connection
from modak.core.maintenance import decoupled_upkeep
from modak.core.table import Name
from modak.errors import LockNotAvailable, ModakError
from modak.worker.state import LoopState

log = logging.getLogger("modak.worker")
JOB = "maintain"
_LIST_SECONDS = 60.0
# Each transaction leaves a snapshot, which every later one carries along.
_EVERY_SECONDS_MAX = 600.0


@dataclass
class LakeOnly:
    """``every_seconds``: None leaves them alone. Those that were attached are somebody else's to maintain."""

    app: App
    state: LoopState
    every_seconds: float | None
    names: list[Name] = field(default_factory=list)
    _listed: float | None = None
    _next: dict[Name, float] = field(default_factory=dict)

    def due(self, connection: Connection, now: float) -> list[Name]:
        if self.every_seconds is None:
            return []
        if self._listed is None or now - self._listed >= min(_LIST_SECONDS, self.every_seconds):
            self._listed = now
            self.names = [one.name for one in decoupled.listing(connection) if not one.is_attached]
            self._next = {name: self._next.get(name, now) for name in self.names}
        found = [name for name in self.names if self._next[name] <= now]
        for name in found:
            self._next[name] = now + min(self.every_seconds, _EVERY_SECONDS_MAX)
        return found

    def maintain(self, name: Name) -> None:
        """One pass, in a thread of its own; a failure is this table's alone."""
        from modak.jobs.maintain_decoupled import SNAPSHOTS_MAX, maintain_decoupled

        began = time.monotonic()
        try:
            with self.app.decoupled_job(name) as context:
                if context is None or not decoupled_upkeep(context.table().properties).enabled:
                    return
                with self.state.job(str(name), JOB):
                    done = maintain_decoupled(context)
        except LockNotAvailable as busy:
            log.info("%s of %s waits: %s", JOB, name, busy)
            return
        except Exception as cause:  # whatever it is, it is this table's, and the others go on
            expected = isinstance(cause, psycopg.Error | ModakError)
            log.warning("%s of %s failed: %s", JOB, name, cause, exc_info=None if expected else cause)
            self.state.fails(str(name), f"{JOB}: {cause}")
            return
        self.state.fails(str(name), None)
        if done.snapshots_expired >= SNAPSHOTS_MAX and name in self._next:
            self._next[name] = min(self._next[name], time.monotonic() + _LIST_SECONDS)
        if done.commits or done.snapshots_expired or done.files_removed:
            log.info(
                "%s of %s: %s files became %s, %s snapshots and %s files went, %.1f s",
                *(JOB, name, done.files_rewritten, done.files_written, done.snapshots_expired, done.files_removed),
                time.monotonic() - began,
            )
