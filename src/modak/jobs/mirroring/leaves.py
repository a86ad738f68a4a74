"""Partitions: what happens to one as a whole is not in the stream, so the catalog is asked about it.

A partition that is detached, dropped or truncated by itself takes rows away without a word, and one that is attached may bring some.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import sql

from modak.catalog.tables import Registered
from modak.connection import Connection
from modak.core.bounds import DEFAULT
from modak.core.table import Name
from modak.errors import ModakError, Retry
from modak.source.relation import SQL
from modak.source.spill import identifier

Leaf = Mapping[str, Any]
Leaves = list[dict[str, Any]]
# A rewritten table is compared with the lake row by row, while the other tables wait: up to here.
COMPARED_BYTES_MAX = 1024**3


def read(connection: Connection, table_id: int) -> Leaves:
    rows = connection.execute(SQL.query("list_leaves"), {"oid": table_id}).fetchall()
    return [dict(row) for row in rows]


def leaf_name(leaf: Leaf) -> Name:
    return Name(leaf["schema_name"], leaf["table_name"])


class BeingDetached(ModakError):
    """A partition of a mirrored table is on its way out (DETACH … CONCURRENTLY), and rows may still come by it. The mirror waits."""

    code = "being_detached"
    retry = Retry.LATER


@dataclass(frozen=True)
class Difference:
    """What happened to partitions, in words. ``is_told``: a TRUNCATE of the whole table, which the stream has, would explain it.

    ``newcomers`` hold rows, and were not partitions from the start: whether the stream has those rows is to be seen.
    ``refiled`` are new as well, and were truncated or rewritten: a loss, if the stream had brought them rows before.
    ``departed`` are gone, and the range of rows that they took along is known.
    ``rewritten``: the table itself, if it has another file, and columns (``altered``, by number) that may have other values in it.
    """

    what: str | None = None
    is_told: bool = False
    newcomers: tuple[Leaf, ...] = ()
    refiled: tuple[Leaf, ...] = ()
    departed: tuple[Leaf, ...] = ()
    rewritten: Leaf | None = None
    altered: tuple[int, ...] = ()


def difference(connection: Connection, table: Registered, known: Sequence[Leaf], now: Leaves) -> Difference | None:
    """What the stream may not have told; None if nothing happened."""
    there = {leaf["oid"]: leaf for leaf in now}
    before = {leaf["oid"]: leaf for leaf in known}
    if list(there) == [table.table_id]:
        return _converted(connection, before.get(table.table_id), there[table.table_id])
    rewritten: str | None = None
    gone = [leaf for oid, leaf in before.items() if oid not in there]
    lost = _lost(connection, table, gone)
    if lost is not None:
        return Difference(lost)
    for oid, leaf in before.items():
        if oid not in there:
            continue
        if not is_same_place(leaf, there[oid]):
            return Difference(f"partition {leaf_name(leaf)} was detached and attached again")
        if there[oid]["filenode"] != leaf["filenode"]:
            rewritten = f"partition {leaf_name(leaf)} was truncated or rewritten by itself"
    new = [leaf for leaf in now if leaf["oid"] not in before or before[leaf["oid"]].get("came")]
    newcomers = tuple(leaf for leaf in new if may_bring_rows(connection, known, leaf))
    refiled = tuple(leaf for leaf in new if not _has_first_file(leaf))
    if rewritten is None and not newcomers and not refiled and not gone:
        return None
    return Difference(rewritten, is_told=True, newcomers=newcomers, refiled=refiled, departed=tuple(gone))


def _lost(connection: Connection, table: Registered, gone: Sequence[Leaf]) -> str | None:
    """A partition that is gone, and nobody can tell which rows went with it; None if there is no such one."""
    for leaf in gone:
        known = leaf.get("range")
        if known is None or known["bound"] == DEFAULT or table.has_seam:
            return f"partition {leaf_name(leaf)} was detached or dropped"
        link = connection.execute(SQL.query("find_link"), {"oid": known["top"], "parent": table.table_id}).fetchone()
        if link is not None and link["is_pending"]:
            raise BeingDetached(
                f"partition {leaf_name(leaf)} of {table.name} is being detached",
                hint=f"if nobody works on it: alter table {table.name} detach partition {leaf_name(leaf)} finalize",
            )
        if link is not None:
            return f"partition {leaf_name(leaf)} was detached or dropped below the partition that it was a part of"
    return None


def is_same_place(before: Leaf, now: Leaf) -> bool:
    """Whether a partition has been a part of its table all the time: none of the links up to it is a new one."""
    if "path" not in before:  # written down by an older Modak
        return bool(before["attached"] == now["attached"])
    return _links(before) == _links(now)


def _links(leaf: Leaf) -> list[tuple[int, int, str]]:
    return [(link["oid"], link["parent"], link["attached"]) for link in leaf.get("path", ())]


def may_bring_rows(connection: Connection, known: Sequence[Leaf], leaf: Leaf) -> bool:
    """Whether a new partition holds rows that may be older than its place in the table.

    Transaction numbers do not tell: one that is higher may have written before the partition was attached. But a partition that was
    created as one never was anything else, below a parent of which the same is true, or that was in the table when it was looked at last.
    """
    links = {link for other in known for link in _links(other)}
    own, upper = leaf["path"][:1], leaf["path"][1:]
    # Rows of an unlogged table are not in the stream, and SET LOGGED gives it another file.
    is_born = any(link["born"] for link in own) and _has_first_file(leaf)
    if is_born and all(link["born"] or (link["oid"], link["parent"], link["attached"]) in links for link in upper):
        return False
    row = connection.execute(sql.SQL("select exists (select from only {}) as found").format(identifier(leaf_name(leaf)))).fetchone()
    return bool(row and row["found"])


def _has_first_file(leaf: Leaf) -> bool:
    """Whether it was neither truncated nor rewritten since it was created: a file's first number is the table's own."""
    return bool(leaf["filenode"] == leaf["oid"])


def places(leaves: Sequence[Leaf]) -> set[tuple[Any, ...]]:
    """Where rows stand, to be compared between two looks: partitions, their files, and how each one is a part of the table."""
    return {(leaf["oid"], leaf["filenode"], *_links(leaf)) for leaf in leaves}


def explained(looked: Leaves, before: Sequence[Leaf], known: Sequence[Leaf], now: Leaves) -> Leaves:
    """The partitions of a look, with the files that a TRUNCATE gave them since. What came since is for the next look.

    ``before`` is what the look was compared with, and ``known`` the same by now: a partition that we dropped meanwhile stays forgotten.
    """
    forgotten = {leaf["oid"] for leaf in before} - {leaf["oid"] for leaf in known}
    files = {leaf["oid"]: leaf["filenode"] for leaf in now if leaf["path"]}
    return [{**leaf, "filenode": files.get(leaf["oid"], leaf["filenode"])} for leaf in looked if leaf["oid"] not in forgotten]


def _converted(connection: Connection, before: Leaf | None, now: Leaf) -> Difference | None:
    """Not partitioned: everything that happens to its rows is in the stream, but for what an ALTER TABLE writes into them. That makes a new
    file, as VACUUM FULL does, and touches the columns in the catalog, which VACUUM FULL does not. What it wrote, the rows have to tell."""
    if before is None or before["filenode"] == now["filenode"]:
        return None
    known = before.get("columns") or {}  # none: written down by an older Modak
    altered = tuple(int(number) for number, mark in now["columns"].items() if known.get(number) != mark)
    if not altered:
        return None
    row = connection.execute("select pg_relation_size(%s::oid) as bytes", [now["oid"]]).fetchone()
    if row is not None and (row["bytes"] or 0) > COMPARED_BYTES_MAX:
        return Difference("it was rewritten by an ALTER TABLE that may have changed values, and is too large to be compared with the lake")
    return Difference(rewritten=now, altered=altered)
