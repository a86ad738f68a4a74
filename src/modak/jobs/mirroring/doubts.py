"""What the catalog leaves open about a table at the beginning of a pass, and how that is settled at its end.

By then the lake has everything that committed before the look, published or not. A table in doubt is published only when it is settled.
"""

from __future__ import annotations

import contextlib

from modak.jobs.context import JobContext
from modak.jobs.mirroring import heard
from modak.jobs.mirroring.departed import Departed
from modak.jobs.mirroring.follower import Follower
from modak.jobs.mirroring.head import stand
from modak.jobs.mirroring.leaves import Difference
from modak.jobs.mirroring.newcomers import Newcomers
from modak.jobs.mirroring.rewritten import Rewritten
from modak.scan.engine import Cursor
from modak.scan.snapshots import Snapshots


def look(context: JobContext, follower: Follower, strange: Difference, opened: contextlib.ExitStack) -> None:
    """``opened`` ends the sessions that keep a snapshot for it."""
    follower.suspect, follower.refiled = strange.what, strange.refiled
    if strange.newcomers:
        follower.newcomers = Newcomers.look(context, strange.newcomers)
        opened.callback(follower.newcomers.session.close)
    if strange.departed:
        follower.departed = Departed.look(context, strange.departed, follower.leaves)
    if strange.rewritten is not None:
        follower.rewritten = Rewritten.look(context, strange.rewritten, strange.altered)
        opened.callback(follower.rewritten.close)


def check(context: JobContext, follower: Follower, lsn: int, snapshots: Snapshots, cursor: Cursor) -> None:
    """With everything before ``lsn`` in the lake table. Raises CannotFollow for what is another one there."""
    stand(context, follower)
    heard.check(context.connection, follower)
    for one in (follower.newcomers, follower.rewritten):
        if one is not None:
            one.check(context, follower, lsn, snapshots, cursor)
    if follower.departed is not None:
        follower.departed.follow(context, follower, lsn, snapshots, cursor)
    follower.newcomers = follower.rewritten = follower.departed = None
    follower.was_checked = True
