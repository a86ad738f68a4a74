"""``modak plan``: what registering a table would do, in figures, without doing it."""

from __future__ import annotations

from dataclasses import dataclass

from modak.catalog import migrate
from modak.connection import Connection
from modak.core import bounds, lake_table, policy
from modak.core.cutline import Cutline
from modak.core.lag import Lag
from modak.core.partition import Partition
from modak.core.registration import Options
from modak.core.table import Name
from modak.errors import Problem
from modak.registration.register import Plan, look, registered_problem
from modak.source import statements
from modak.source.partitions import newest_key, partitions_of
from modak.source.statements import HeapStatement


@dataclass(frozen=True)
class Report:
    """A plan with what it would move now, and the statements that speak for the heap surface."""

    plan: Plan
    partitions: tuple[Partition, ...]
    newest_key: int | None
    due: tuple[Partition, ...]
    heap_statements: tuple[HeapStatement, ...] | None
    problems: tuple[Problem, ...]

    @property
    def bytes(self) -> int:
        return sum(partition.bytes or 0 for partition in self.partitions)

    @property
    def bytes_due(self) -> int:
        return sum(partition.bytes or 0 for partition in self.due)

    @property
    def surface_advice(self) -> str:
        if self.heap_statements is None:
            return "view (pg_stat_statements is not there to tell whether the application needs the heap)"
        return "heap" if self.heap_statements else "view"


def surface_problem(found: list[HeapStatement] | None, name: Name) -> Problem | None:
    """A default would break the application silently: with such statements around, the user must choose."""
    if not found:
        return None
    kinds = ", ".join(sorted({statement.kind for statement in found}))
    return Problem(
        "surface",
        f"the application uses {kinds} on {name}, which a view does not serve",
        "say --surface heap to keep them, or --surface view if they can go to the heap's own name",
    )


def report(connection: Connection, name: Name, options: Options, *, surface_given: bool) -> Report:
    plan = look(connection, name, options)
    found = statements.that_need_the_heap(connection, name)
    # A plan works without a catalog; with one, the table may be registered already.
    known = registered_problem(connection, name) if migrate.installed_version(connection) else None
    problems = [*([known] if known else []), *plan.decision.problems]
    choice = None if surface_given else surface_problem(found, name)
    problems += [choice] if choice else []
    key_type = plan.decision.key_type
    partitions: list[Partition] = []
    newest, due = None, list[Partition]()
    # Bounds can be read only where the partitioning itself is sound.
    if key_type is not None and not any(problem.code in ("partitioning", "bound", "kind") for problem in problems):
        partitions = partitions_of(plan.relation, key_type)
        newest = newest_key(connection, plan.relation, options.tier_key, key_type)
        lag = plan.decision.lags.get("lag")
        if lag is not None:
            line = Cutline(bounds.lowest(plan.relation, key_type))
            due = policy.partitions_due(partitions, line, newest, Lag.parse(lag, key_type), key_type)
    return Report(plan, tuple(partitions), newest, tuple(due), None if found is None else tuple(found), tuple(problems))


def as_dict(found: Report) -> dict[str, object]:
    plan = found.plan
    key_type = plan.decision.key_type
    text = key_type.encode_bound if key_type else str
    return {
        "table": str(plan.relation.name),
        "would_register": not found.problems,
        "problems": [problem.as_dict() for problem in found.problems],
        "notes": list(plan.decision.notes),
        "mode": plan.options.mode,
        "surface": plan.options.surface,
        "surface_advice": found.surface_advice,
        "check_cold_keys": plan.options.check_cold_keys,
        "heap_statements": None if found.heap_statements is None else [vars(statement) for statement in found.heap_statements],
        "heap": str(plan.heap),
        "view": str(plan.view),
        "primary_key": list(plan.decision.primary_key),
        "tier_key": plan.options.tier_key,
        "tier_key_type": key_type.value if key_type else None,
        "lake_table": plan.lake_ref,
        "layout": plan.decision.layout,
        "columns": [
            {"name": column.name, "lake_type": column.type.iceberg, "as_text": column.type.as_text}
            for column in lake_table.lake_columns(plan.relation.columns, (), plan.options.text_columns)[0]
        ],
        "partitions": [
            {"name": part.name, "from": text(part.lower), "to": text(part.upper), "rows_estimated": part.rows, "bytes": part.bytes}
            for part in found.partitions
        ],
        "rows_estimated": plan.relation.estimated_rows,
        "bytes": found.bytes,
        "newest_key": None if found.newest_key is None else text(found.newest_key),
        "due_partitions": [part.name for part in found.due],
        "due_bytes": found.bytes_due,
    }
