"""Maintain a decoupled table: every transaction leaves a file, a manifest and a snapshot, and soon there are many of each.

Files are written anew beside the table's writers. A commit takes its turn among them (``mesh/bakery.py``), looks whether what it replaces
is still there as it was, and gives up what is not: the next pass sees it again. Snapshots leave the metadata soon, because every commit has
to carry them; their files go a day later, because somebody may be reading them, here or on another node, with another engine.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform

from modak.catalog import decoupled, migrate, ownership
from modak.connection import Connection
from modak.core.decoupled import Definition
from modak.core.maintenance import KnownSnapshot, Upkeep, decoupled_upkeep, expired, merges_manifests, says_age
from modak.errors import ClaimCancelled, ClaimLost, LockNotAvailable
from modak.failpoints import failpoint
from modak.jobs.maintain import MaintainOutcome
from modak.jobs.maintain_plan import Plan
from modak.jobs.maintain_tasks import RewriteTask, Rewritten
from modak.jobs.tasks import Spread
from modak.lake import commits, reachable
from modak.lake.change import LakeMoved
from modak.lake.data_files import Target
from modak.lake.failures import lake_failures
from modak.lake.iceberg import IcebergLake
from modak.lake.manifests import ENTRIES_MAX, entry_count, merge_manifests, small_manifests
from modak.lake.storage import io_properties
from modak.mesh import Bakery, Claim
from modak.progress import SILENT, Progress
from modak.scan.paths import readable
from modak.scan.snapshots import Snapshots
from modak.scan.sqltext import quoted
from modak.source.sessions import sees_other_sessions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from modak.scan.snapshot import Snapshot

JOB = "maintain"
COMMIT_ID = "modak.commit-id"
_IN_DOUBT = "a commit that is in doubt: its gateway asks Postgres what became of it"
_UNSEEN = "sessions that this role cannot see: grant it pg_read_all_stats"
# Engines that take no turns may come between.
_ATTEMPTS = 5
# What is written anew while the writers wait.
_TURN_FILES = 500
_TURN_BYTES = 32 * 1024 * 1024
# So many stay in the metadata, unless the table says how old they may become.
SNAPSHOTS_MAX = 1_000
# Beyond the oldest transaction: it read the lake a moment after it began.
_MARGIN_SECONDS = 60


@dataclass(frozen=True)
class DecoupledContext:
    """One decoupled table's job; ``connection`` is in autocommit. ``turn_seconds``: so long it waits for the writers."""

    connection: Connection
    dsn: str = field(repr=False)
    definition: Definition
    lake: IcebergLake
    spark: Callable[[], SparkSession]
    progress: Progress = SILENT
    turn_seconds: float = 60.0

    @property
    def ref(self) -> str:
        return self.definition.ref

    def table(self) -> Table:
        return self.lake.load(self.ref)

    def snapshot(self, table: Table) -> Snapshot:
        current = table.current_snapshot()
        with contextlib.closing(Snapshots()) as snapshots:
            number = current.sequence_number if current is not None else None
            return snapshots.get(table.metadata_location, number, io_properties(self.lake.storage))

    @contextlib.contextmanager
    def turn(self, table: Table) -> Iterator[Claim]:
        """Nobody of the mesh commits meanwhile."""
        until = time.monotonic() + self.turn_seconds
        with contextlib.closing(Bakery(self.dsn)) as bakery:
            try:
                claim = bakery.claim(str(table.metadata.table_uuid), cancelled=lambda: time.monotonic() > until)
            except ClaimCancelled as cause:
                raise LockNotAvailable(
                    f"transactions have been writing to {self.definition.name} for too long", hint="try again when they have ended"
                ) from cause
            with claim:
                yield claim


def maintain_decoupled(context: DecoupledContext, *, dry_run: bool = False) -> MaintainOutcome:
    """One pass by the table's properties."""
    with lake_failures(f"the maintenance of {context.definition.name}", context.lake.storage):
        done = _maintain(context, dry_run)
    if not dry_run:
        decoupled.clear(context.connection, context.definition.table_id, JOB)
    return done


def _maintain(context: DecoupledContext, dry_run: bool) -> MaintainOutcome:
    ownership.check_lake(context.connection)
    table = context.table()
    upkeep = decoupled_upkeep(table.properties)
    plan = _plan(context, table, upkeep)
    if dry_run:
        return _would(context, table, plan, upkeep)
    done = MaintainOutcome()
    for groups in plan.batches():
        done = _rewrite(context, plan, upkeep, groups, (), done)
    if plan.joins:
        done = _rewrite(context, plan, upkeep, [], plan.joins, done)
    if done.held_by is None and done.files_rewritten < sum(map(len, plan.groups)):
        done = _rewrite_in_turn(context, upkeep, done)
    if _is_worth_a_turn(context, upkeep):
        done = _tidy(context, upkeep, done)
    return replace(done, files_removed=_remove(context, upkeep))


def _plan(context: DecoupledContext, table: Table, upkeep: Upkeep) -> Plan:
    """Files of which every row seems to be deleted stand in groups of their own: nobody changes them, whatever becomes of the others."""
    plan = Plan.of(context.snapshot(table), upkeep)
    spent = {file.name for file in plan.lake_files if file.deleted_rows >= file.rows}
    parted = [tuple(path for path in group if (path in spent) is is_spent) for group in plan.groups for is_spent in (True, False)]
    return replace(plan, groups=tuple(group for group in parted if group))


def _would(context: DecoupledContext, table: Table, plan: Plan, upkeep: Upkeep) -> MaintainOutcome:
    paths = [path for group in plan.groups for path in group]
    due, held_by = _due(context, table, upkeep)
    return MaintainOutcome(
        files_rewritten=len(paths),
        bytes_rewritten=plan.bytes_of(paths),
        deletes_joined=sum(len(plan.files[path].deletes) for path in plan.joins),
        manifests_merged=_mergeable(table, upkeep),
        snapshots_expired=len(due),
        held_by=_doubt(context, table) or held_by,
        dry_run=True,
    )


def _task(context: DecoupledContext, plan: Plan, upkeep: Upkeep, groups: Sequence[tuple[str, ...]], joins: Sequence[str]) -> RewriteTask:
    table = context.table()
    return RewriteTask(
        dsn="",
        op_id=uuid.uuid4().hex,
        target=Target(table.metadata.model_dump_json(), io_properties(context.lake.storage), tier_key="", primary_key=(), layout="none"),
        storage=context.lake.storage,
        size_max=upkeep.target_bytes,
        rewrites=tuple(replace(plan.snapshot, files=tuple(plan.files[path] for path in group)) for group in groups),
        joins=plan.join_parts(joins),
        order=_order(table),
        reports=False,
    )


def _rewrite(
    context: DecoupledContext, plan: Plan, upkeep: Upkeep, groups: Sequence[tuple[str, ...]], joins: Sequence[str], done: MaintainOutcome
) -> MaintainOutcome:
    """One commit. What changed while it was being written is left as it is, and the files for it go again."""
    task = _task(context, plan, upkeep, groups, joins)
    size = plan.bytes_of([path for group in groups for path in group])
    job = Spread(context.spark, task.run, task.count, "maintenance")
    with context.progress.task(f"Writing {size / 1024**2:,.0f} MB anew"):
        made = job.result()
    failpoint("maintain_decoupled.after_files")
    try:
        with context.turn(context.table()) as claim:
            return _commit(context, claim, plan, groups, joins, made, done)
    except (LockNotAvailable, ClaimLost):
        # Before the commit. One that failed may arrive yet, and its files stay: if it never does, the gateway sweeps them.
        _remove_unseen(context, _files_of(made))
        raise


def _rewrite_in_turn(context: DecoupledContext, upkeep: Upkeep, done: MaintainOutcome) -> MaintainOutcome:
    """What writers change faster than it is written anew is written while they wait: as much of it as is done in a moment."""
    with context.turn(context.table()) as claim:
        plan = _plan(context, context.table(), upkeep)
        groups = _little(plan)
        if not groups or _doubt(context, context.table()) is not None:
            return done
        task = _task(context, plan, upkeep, groups, ())
        made = [task.run(number) for number in range(task.count)]
        failpoint("maintain_decoupled.in_turn")
        return _commit(context, claim, plan, groups, (), made, done)


def _little(plan: Plan) -> list[tuple[str, ...]]:
    files, size = _TURN_FILES, _TURN_BYTES
    found = []
    for group in plan.groups:
        taken = []
        for path in group:
            if not files or plan.files[path].bytes > size:
                break
            taken.append(path)
            files, size = files - 1, size - plan.files[path].bytes
        # A part of a group that is one file would only be copied.
        if len(taken) > 1 or tuple(taken) == group:
            found.append(tuple(taken))
    return found


def _commit(
    context: DecoupledContext,
    claim: Claim,
    plan: Plan,
    groups: Sequence[tuple[str, ...]],
    joins: Sequence[str],
    made: Sequence[Rewritten],
    done: MaintainOutcome,
) -> MaintainOutcome:
    parts = [*groups, *(tuple(file.path for file in part) for part in plan.join_parts(joins))]
    doubt = None
    for _ in range(_ATTEMPTS):
        table = context.table()
        doubt = _doubt(context, table)
        if doubt is not None:
            break
        sound = _sound(plan, context.snapshot(table), parts)
        rewritten = [path for place, group in enumerate(groups) if sound[place] for path in group]
        joined = [path for place, part in enumerate(parts) if place >= len(groups) and sound[place] for path in part]
        kept = [one for place, one in enumerate(made) if sound[place]]
        if not kept:
            break
        claim.check()
        try:
            commit = commits.change(
                table,
                _stamps(claim),
                added=[file for one in kept for file in one.data],
                deletes=[written for one in kept for written in one.deletes],
                removed=[plan.files[path].location for path in rewritten] + plan.useless(set(rewritten), joined),
                is_rewrite=True,
            )
        except LakeMoved:
            continue
        failpoint("maintain_decoupled.after_commit")
        _remove_unseen(context, _files_of([one for place, one in enumerate(made) if not sound[place]]))
        return replace(
            done,
            files_rewritten=done.files_rewritten + len(rewritten),
            files_written=done.files_written + sum(len(one.data) for one in kept),
            bytes_rewritten=done.bytes_rewritten + plan.bytes_of(rewritten),
            deletes_joined=done.deletes_joined + sum(len(plan.files[path].deletes) for path in joined),
            commits=done.commits + 1,
            snapshot=commit.sequence_number,
        )
    _remove_unseen(context, _files_of(made))
    return replace(done, held_by=doubt)


def _sound(plan: Plan, now: Snapshot, parts: Sequence[tuple[str, ...]]) -> list[bool]:
    """Which parts of the plan still hold: the columns are the same, the files are there, and so are their deletes and no others."""
    present = {file.path: file for file in now.files}
    is_same = (now.fields, now.spec_id) == (plan.snapshot.fields, plan.snapshot.spec_id)
    return [is_same and all(present.get(path) == plan.files[path] for path in part) for part in parts]


def _stamps(claim: Claim) -> dict[str, str]:
    return {commits.OP_KIND: "maintenance", "modak.ticket": str(claim.ticket), "modak.node": claim.node}


def _files_of(made: Sequence[Rewritten]) -> list[str]:
    return [file.file_path for one in made for file in (*one.data, *(written.file for written in one.deletes))]


def _remove_unseen(context: DecoupledContext, locations: Sequence[str]) -> None:
    if locations:
        table = context.table()
        known = {readable(path) for path in reachable.referred(table)}
        reachable.remove(table.io, [location for location in locations if readable(location) not in known])


def _order(table: Table) -> str:
    """As the table's own sort order says, as far as it names columns."""
    schema, terms = table.schema(), []
    for one in table.sort_order().fields:
        if not isinstance(one.transform, IdentityTransform):
            break
        name = schema.find_column_name(one.source_id)
        if name is None:
            break
        terms.append(f"{quoted(name)} {one.direction.value} {one.null_order.value.replace('-', ' ')}")
    return ", ".join(terms)


def _doubt(context: DecoupledContext, table: Table) -> str | None:
    """A commit that Postgres has not confirmed may have to be taken out whole, so nothing is built upon it."""
    rows = context.connection.execute(migrate.SQL.query("open_lake_commits")).fetchall()
    open_ids = {row["commit_id"] for row in rows}
    known = any(commits.stamps_of(snapshot).get(COMMIT_ID) in open_ids for snapshot in table.snapshots())
    return _IN_DOUBT if open_ids and known else None


# Manifests and snapshots.


def _mergeable(table: Table, upkeep: Upkeep) -> int:
    small = small_manifests(table)
    return len(small) if merges_manifests([entry_count(one) for one in small], upkeep, ENTRIES_MAX) else 0


def _is_worth_a_turn(context: DecoupledContext, upkeep: Upkeep) -> bool:
    table = context.table()
    return bool(_mergeable(table, upkeep) or _due(context, table, upkeep)[0])


def _tidy(context: DecoupledContext, upkeep: Upkeep, done: MaintainOutcome) -> MaintainOutcome:
    for _ in range(_ATTEMPTS):
        with contextlib.suppress(LakeMoved), context.turn(context.table()) as claim:
            table = context.table()
            doubt = _doubt(context, table)
            if doubt is not None:
                return replace(done, held_by=doubt)
            merged = _mergeable(table, upkeep)
            if merged:
                claim.check()
                commit = merge_manifests(table, _stamps(claim))
                done = replace(done, manifests_merged=merged, commits=done.commits + 1, snapshot=commit.sequence_number)
                failpoint("maintain_decoupled.after_merge")
            claim.check()
            return _expire(context, context.table(), upkeep, done)
    return done


def _due(context: DecoupledContext, table: Table, upkeep: Upkeep) -> tuple[list[int], str | None]:
    """Snapshots that were replaced before the oldest transaction of this database began, and longer ago than the policy says."""
    if not sees_other_sessions(context.connection):
        return [], _UNSEEN
    row = context.connection.execute(migrate.SQL.query("running_seconds")).fetchone()
    running = float(row["seconds"]) if row is not None else 0.0
    now, named = time.time(), {ref.snapshot_id for ref in table.metadata.refs.values()}
    line = sorted(table.metadata.snapshots, key=lambda one: one.sequence_number or 0)
    if not line:
        return [], None
    replaced_at = [*(later.timestamp_ms / 1000 for later in line[1:]), now]
    known = [
        KnownSnapshot(one.snapshot_id, one.sequence_number or 0, now - until, one.snapshot_id in named)
        for one, until in zip(line, replaced_at, strict=True)
    ]
    newest, safe = line[-1].sequence_number or 0, int(running + _MARGIN_SECONDS)
    found = expired(known, newest, replace(upkeep, snapshot_age=max(upkeep.snapshot_age, safe)))
    if not says_age(table.properties):
        # Thousands of commits in ten minutes would make each of them slow; the files of their snapshots stay as long as any.
        many = replace(upkeep, snapshots=max(upkeep.snapshots, SNAPSHOTS_MAX), snapshot_age=safe)
        found = list(dict.fromkeys([*found, *expired(known, newest, many)]))
    held = expired(known, newest, upkeep)
    return found, f"a transaction of {running:,.0f} seconds" if len(held) > len(found) and running > upkeep.snapshot_age else None


def _expire(context: DecoupledContext, table: Table, upkeep: Upkeep, done: MaintainOutcome) -> MaintainOutcome:
    """What goes is written down before the metadata forget it; one that is not forgotten then is still referred to, and stays."""
    ids, held_by = _due(context, table, upkeep)
    if not ids:
        return replace(done, held_by=held_by)
    gone = set(ids)
    kept = table.metadata.model_copy(update={"snapshots": [one for one in table.metadata.snapshots if one.snapshot_id not in gone]})
    leftovers = reachable.left_behind(table.io, table.metadata, kept, readable)
    locations = sorted({*leftovers.data, *leftovers.manifests, *leftovers.lists})
    context.connection.execute(migrate.SQL.query("note_leftovers"), {"table_id": context.definition.table_id, "locations": locations})
    failpoint("maintain_decoupled.before_expiry")
    try:
        table.maintenance.expire_snapshots().by_ids(ids).commit()
    except CommitFailedException as cause:
        raise LakeMoved("the lake table moved while snapshots expired", hint="the next pass looks again") from cause
    failpoint("maintain_decoupled.after_expiry")
    return replace(done, snapshots_expired=len(ids), held_by=held_by)


def _remove(context: DecoupledContext, upkeep: Upkeep) -> int:
    """Files of snapshots that were let go long enough ago."""
    keys = {"table_id": context.definition.table_id}
    rows = context.connection.execute(migrate.SQL.query("due_leftovers"), keys | {"seconds": upkeep.orphan_age}).fetchall()
    if not rows:
        return 0
    table, locations = context.table(), [row["location"] for row in rows]
    known = {readable(path) for path in reachable.referred(table)}
    removed = reachable.remove(table.io, [location for location in locations if readable(location) not in known])
    failpoint("maintain_decoupled.after_removal")
    context.connection.execute(migrate.SQL.query("forget_leftovers"), keys | {"locations": locations})
    return removed
