"""Once a pass: whether slot and publication still tell of every change of a table, and have done so since the copy.

Whatever was left out is nowhere: the table is parked, and a new copy puts the publication right first.
"""

from __future__ import annotations

from modak.catalog import mirrors
from modak.catalog.mirrors import Mirror
from modak.catalog.tables import Registered
from modak.connection import Connection
from modak.core.registration import generated_problems
from modak.errors import LockNotAvailable, Problem, Refused
from modak.jobs.mirroring import labels
from modak.jobs.mirroring.follower import cannot_follow
from modak.source import published as publications
from modak.source import replication
from modak.source.pgoutput import RelationMessage
from modak.source.relation import generated_columns


def check_slot(connection: Connection, table: Registered, slot: replication.Slot | None, state: Mirror) -> None:
    """A slot that is gone, lost or further than the table: its changes are nowhere any more."""
    if slot is None:
        why = mirrors.promotion(connection, table.table_id) or "somebody dropped it"
        raise cannot_follow(table, f"replication slot {table.slot_name} is gone: {why}", code="slot")
    if slot.is_lost:
        raise cannot_follow(table, f"replication slot {slot.name} lost its WAL (max_slot_wal_keep_size)", code="slot")
    if slot.confirmed > state.applied_lsn:
        raise cannot_follow(table, f"replication slot {slot.name} was moved past the table's place in the stream", code="slot")
    if slot.active:
        raise LockNotAvailable(f"replication slot {slot.name} is being read by another session", hint="it ends with that session")


def published(connection: Connection, table: Registered) -> str:
    """The mark that the publication has now. Raises Refused where a copy would not be followed."""
    found = publications.read(connection, table.publication_name or "", table.table_id, table.primary_key_cols)
    problems = found.problems(table.primary_key_cols) + generated_problems(generated_columns(connection, table.table_id))
    if problems:
        raise Refused(f"{table.name} cannot be followed from a copy on", problems, hint="put that right and run the command again")
    return found.mark


def check(connection: Connection, table: Registered, state: Mirror) -> None:
    found = publications.read(connection, table.publication_name or "", table.table_id, table.primary_key_cols)
    problems = found.problems(table.primary_key_cols)
    problems += generated_problems(generated_columns(connection, table.table_id))
    if problems:
        raise cannot_follow(table, problems)
    if state.published is None:  # copied by an older Modak
        mirrors.save_published(connection, table.table_id, found.mark)
    elif state.published != found.mark:
        what = f"publication {found.publication}, or the table's entry in it, was altered, and changes may be missing in the stream"
        raise cannot_follow(table, [Problem("publication", what)])


def check_labels(connection: Connection, table: Registered, state: Mirror) -> Mirror:
    """The mirror as it is, with labels of enums that came since."""
    now = labels.read(connection, table.table_id)
    changed = labels.renamed(state.shapes, now)
    if changed is not None:
        what = f"label {changed[0]!r} of an enum was renamed to {changed[1]!r}, in every row and without a word in the stream"
        raise cannot_follow(table, what, code="label")
    return labels.remember(connection, table, state, now)


def names_key(table: Registered, message: RelationMessage) -> bool:
    """As it was when the rows that follow were written: a change of a key that is not in the identity would not name the old one."""
    named = {column.name for column in message.columns if column.is_key}
    # Without any identity Postgres refuses updates and deletes, and a key column of another name is seen with the shape.
    if not named or not {column.name for column in message.columns}.issuperset(table.primary_key_cols):
        return True
    return named.issuperset(table.primary_key_cols)


def check_identity(table: Registered, message: RelationMessage, partition: str = "") -> None:
    if not names_key(table, message):
        named = ", ".join(column.name for column in message.columns if column.is_key)
        whose = f" of {partition}" if partition else ""
        what = f"the replica identity{whose} was ({named}), which does not name the key ({', '.join(table.primary_key_cols)})"
        raise cannot_follow(table, what, code="identity")
