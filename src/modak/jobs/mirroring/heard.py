"""Partitions that the stream spoke of. It describes each one behind its table, before the first change of its rows, so that it tells of
partitions which nobody saw in the catalog: those that came and went between two looks took rows with them that the lake has.
"""

from __future__ import annotations

from modak.catalog import mirrors
from modak.connection import Connection
from modak.jobs.mirroring import leaves
from modak.jobs.mirroring.follower import Follower, cannot_follow
from modak.jobs.mirroring.watch import check_identity
from modak.source.pgoutput import RelationMessage


def hear(follower: Follower, message: RelationMessage) -> None:
    """In a transaction that the table does not have yet. Changes of keys are named by the identity of the partition, not of the table."""
    follower.heard[message.oid] = f"{message.schema}.{message.name}"
    check_identity(follower.table, message, partition=follower.heard[message.oid])


def check(connection: Connection, follower: Follower) -> None:
    """At the end of a pass. Partitions that came since the look are written down: the next one must find them, and look into them."""
    table = follower.table
    for leaf in follower.refiled:
        if leaf["oid"] in follower.heard and not follower.has_truncated:
            what = f"partition {leaves.leaf_name(leaf)} was filled, and truncated or rewritten by itself"
            raise cannot_follow(table, what, code="partition")
    strangers = follower.strangers
    there = {leaf["oid"]: leaf for leaf in leaves.read(connection, table.table_id)} if strangers else {}
    shed = mirrors.shed_leaves(connection, table.table_id, strangers) if table.has_seam else set()
    for oid, name in strangers.items():
        if oid in shed:
            continue
        if oid not in there:
            raise cannot_follow(table, f"partition {name} came, was filled, and was detached or dropped", code="partition")
        follower.came.append({**there[oid], "came": True})
    follower.heard.clear()
    follower.refiled = ()
