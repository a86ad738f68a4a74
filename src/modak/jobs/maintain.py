"""Maintain: keep the lake quick to read and no larger than it has to be.

Small files are packed and worn ones written anew, in commits of a bounded size, each of which moves S in a short transaction of its own;
then manifests are merged, snapshots that nobody can read expire, and what given-up operations left is removed. The rows are the same
before and after, so neither readers nor writers wait, and pins hold back nothing but expiry.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from psycopg.types.json import Jsonb

from modak.catalog import migrate, operations, tables
from modak.catalog.operations import Operation
from modak.core import maintenance
from modak.core.maintenance import Upkeep
from modak.core.operation import OperationKind
from modak.failpoints import failpoint
from modak.jobs import expiry, foreign, journal, resume, sweep
from modak.jobs.context import JobContext, reported
from modak.jobs.maintain_plan import Plan
from modak.jobs.maintain_tasks import RewriteTask, Rewritten, in_order
from modak.jobs.publishing.maintain import publish_maintenance
from modak.jobs.tasks import Spread
from modak.lake import commits
from modak.lake.commits import Commit
from modak.lake.manifests import ENTRIES_MAX, entry_count, merge_manifests, small_manifests

JOB = "maintain"
TIDY_SHARE = 0.5
TIDY_ROWS = 100_000
TIDY_BYTES = 1024**3
NEVER = 10**9
JOURNAL_DAYS = 30


@dataclass(frozen=True)
class MaintainOutcome:
    """What a pass did, or with ``dry_run`` would do. ``held_by``: who keeps older snapshots from expiring."""

    files_rewritten: int = 0
    files_written: int = 0
    bytes_rewritten: int = 0
    deletes_joined: int = 0
    manifests_merged: int = 0
    snapshots_expired: int = 0
    files_removed: int = 0
    orphans_removed: int = 0
    commits: int = 0
    snapshot: int | None = None
    held_by: str | None = None
    warnings: tuple[str, ...] = ()
    resumed: tuple[str, ...] = ()
    dry_run: bool = False


def maintain(context: JobContext, *, orphans: bool = False, dry_run: bool = False) -> MaintainOutcome:
    """One pass by the table's policy. ``orphans`` asks for their sweep this time. A failure is written to modak.problems and raised."""
    with reported(context, JOB):
        return _maintain(context, orphans, dry_run)


def _maintain(context: JobContext, orphans: bool, dry_run: bool) -> MaintainOutcome:
    upkeep = Upkeep.of(context.table.maintenance_policy)
    finished = () if dry_run else resume.resume_all(context)
    foreign.settle(context, "refuse")
    plan = _look(context, upkeep)
    sweeping = orphans or upkeep.orphans
    if dry_run:
        return _would(context, plan, upkeep, sweeping)
    done = MaintainOutcome(resumed=finished)
    gone: set[str] = set()
    for groups in plan.batches():
        done = _rewrite(context, plan, upkeep, groups, (), gone, done)
    if plan.joins:
        done = _rewrite(context, plan, upkeep, [], plan.joins, gone, done)
    done = _merge(context, upkeep, done)
    horizon = expiry.horizon(context)
    snapshots, removed = expiry.expire(context, horizon, upkeep)
    removed += sweep.sweep_abandoned(context)
    age = timedelta(seconds=upkeep.orphan_age)
    done = replace(
        done,
        held_by=horizon.held_by,
        snapshots_expired=snapshots,
        files_removed=removed,
        orphans_removed=sweep.orphans(context, older_than=age) if sweeping else 0,
    )
    _prune(context, horizon)
    return replace(done, warnings=tuple(_note(context, plan if not done.commits else _look(context, upkeep), upkeep)))


def tidy(context: JobContext) -> MaintainOutcome | None:
    """Write files anew of which half the rows or more are deleted, if that is worth it and little work; None if there is nothing to do.

    For jobs that delete much and whose readers do not want to wait for the next pass of maintenance.
    """
    upkeep = Upkeep.of(context.table.maintenance_policy)
    plan = _look(context, replace(upkeep, deleted_percent=max(TIDY_SHARE, upkeep.deleted_percent), small_files=NEVER, delete_files=NEVER))
    paths = {path for group in plan.groups for path in group}
    deleted = sum(file.deleted_rows for file in plan.lake_files if file.name in paths)
    if deleted < TIDY_ROWS or plan.bytes_of(list(paths)) > TIDY_BYTES:
        return None
    return _rewrite(context, plan, upkeep, plan.groups, (), set(), MaintainOutcome())


def _look(context: JobContext, upkeep: Upkeep) -> Plan:
    line = tables.cutline(context.connection, context.table_id)
    return Plan.of(context.cold(context.lake_table(), line.snapshot), upkeep, ordered_by=context.table.tier_key_col)


def _would(context: JobContext, plan: Plan, upkeep: Upkeep, sweeping: bool) -> MaintainOutcome:
    horizon = expiry.horizon(context)
    paths = [path for group in plan.groups for path in group]
    small = small_manifests(context.lake_table())
    merges = maintenance.merges_manifests([entry_count(one) for one in small], upkeep, ENTRIES_MAX)
    age = timedelta(seconds=upkeep.orphan_age)
    return MaintainOutcome(
        files_rewritten=len(paths),
        bytes_rewritten=plan.bytes_of(paths),
        deletes_joined=sum(len(plan.files[path].deletes) for path in plan.joins),
        manifests_merged=len(small) if merges else 0,
        snapshots_expired=len(expiry.due(context.lake_table(), horizon, upkeep, time.time())),
        orphans_removed=sweep.orphans(context, older_than=age, dry_run=True) if sweeping else 0,
        held_by=horizon.held_by,
        dry_run=True,
    )


def _rewrite(
    context: JobContext,
    plan: Plan,
    upkeep: Upkeep,
    groups: Sequence[tuple[str, ...]],
    joins: Sequence[str],
    gone: set[str],
    done: MaintainOutcome,
) -> MaintainOutcome:
    """One commit: these groups written anew, these files' deletes joined. ``gone`` collects what earlier commits replaced."""
    paths = [path for group in groups for path in group]
    size = plan.bytes_of(paths)
    operation = _start(context, step="compact", files=len(paths), bytes=size, joins=len(joins))
    failpoint("maintain.after_journal")
    with resume.given_up_on_failure(context, operation, resume.abandon_plain):
        made = _run(context, _task(context, plan, upkeep, groups, joins, operation.op_id), size)
        failpoint("maintain.after_files")
        gone.update(paths)
        removed = [plan.files[path].location for path in paths] + plan.useless(gone, joins)
        added = [file for one in made for file in one.data]
        deletes = [written for one in made for written in one.deletes]
        table = context.lake_table()
        foreign.refuse_unknown(context, table, frozenset())
        commit = commits.change(table, journal.stamps(operation), added=added, deletes=deletes, removed=removed, is_rewrite=True)
    failpoint("maintain.after_commit")
    _publish(context, operation, commit, files_written=len(added), rows=sum(file.record_count for file in added))
    return replace(
        done,
        files_rewritten=done.files_rewritten + len(paths),
        files_written=done.files_written + len(added),
        bytes_rewritten=done.bytes_rewritten + size,
        deletes_joined=done.deletes_joined + sum(len(plan.files[path].deletes) for path in joins),
        commits=done.commits + 1,
        snapshot=commit.sequence_number,
    )


def _task(
    context: JobContext, plan: Plan, upkeep: Upkeep, groups: Sequence[tuple[str, ...]], joins: Sequence[str], op_id: str
) -> RewriteTask:
    return RewriteTask(
        dsn=context.dsn,
        op_id=op_id,
        target=context.target(context.lake_table()),
        storage=context.lake.storage,
        size_max=upkeep.target_bytes,
        rewrites=tuple(replace(plan.snapshot, files=tuple(plan.files[path] for path in group)) for group in groups),
        joins=plan.join_parts(joins),
        order=in_order((context.table.tier_key_col, *context.table.primary_key_cols)),
    )


def _run(context: JobContext, task: RewriteTask, size: int) -> list[Rewritten]:
    job = Spread(context.spark, task.run, task.count, "maintenance")
    with context.progress.task(f"Writing {size / 1024**2:,.0f} MB anew", total=task.count) as bar:
        while not job.wait(0.2):
            bar.note(f"{operations.rows_done(context.connection, task.op_id):,} rows")
    return job.result()


def _start(context: JobContext, **details: Any) -> Operation:
    line = tables.cutline(context.connection, context.table_id)
    known = {"old_tier_key_hi": line.tier_key_hi, "old_snapshot": line.snapshot, **details}
    return operations.start(context.connection, context.table_id, OperationKind.MAINTENANCE, known)


def _publish(context: JobContext, operation: Operation, commit: Commit, **more: int) -> None:
    publish_maintenance(context, journal.note_commit(context, operation, commit, **more), commit)
    failpoint("maintain.after_publish")


def _merge(context: JobContext, upkeep: Upkeep, done: MaintainOutcome) -> MaintainOutcome:
    table = context.lake_table()
    small = small_manifests(table)
    if not maintenance.merges_manifests([entry_count(one) for one in small], upkeep, ENTRIES_MAX):
        return done
    operation = _start(context, step="manifests", manifests=len(small))
    with resume.given_up_on_failure(context, operation, resume.abandon_plain):
        foreign.refuse_unknown(context, table, frozenset())
        commit = merge_manifests(table, journal.stamps(operation))
    failpoint("maintain.after_merge")
    _publish(context, operation, commit)
    return replace(done, manifests_merged=len(small), commits=done.commits + 1, snapshot=commit.sequence_number)


def _prune(context: JobContext, horizon: expiry.Horizon) -> None:
    keys = {"table_id": context.table_id, "days": JOURNAL_DAYS, "floor": horizon.floor or 0}
    context.connection.execute(migrate.SQL.query("prune_operations"), keys)


def _note(context: JobContext, plan: Plan, upkeep: Upkeep) -> list[str]:
    """The lake's health, for status, metrics and the console."""
    table = context.lake_table()
    current = table.current_snapshot()
    manifests = len(current.manifests(table.io)) if current is not None else 0
    files = plan.lake_files
    warnings = maintenance.warnings(files, len(table.metadata.snapshots), manifests, upkeep)
    stats = {
        "files": len(files),
        "bytes": sum(file.bytes for file in files),
        "rows": sum(file.rows - file.deleted_rows for file in files),
        "small_files": sum(maintenance.is_small(file, upkeep) for file in files),
        "deleted_rows": sum(file.deleted_rows for file in files),
        "delete_files": len({delete.path for file in plan.files.values() for delete in file.deletes}),
        "partitions": len({file.partition for file in files}),
        "manifests": manifests,
        "snapshots": len(table.metadata.snapshots),
    }
    context.connection.execute(
        migrate.SQL.query("save_lake_stats"),
        {"table_id": context.table_id, "stats": Jsonb(stats), "warnings": Jsonb(warnings), "policy": Jsonb(upkeep.as_json())},
    )
    return warnings
