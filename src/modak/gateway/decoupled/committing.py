"""The end of a transaction: files, claims, the journal, one commit per table, and the way back if Postgres changes its mind."""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

import psycopg
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from modak.core.decoupled import Definition
from modak.errors import LakeError, LakeTableExists, ModakError
from modak.failpoints import failpoint
from modak.gateway.decoupled import serializable
from modak.gateway.decoupled.pending import Pending
from modak.gateway.decoupled.serializable import Conflict
from modak.gateway.decoupled.settled import COMMIT_ID, Journaled, claim_name
from modak.gateway.decoupled.transaction import LakeTransaction
from modak.lake import commits
from modak.lake.any_files import AnyWriter, any_target
from modak.lake.change import LakeMoved, PositionDeletes
from modak.lake.decoupled import properties_of, schema_of, spec_of
from modak.lake.delete_files import write_deletes_at
from modak.lake.failures import failures
from modak.lake.storage import io_properties

log = logging.getLogger("modak.gateway")
TICKET, NODE = "modak.ticket", "modak.node"
# Engines that know nothing of claims may come between; each time it is looked at again.
_ATTEMPTS = 20
# Each commit leaves a manifest, and lists all of them: as in Iceberg's own writers, a hundred small ones become one.
_MANIFESTS_MAX = 100


class Untold(ModakError):
    """Something was written to a decoupled table by a way that does not say which transaction it belongs to."""

    code = "untold_transaction"
    sqlstate = "55000"


class Unsettled(LakeError):
    """The lake did not say whether it committed, so Postgres does not. If the commit is there after all, it comes out again."""

    code = "commit_unsettled"

    @classmethod
    def by(cls, failure: BaseException) -> Unsettled:
        told = failure.message if isinstance(failure, ModakError) else type(failure).__name__
        made = cls(
            f"the lake did not say whether it committed: {told}",
            hint="the transaction is rolled back, and can be run again; should its commit arrive yet, it is taken out by itself",
        )
        made.sqlstate = failure.sqlstate if isinstance(failure, LakeError) else made.sqlstate
        return made


@dataclass
class _Files:
    """What one table's commit consists of; invisible until then."""

    pending: Pending
    added: list[DataFile] = field(default_factory=list)
    deletes: list[PositionDeletes] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not (self.added or self.deletes or self.removed)

    @property
    def only_adds(self) -> bool:
        return not (self.deletes or self.removed)


def commit(transaction: LakeTransaction) -> Journaled | None:
    """One snapshot per table. None if there was nothing to do; otherwise the journaled intention, which somebody has to settle."""
    # What was made and dropped again comes to nothing; what is dropped need not be changed first.
    made = {
        table_id: definition
        for table_id, (_, definition) in transaction.made.items()
        if not definition.is_attached and not transaction.is_dropped(table_id)
    }
    changed = [
        pending for table_id, pending in transaction.pendings.items() if pending.has_changes and not transaction.is_dropped(table_id)
    ]
    if not changed and not made and not transaction.dropped:
        return None
    if transaction.xid is None:
        raise Untold(
            "the gateway was not told which transaction this is",
            hint="write to the table by its own name, not through a parent's; or its trigger modak_begin_lake_write is missing or disabled",
        )
    commit_id = uuid.uuid4().hex
    intention = Journaled(commit_id, transaction.xid, tuple(_changes(transaction, changed, list(made.values()))))
    if not intention.changes:
        return None
    settled = transaction.world.settled
    # Before the first file, so that nothing is left behind that nobody knows of.
    settled.journal(intention)
    with _all_or_nothing(transaction, intention):
        failpoint("decoupled.after_journal")
        files = _claimed(transaction, changed, commit_id)
        settled.check_open(intention)
        serializable.check(transaction, serializable.read_tables(transaction))
        for definition in made.values():
            files += _create(transaction, definition, commit_id)
            failpoint("decoupled.after_create")
        _commit_all(transaction, files, commit_id)
    return intention


def _claimed(transaction: LakeTransaction, changed: list[Pending], commit_id: str) -> list[_Files]:
    """What goes into tables that are there already, written, and the turns to commit it."""
    files = [_written(pending, _metadata(pending), commit_id, transaction) for pending in changed if pending.base is not None]
    failpoint("decoupled.after_files")
    files = [one for one in files if not one.is_empty]
    serializable.claim(transaction, [one.pending for one in files], read=serializable.read_tables(transaction))
    return files


def _commit_all(transaction: LakeTransaction, files: list[_Files], commit_id: str) -> None:
    for one in files:
        _commit_one(transaction, one, commit_id)
        failpoint("decoupled.after_lake_commit")


@contextlib.contextmanager
def _all_or_nothing(transaction: LakeTransaction, intention: Journaled) -> Iterator[None]:
    settled = transaction.world.settled
    try:
        yield
    except BaseException as failure:
        is_over = False
        try:
            is_over = settled.take_back(intention, answered=not transaction.in_flight)
        except (ModakError, psycopg.Error) as cause:
            # The journal keeps it: Postgres is about to roll back, and whoever settles it later finds that out.
            log.warning("commit %s cannot be taken back yet: %s", intention.commit_id, cause)
        finally:
            settled.running.discard(intention.commit_id)
        if transaction.in_flight and not is_over:
            raise Unsettled.by(failure) from failure
        raise


def _changes(transaction: LakeTransaction, changed: list[Pending], made: list[Definition]) -> Iterator[dict[str, object]]:
    for definition in made:
        yield {"kind": "create", **_place(definition)}
    for pending in changed:
        if pending.base is not None:
            identity, parcels = str(pending.base.metadata.table_uuid), pending.parcel_ids
            yield {"kind": "change", **_place(pending.definition), "uuid": identity, "parcels": parcels}
    for drop in transaction.dropped:
        table = transaction.world.lake(drop.profile).find_table(drop.ref)
        if table is not None:
            identity = str(table.metadata.table_uuid)
            yield {"kind": "drop", "profile": drop.profile, "ref": drop.ref, "purge": drop.purge, "uuid": identity}


def _place(definition: Definition) -> dict[str, str]:
    return {"profile": definition.profile, "ref": definition.ref}


def _metadata(pending: Pending) -> TableMetadata:
    assert pending.base is not None
    return pending.base.metadata


def _written(pending: Pending, metadata: TableMetadata, prefix: str, transaction: LakeTransaction) -> _Files:
    storage = transaction.world.lake(pending.definition.profile).storage
    found = _Files(pending)
    with failures(pending.definition.ref, storage):
        ready = pending.ready_files(metadata)
        target = any_target(metadata, io_properties(storage), pending.definition.field_ids)
        writer = AnyWriter(target, prefix)
        with pending.cursor() as cursor:
            for rows in pending.added_rows(cursor):
                writer.write(rows)
        found.added = ready + writer.close()
        found.deletes = [write_deletes_at(metadata.location, target.io_properties, prefix, doomed) for doomed in pending.doomed()]
    if pending.emptied and pending.base is not None:
        found.removed = [file.location for file in pending.base.snapshot.files]
    return found


def _create(transaction: LakeTransaction, definition: Definition, commit_id: str) -> list[_Files]:
    lake = transaction.world.lake(definition.profile)
    schema = schema_of(definition)
    properties = properties_of(definition, {COMMIT_ID: commit_id})
    transaction.in_flight = True
    try:
        table = lake.make(definition.ref, schema, spec_of(definition, schema), properties)
    except LakeTableExists:
        transaction.in_flight = False
        raise
    transaction.in_flight = False
    pending = transaction.pendings.get(definition.table_id)
    if pending is None or not pending.has_changes:
        return []
    written = _written(pending, table.metadata, commit_id, transaction)
    return [] if written.is_empty else [written]


def _commit_one(transaction: LakeTransaction, files: _Files, commit_id: str) -> None:
    definition = files.pending.definition
    lake = transaction.world.lake(definition.profile)
    base = files.pending.base
    claim = transaction.claims.get(claim_name(base.metadata.table_uuid)) if base is not None else None
    if base is not None and claim is None:
        # The turn was for another table, which had this name when it was taken.
        raise Conflict(f"{definition.name} was replaced in its catalog meanwhile", hint="run the transaction again", ref=definition.ref)
    table = transaction.world.unmoved(definition, base)
    for _ in range(_ATTEMPTS):
        table = table or lake.load(definition.ref)
        _check_conflicts(transaction, files, table)
        stamps = {COMMIT_ID: commit_id}
        if claim is not None:
            # Whoever was taken for dead meanwhile must not go on; the catalog's comparison is the last fence behind this one.
            claim.check()
            stamps |= {TICKET: str(claim.ticket), NODE: claim.node}
        transaction.in_flight = True
        try:
            made = commits.change(table, stamps, added=files.added, deletes=files.deletes, removed=files.removed, merges_at=_MANIFESTS_MAX)
        except LakeMoved:
            transaction.in_flight, table = False, None
            continue
        except LakeError as failure:
            transaction.in_flight = failure.may_arrive
            raise
        transaction.in_flight = False
        transaction.world.note_commit(definition, made.snapshot_id)
        return
    raise LakeError(
        f"others commit to {definition.ref} faster than this transaction can",
        hint="run it again; let them write through Modak, which makes them take turns",
    )


def _check_conflicts(transaction: LakeTransaction, files: _Files, table: Table) -> None:
    """Whoever only adds rows gets on with everybody. Rows that go must be as they were when they were chosen."""
    base = files.pending.base
    current = table.current_snapshot()
    if base is not None and transaction.is_serializable and files.pending.is_read and not serializable.has_stayed(table, base):
        raise Conflict.on(files.pending)
    if base is None or files.only_adds or (current.snapshot_id if current else None) == base.snapshot_id:
        return
    lake = transaction.world.lake(files.pending.definition.profile)
    number = current.sequence_number if current is not None else None
    now = transaction.world.tables.snapshot(table.metadata_location, number, io_properties(lake.storage))
    present = {file.location: file.deletes for file in now.files}
    before = {file.location: file.deletes for file in base.snapshot.files}
    touched = {one.location for one in files.pending.doomed()} or set(before)
    if files.removed and set(present) != set(before):
        touched = set(before) | set(present)
    if any(present.get(location) != before.get(location) for location in touched):
        raise Conflict.on(files.pending)
