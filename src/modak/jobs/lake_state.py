"""How a lake table stands to what the catalog published of it: the look of ``modak reconcile``, and the steps that mend it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io import load_file_io
from pyiceberg.table import Table

from modak.catalog import migrate, operations
from modak.core.recovery import Finding, LakeCommit, LakeState, judge
from modak.errors import LakeError
from modak.jobs.context import JobContext
from modak.lake.commits import Commit, commits_after, roll_back
from modak.lake.failures import failures
from modak.lake.listing import files_below
from modak.lake.storage import io_properties
from modak.scan.paths import readable

_SHOWN = 3


@dataclass(frozen=True)
class Published:
    """What the cut-line says of the lake."""

    sequence_number: int | None
    snapshot_id: int | None
    metadata_location: str | None

    @classmethod
    def read(cls, context: JobContext) -> Published:
        row = context.connection.execute(migrate.SQL.query("read_cutline"), {"table_id": context.table_id}).fetchone()
        props: Mapping[str, Any] = row["lake_props"] if row else {}
        found = props.get("snapshot_id")
        return cls(row["lake_snapshot_id"] if row else None, int(found) if found is not None else None, props.get("metadata_location"))


def look(context: JobContext) -> list[Finding]:
    """What is wrong with the lake table; the first finding of a lake that cannot be read is the last."""
    published, name = Published.read(context), str(context.table.name)
    try:
        table = context.lake_table()
    except LakeError as cause:
        return [_unreadable(context, published, cause)]
    verdict = judge(state_of(context, table, published))
    found = [_finding(verdict, context, table, published)] if verdict else []
    if verdict in ("lost", "behind"):
        return found
    missing = missing_files(context, table, published)
    if missing:
        what = f"{len(missing)} files of S={published.sequence_number} are gone, {', '.join(missing[:_SHOWN])} among them"
        found.append(Finding("missing_files", f"{what}; bring them back from the warehouse's own backup", None, name))
    return found


def state_of(context: JobContext, table: Table, published: Published) -> LakeState:
    has_snapshot = published.snapshot_id is not None and table.snapshot_by_id(published.snapshot_id) is not None
    later: list[LakeCommit] | None = None
    if has_snapshot or published.snapshot_id is None:
        try:
            later = [_seen(context, commit) for commit in commits_after(table, published.snapshot_id)]
        except LakeError:
            later = None
    return LakeState(published.snapshot_id is not None, has_snapshot, _exists(context, published.metadata_location), later)


def _seen(context: JobContext, commit: Commit) -> LakeCommit:
    if commit.op_id is None:
        return LakeCommit(is_ours=False, is_known=False)
    return LakeCommit(is_ours=True, is_known=operations.find(context.connection, commit.op_id) is not None)


def mend(context: JobContext) -> str | None:
    """Bring the lake to S where that loses nothing; returns what was done."""
    published, table = Published.read(context), context.lake_table()
    verdict = judge(state_of(context, table, published))
    if verdict in ("ahead", "rolled_back"):
        roll_back(table, published.snapshot_id)
        return f"the lake's current snapshot is S={published.sequence_number or 'none'} again; no file was removed"
    if verdict == "behind" and context.lake.storage.catalog == "jdbc":
        namespace, _, name = context.table.lake_table_ref.partition(".")
        keys = {"catalog": context.lake.storage.catalog_name, "namespace": namespace, "name": name}
        context.connection.execute(migrate.SQL.query("point_iceberg_table"), {**keys, "metadata_location": published.metadata_location})
        return f"the lake's catalog names the metadata of S={published.sequence_number} again"
    if verdict == "pointer":
        context.connection.execute(
            migrate.SQL.query("republish_pointer"), {"table_id": context.table_id, "metadata_location": table.metadata_location}
        )
        return f"S={published.sequence_number} is published with the metadata file that is there"
    return None


def missing_files(context: JobContext, table: Table, published: Published) -> list[str]:
    """Data and delete files of S that are not in the lake's folder any more."""
    if published.sequence_number is None:
        return []
    snapshot = context.cold(table, published.sequence_number)
    there = {readable(file.location) for file in files_below(table.location(), io_properties(context.lake.storage))}
    wanted = {readable(file.location) for file in snapshot.files}
    wanted |= {readable(deletes.location) for file in snapshot.files for deletes in file.deletes}
    folder = readable(table.location()).rstrip("/") + "/"
    return sorted(path.removeprefix(folder) for path in wanted - there if path.startswith(folder))


def _exists(context: JobContext, location: str | None) -> bool:
    if location is None:
        return False
    with failures(location, context.lake.storage):
        return bool(load_file_io(io_properties(context.lake.storage), location).new_input(location).exists())


def _finding(verdict: str, context: JobContext, table: Table, published: Published) -> Finding:
    code, what, action = _VERDICTS[verdict]
    if verdict == "behind" and context.lake.storage.catalog != "jdbc":
        what, action = f"{what}; register {published.metadata_location} in the REST catalog", None
    facts = {
        "s": published.sequence_number or "none",
        "newest": ", ".join(str(one.sequence_number) for one in table.metadata.snapshots[-_SHOWN:]) or "none",
        "ref": context.table.lake_table_ref,
    }
    return Finding(code, what.format(**facts), action.format(**facts) if action else None, str(context.table.name))


# Each verdict of modak.core.recovery.judge: the code, what it means, and what is done about it.
_VERDICTS: dict[str, tuple[str, str, str | None]] = {
    "ahead": (
        "lake_ahead",
        "the lake has snapshots that this catalog knows nothing of: they were made after the point it was restored to",
        "make S={s} the current snapshot again; their rows are in the restored tables",
    ),
    "rolled_back": (
        "lake_rolled_back",
        "the lake's current snapshot does not descend from S={s}, which it still has",
        "make S={s} the current snapshot again",
    ),
    "pointer": (
        "pointer",
        "the metadata file that S={s} was published with is gone; the lake's current one has this snapshot",
        "publish S with the file that is there",
    ),
    "behind": (
        "catalog_ahead",
        "the lake's catalog names metadata older than S={s}, whose own metadata file is there",
        "let the lake's catalog name the metadata of S={s}",
    ),
    "lost": (
        "catalog_ahead",
        "the lake does not have S={s}, which the catalog published; the newest it has: {newest}. "
        "Restore the warehouse to the same point, or later",
        None,
    ),
    "foreign": (
        "foreign",
        "somebody else committed to lake table {ref} after S={s}; `modak tier --foreign accept` keeps that, `rollback` undoes it",
        None,
    ),
}


def _unreadable(context: JobContext, published: Published, cause: LakeError) -> Finding:
    """The metadata that the lake's catalog names cannot be read: say what there is instead."""
    if isinstance(cause.__cause__, NoSuchTableError):
        what = f"lake table {context.table.lake_table_ref} does not exist in the lake's catalog"
    else:
        what = f"lake table {context.table.lake_table_ref} cannot be read: {cause.message}"
    known = _snapshots_in_folder(context, published)
    wanted = "" if published.sequence_number is None else f"; S={published.sequence_number} is published"
    there = f"; metadata in its folder: {known}" if known else ""
    return Finding(
        "lake_unreadable", f"{what}{wanted}{there}. Restore the warehouse to the same point, or later", None, str(context.table.name)
    )


def _snapshots_in_folder(context: JobContext, published: Published) -> str:
    """Which S the metadata files that are left have."""
    if published.metadata_location is None:
        return ""
    folder, properties = published.metadata_location.rsplit("/", 1)[0], io_properties(context.lake.storage)
    found = set()
    try:
        for file in files_below(folder, properties):
            if file.location.endswith(".metadata.json"):
                with load_file_io(properties, file.location).new_input(file.location).open() as stream:
                    found |= {one["sequence-number"] for one in json.loads(stream.read()).get("snapshots") or ()}
    except (OSError, ValueError, KeyError):  # this only adds to a message about a lake that is in pieces
        return ""
    return "S=" + ", ".join(str(number) for number in sorted(found)) if found else ""
