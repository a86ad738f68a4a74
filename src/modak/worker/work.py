"""Which function each due job is, and whether its pass left something that only waits."""

from __future__ import annotations

from collections.abc import Callable

from modak.catalog import migrate, overview, problems
from modak.core.schedule import Job
from modak.jobs import adopt, fold, maintain, reclaim, resume, retain, tier
from modak.jobs.context import JobContext


def run(job: Job, context: JobContext) -> bool:
    """One pass. False: it waits for somebody, a reader as a rule, and is worth another try although nothing changes."""
    return _RUN[job](context)


def _resume(context: JobContext) -> bool:
    with problems.reported(context.connection, context.table_id, Job.RESUME):
        resume.resume_all(context)
    return True


def _adopt(context: JobContext) -> bool:
    return adopt.adopt(context).waiting is None


def _tier(context: JobContext) -> bool:
    tier.tier(context)
    return True


def _reclaim(context: JobContext) -> bool:
    return not reclaim.reclaim(context).waiting


def _fold(context: JobContext) -> bool:
    return fold.fold(context).waiting is None


def _retain(context: JobContext) -> bool:
    return retain.retain(context).waiting is None


def _maintain(context: JobContext) -> bool:
    """Somebody's request is done when the pass is: one that fails, or is killed, leaves it to the next."""
    request = overview.maintenance_request(context.connection, context.table_id)
    maintain.maintain(context)
    if request is not None:
        keys = {"table_id": context.table_id, "requested_at": request["requested_at"]}
        context.connection.execute(migrate.SQL.query("claim_maintenance"), keys)
    return True


_RUN: dict[Job, Callable[[JobContext], bool]] = {
    Job.RESUME: _resume,
    Job.ADOPT: _adopt,
    Job.TIER: _tier,
    Job.RECLAIM: _reclaim,
    Job.FOLD: _fold,
    Job.RETAIN: _retain,
    Job.MAINTAIN: _maintain,
}
