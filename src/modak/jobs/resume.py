"""Resume: what a crash left open is finished or undone, by the journal's phase and the lake's stamps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from modak.catalog import migrate, operations, tables
from modak.catalog.operations import Operation
from modak.core.operation import OperationKind, Phase, Resume, resume
from modak.core.partition import PartitionState
from modak.errors import CommitUnknown, CutlineMoved, KeyShared, ModakError, Refused
from modak.failpoints import failpoint
from modak.jobs import expiry, journal
from modak.jobs.cold_side import finish_untier
from modak.jobs.context import JobContext
from modak.jobs.mirroring.alone import is_at_work
from modak.jobs.publishing.fold import publish_fold
from modak.jobs.publishing.incoming import publish_incoming
from modak.jobs.publishing.maintain import publish_maintenance
from modak.jobs.publishing.mirror import publish_copy, publish_mirror
from modak.jobs.publishing.retain import publish_retention
from modak.jobs.publishing.seam import Pinned, Sealed
from modak.jobs.publishing.tier import publish_tiering
from modak.jobs.publishing.untier import publish_untier
from modak.lake.commits import Commit, commits_after
from modak.source import capture, incoming, untier
from modak.source.locks import bounded, retried
from modak.source.sessions import lock_holders


def resume_all(context: JobContext, *, sheds: bool = False) -> tuple[str, ...]:
    """Settle every open operation of the table; returns what was done, for people.

    Partitions that the pump has sealed wait for its next pass, with no job on their table: they are left to it. ``sheds``: it asks itself.
    """
    done = []
    for operation in operations.open_operations(context.connection, context.table_id):
        if not sheds and "eligible_lsn" in operation.details and is_at_work(context.connection):
            continue
        commit = find_commit(context, operation.op_id)
        # What an operation of another server captured cannot be told from what was written here since: see modak.registration.rekey.
        is_ours = "restored" not in operation.details
        adopts = resume(operation.phase, commit is not None) is Resume.ADOPT and is_ours
        if is_ours and operation.details.get("step") == expiry.STEP:
            done.append(f"{operation.op_id}: finished, {expiry.finish(context, operation)} files of expired snapshots removed")
        elif operation.kind is OperationKind.TIERING:
            done.append(_adopt(context, operation, commit) if adopts else _given_up(context, operation, abandon))
        elif (flow := _FLOWS.get(operation.kind)) is not None:
            done.append(_adopt_flow(context, operation, commit, flow) if adopts else _given_up(context, operation, flow.abandon))
    finish_untier(context)
    return tuple(done)


def _given_up(context: JobContext, operation: Operation, how: Callable[[JobContext, Operation], None]) -> str:
    how(context, operation)
    return f"{operation.op_id}: abandoned, nothing of it was visible"


@contextlib.contextmanager
def given_up_on_failure(
    context: JobContext, operation: Operation, how: Callable[[JobContext, Operation], None], failure: type[ModakError] = ModakError
) -> Iterator[None]:
    """A step of an operation that is undone by ``how`` where it fails. A commit that may have happened is left to the next pass, which
    finds it by its stamp."""
    try:
        yield
    except CommitUnknown:
        raise
    except failure:
        how(context, operation)
        raise


def find_commit(context: JobContext, op_id: str) -> Commit | None:
    """The commit of an operation among those the catalog has not published yet."""
    table = context.lake_table()
    published = tables.published_snapshot(context.connection, context.table_id)
    return next((commit for commit in commits_after(table, published) if commit.op_id == op_id), None)


def _adopt(context: JobContext, operation: Operation, commit: Commit | None) -> str:
    """The lake has the rows and the catalog does not say so yet: publish them. No second flush, no second commit."""
    partitions = [Sealed.from_json(data) for data in operation.details["partitions"]]
    operation = _committed(context, operation, commit)
    failpoint("tier.before_adopt")
    try:
        publish_tiering(context, operation, partitions, commit)
    except (CutlineMoved, KeyShared):
        # The heap changed under the copy (a partition was detached or attached): the copy is no longer what T would stand for.
        abandon(context, operation)
        raise
    return f"{operation.op_id}: adopted, its commit was in the lake already"


def _committed(context: JobContext, operation: Operation, commit: Commit | None) -> Operation:
    """The journal may have stopped before it heard of the commit."""
    if operation.phase is not Phase.FLUSHING or commit is None:
        return operation
    return journal.note_commit(context, operation, commit)


@dataclass(frozen=True)
class _Flow:
    """How a restart finishes an operation. What its publication raises of ``forbids`` means that it is not wanted any more."""

    publish: Callable[[JobContext, Operation, Commit | None], Operation]
    abandon: Callable[[JobContext, Operation], None]
    forbids: tuple[type[Exception], ...]
    found: str = "its commit was in the lake already"


def _adopt_flow(context: JobContext, operation: Operation, commit: Commit | None, flow: _Flow) -> str:
    """Publish it, unless something forbids that now: what was true before stays so, and the commit goes before the next one."""
    operation = _committed(context, operation, commit)
    try:
        flow.publish(context, operation, commit)
    except flow.forbids as reason:
        flow.abandon(context, operation)
        return f"{operation.op_id}: abandoned, {reason}"
    return f"{operation.op_id}: adopted, {flow.found}"


def abandon_fold(context: JobContext, operation: Operation) -> None:
    """Forget it: the corrections were never cleared. A commit that was made is rolled back before the next one."""
    with context.connection.transaction():
        context.connection.execute(migrate.SQL.query("clear_fold"), {"op_id": operation.op_id})
        operations.move(context.connection, operation, Phase.ABANDONED)


def abandon_incoming(context: JobContext, operation: Operation) -> None:
    """Forget what was looked up for it; the files of staged labels stay, and a commit that was made is rolled back before the next one."""
    with context.connection.transaction():
        incoming.drop_keys(context.connection, context.table_id, operation.op_id)
        context.connection.execute(migrate.SQL.query("clear_fold"), {"op_id": operation.op_id})
        operations.move(context.connection, operation, Phase.ABANDONED)


def abandon_plain(context: JobContext, operation: Operation) -> None:
    """Nothing was prepared for it. A commit that was made is rolled back before the next one, and the work is done again."""
    operations.move(context.connection, operation, Phase.ABANDONED)


def abandon_untier(context: JobContext, operation: Operation) -> None:
    """Drop what was filled: lake and delta never stopped being the truth. A commit that was made is rolled back before the next one."""

    def step() -> None:
        with bounded(context.connection):
            untier.drop(context.connection, context.table_id, operation.op_id)
            keys = {"table_id": context.table_id, "op_id": operation.op_id}
            context.connection.execute(migrate.SQL.query("clear_untier"), keys)
            operations.move(context.connection, operation, Phase.ABANDONED)

    retried(step, f"end of an untier of {context.table.name}", attempts=context.lock_attempts)


def abandon(context: JobContext, operation: Operation) -> None:
    """Take the seals off and forget what was captured: the heap never stopped being the truth.

    Files of the flush are left to maintenance, and a commit that came too late is rolled back before the next one.
    """
    partitions = [Sealed.from_json(data) for data in operation.details["partitions"]]
    states = tables.states(context.connection, context.table_id)
    for partition in partitions:
        if states.get(partition.oid) in (PartitionState.SEALING, PartitionState.TIERING):
            _unseal(context, partition)
    keys = {"table_id": context.table_id, "partition_ids": [partition.oid for partition in partitions]}
    context.connection.execute(migrate.SQL.query("clear_captured"), keys)
    operations.move(context.connection, operation, Phase.ABANDONED)


def _unseal(context: JobContext, partition: Sealed) -> None:
    def step() -> None:
        with bounded(context.connection):
            if context.connection.execute("select 1 from pg_class where oid = %s::oid", [partition.oid]).fetchone():
                capture.detach(context.connection, partition.name)
            tables.set_state(context.connection, context.table_id, partition.oid, PartitionState.HOT)

    retried(
        step,
        f"unseal of {partition.name}",
        attempts=context.lock_attempts,
        holders=lambda: lock_holders(context.connection, [partition.name]),
    )


_INCOMING = _Flow(publish_incoming, abandon_incoming, (CutlineMoved, Pinned))
_FLOWS = {
    OperationKind.COMPACTION: _Flow(publish_fold, abandon_fold, (CutlineMoved, Pinned)),
    # Also a staged load, or a reference to an expired row.
    OperationKind.RETENTION: _Flow(publish_retention, abandon_fold, (CutlineMoved, Pinned, Refused)),
    OperationKind.LOAD: _INCOMING,
    OperationKind.INGEST: _INCOMING,
    OperationKind.MAINTENANCE: _Flow(publish_maintenance, abandon_plain, (CutlineMoved,)),
    OperationKind.COPY: _Flow(publish_copy, abandon_plain, (CutlineMoved,)),
    OperationKind.MIRROR: _Flow(publish_mirror, abandon_plain, (CutlineMoved,)),
    # Also a heap that has changed since its partitions were filled.
    OperationKind.UNTIER: _Flow(publish_untier, abandon_untier, (CutlineMoved, Pinned, Refused), "its partitions were filled already"),
}
