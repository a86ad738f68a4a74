"""Tags: at the end of a pass the tables of a slot are at one place in the WAL, and their snapshots get its name.

Whoever joins the tables by that tag, in whatever engine, sees them at the boundary of one transaction. The newest ones are kept, and the
first one of each minute for an hour: a query of an engine outside may take its time. The catalog names a moment only when every table has
its tag; tags that a crash left behind go with the next ones. A table that sheds partitions has none: its lake lacks corrections of older
rows that were committed before F, until they are folded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.refs import SnapshotRefType

from modak.catalog import mirrors
from modak.catalog.tables import Registered
from modak.connection import Connection
from modak.core.table import Name
from modak.errors import ModakError
from modak.failpoints import failpoint
from modak.jobs.context import JobContext

log = logging.getLogger("modak.mirror")
PREFIX = "lsn_"
# Besides those of modak.mirror_moments that stay longer, sixty at most.
KEPT = 10
Opener = Callable[[Name], AbstractContextManager[JobContext]]


def tag_name(lsn: int) -> str:
    """Names in the order of the WAL."""
    return f"{PREFIX}{lsn:016X}"


@dataclass(frozen=True)
class Tagging:
    connection: Connection
    opened: Opener

    def tag(self, followed: Sequence[Registered], lsn: int) -> bool:
        """Name this moment, unless nothing happened since the last one that has a name. A table that cannot be tagged has none of it."""
        self._untag([table for table in followed if table.has_seam])
        followed = [table for table in followed if not table.has_seam]
        ids = [table.table_id for table in followed]
        if not ids or not mirrors.is_news(self.connection, ids, lsn):
            return False
        kept = mirrors.kept_tags(self.connection, ids, KEPT - 1)
        done = [table.table_id for table in followed if self._tag_one(table, lsn, {tag_name(lsn), *kept})]
        failpoint("mirror.after_tags")
        with self.connection.transaction():
            mirrors.save_tags(self.connection, done, lsn, tag_name(lsn))
            mirrors.drop_tags(self.connection, ids, KEPT)
        return True

    def _untag(self, shedding: Sequence[Registered]) -> None:
        """Of tables that shed partitions since they were tagged last."""
        tagged = mirrors.tagged(self.connection, [table.table_id for table in shedding])
        for table in shedding:
            if table.table_id in tagged and self._tag_one(table, None, ()):
                mirrors.forget_tags(self.connection, table.table_id)

    def _tag_one(self, table: Registered, lsn: int | None, kept: Collection[str]) -> bool:
        try:
            with self.opened(table.name) as job:
                return _set_tags(job, lsn, kept)
        except (ModakError, CommitFailedException, OSError) as cause:
            log.warning("%s was not tagged at %s: %s", table.name, tag_name(lsn or 0), cause)
            return False


def _set_tags(context: JobContext, lsn: int | None, kept: Collection[str]) -> bool:
    """One commit of names, without a snapshot of its own. ``lsn`` None: names only go."""
    state, snapshot = mirrors.at_rest(context.connection, context.table_id) if lsn is not None else (None, None)
    if state != lsn:
        return False
    table = context.lake_table()
    refs = table.metadata.refs
    stale = [name for name, ref in refs.items() if ref.snapshot_ref_type is SnapshotRefType.TAG and _is_ours(name) and name not in kept]
    if snapshot is None and not stale:
        return True
    change = table.manage_snapshots()
    if snapshot is not None and lsn is not None:
        change = change.create_tag(snapshot_id=snapshot, tag_name=tag_name(lsn))
    for name in stale:
        change = change.remove_tag(name)
    change.commit()
    return True


def _is_ours(name: str) -> bool:
    return name.startswith(PREFIX) and len(name) == len(PREFIX) + 16
