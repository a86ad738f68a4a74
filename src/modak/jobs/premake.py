"""Premake: partitions ahead of the newest row, so that new rows find a place.

ATTACH, not PARTITION OF: it leaves readers and writers of the table alone, and its lock is waited for in bounded steps.
"""

from __future__ import annotations

import re

from psycopg import sql

from modak.core import bounds
from modak.core.partition import Partition, PartitionState
from modak.core.premake import ahead
from modak.core.registration import derived_name
from modak.core.table import Name, Relation
from modak.core.tier_key import TierKeyType
from modak.jobs.context import JobContext
from modak.source.locks import bounded, retried
from modak.source.partitions import newest_key
from modak.source.sessions import lock_holders
from modak.source.spill import identifier


def premake(context: JobContext, relation: Relation) -> tuple[str, ...]:
    """Create what the table's ``premake`` asks for; returns the names."""
    table = context.table
    if not table.premake:
        return ()
    newest = newest_key(context.connection, relation, table.tier_key_col, table.key_type)
    made = []
    for parent in bounds.range_parents(relation):
        name = next((leaf.name for leaf in relation.partitions if leaf.oid == parent), table.heap)
        standing = _standing(context, relation, parent)
        for lower, upper in ahead(standing, table.premake, newest, table.key_type):
            made.append(str(_create(context, relation, name, lower, upper)))
    return tuple(made)


def _standing(context: JobContext, relation: Relation, parent: int) -> list[Partition]:
    found = []
    for leaf in bounds.range_leaves(relation):
        if leaf.parent_oid == parent:
            lower, upper = bounds.parse_range(leaf.bound, context.table.key_type)
            found.append(Partition(leaf.name.schema, leaf.name.name, lower, upper, PartitionState.HOT))
    return found


def _create(context: JobContext, relation: Relation, parent: Name, lower: int, upper: int) -> Name:
    key_type = context.table.key_type
    base = parent.name if parent != context.table.heap else context.table.table_name
    suffix = "_" + re.sub(r"[^0-9a-z]+", "", key_type.encode(lower).lower().replace("-", "" if key_type.is_time else "m")).removesuffix(
        "00"
    )
    name = Name(parent.schema, derived_name(base, suffix))

    def step() -> None:
        with bounded(context.connection):
            execute = context.connection.execute
            execute(
                sql.SQL("create table {} (like {} including defaults including constraints)").format(identifier(name), identifier(parent))
            )
            execute(sql.SQL("alter table {} owner to {}").format(identifier(name), sql.Identifier(relation.owner)))
            execute(
                sql.SQL("alter table {} attach partition {} for values from ({}) to ({})").format(
                    identifier(parent), identifier(name), sql.Literal(key_type.encode(lower)), sql.Literal(key_type.encode(upper))
                )
            )

    retried(step, f"premake of {name}", attempts=context.lock_attempts, holders=lambda: lock_holders(context.connection, [parent]))
    return name


def _suffix(key_type: TierKeyType, lower: int) -> str:
    """_20251101 or _20251101t060000 for times, the key itself for integers."""
    text = key_type.encode(lower).lower()
    if not key_type.is_time:
        return "_" + text.replace("-", "minus_")
    day, _, clock = text.removesuffix("+00").partition(" ")
    short = "".join(re.findall(r"[0-9a-z]+", day))
    return f"_{short}" if clock in ("", "00:00:00") else f"_{short}t{''.join(re.findall(r'[0-9a-z]+', clock))}"
