"""Register a table: look, create the empty lake table, then change Postgres in one short transaction.

The lake table comes first, so that the table's lock is held for catalog changes only. A failure takes the lake table away again; after a
crash in between, the empty and stamped lake table is recognised and replaced by the next attempt.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import psycopg
from psycopg import sql

from modak.catalog import migrate, mirrors, tables
from modak.catalog.tables import Registered
from modak.connection import Connection
from modak.core import bounds, lake_table
from modak.core.lake_table import LakeTable, Shape
from modak.core.registration import Decision, Options, decide, follows_name, heap_name, proven_unique, view_name
from modak.core.table import Name, Relation
from modak.core.tier_key import KEY_MIN, TierKeyType
from modak.errors import LakeError, LockNotAvailable, Problem, Refused
from modak.failpoints import failpoint
from modak.lake.port import Lake, LakePointer
from modak.progress import SILENT, Progress
from modak.registration import mirroring, rebuild, surface
from modak.source import newcomers, spill
from modak.source.expressions import encoded_key
from modak.source.relation import describe
from modak.source.spill import identifier
from modak.sqlfiles import trusted

LOCK_TIMEOUT_MS = 2000
CATALOG_STAMP = "modak.catalog-id"
TABLE_STAMP = "modak.table"


@dataclass(frozen=True)
class Plan:
    """A table, what was asked for, and what was decided."""

    relation: Relation
    options: Options
    decision: Decision

    @property
    def key_type(self) -> TierKeyType:
        if self.decision.key_type is None:
            raise Refused(f"{self.relation.name} cannot be registered", self.decision.problems)
        return self.decision.key_type

    @property
    def heap(self) -> Name:
        return Name(self.relation.name.schema, heap_name(self.relation, self.options.surface))

    @property
    def view(self) -> Name:
        return Name(self.relation.name.schema, view_name(self.relation, self.options.surface))

    @property
    def lowest(self) -> int:
        """Where T stands before anything left the heap."""
        return bounds.lowest(self.relation, self.key_type) if self.options.has_seam else KEY_MIN

    @property
    def lake_ref(self) -> str:
        return self.options.lake_table or lake_table.default_ref(self.relation.name)


def look(connection: Connection, name: Name, options: Options) -> Plan:
    """Describe the table and decide; changes nothing."""
    relation = describe(connection, name)
    return Plan(relation, options, decide(relation, options))


def refuse_if_wrong(plan: Plan) -> None:
    if plan.decision.problems:
        raise Refused(f"{plan.relation.name} cannot be registered", plan.decision.problems, hint="nothing was changed")


def register(connection: Connection, lake: Lake, name: Name, options: Options, *, profile: str, progress: Progress = SILENT) -> Registered:
    """Register a table that is not registered yet. The connection must be in autocommit."""
    with _one_at_a_time(connection, name):
        known = registered_problem(connection, name)
        if known is not None:
            raise Refused(f"{name} cannot be registered", [known], hint="nothing was changed")
        plan = look(connection, name, options)
        refuse_if_wrong(plan)
        if options.mode == "mirrored":
            mirroring.refuse_if_impossible(connection, plan.relation, plan.decision.primary_key)
        with progress.task("Checking keys"):
            _check_keys(connection, plan)
        with progress.task(f"Creating lake table {plan.lake_ref}"):
            pointer = _create_lake_table(connection, lake, plan)
        try:
            failpoint("register.after_lake")
            with progress.task(f"Registering {name}"):
                return _change_postgres(connection, plan, pointer, profile)
        except BaseException:
            _take_back(connection, lake, plan.lake_ref)
            raise


def registered_problem(connection: Connection, name: Name) -> Problem | None:
    """A table that is registered, or its heap or view under their own names."""
    owner = tables.owner_of(connection, name)
    if owner is None:
        return None
    what = "is registered already" if owner == name else f"is a part of the registered table {owner}"
    return Problem("registered", f"{name} {what}", f"`modak status {owner}` shows it, `modak policy {owner}` changes its settings")


def _take_back(connection: Connection, lake: Lake, ref: str) -> None:
    """Remove the lake table of a registration that did not happen, whatever stopped it, an interrupt included.

    A connection lost at COMMIT leaves open whether it happened. Then the lake table stays: either a registration owns it now, or the
    next attempt finds it empty and stamped and replaces it.
    """
    with contextlib.suppress(LakeError, psycopg.Error):  # the first error is the one to tell
        if not connection.closed and not _is_owned(connection, ref):
            lake.drop(ref, purge=True)


def _is_owned(connection: Connection, ref: str) -> bool:
    return any(table.lake_table_ref == ref for table in tables.listing(connection))


@contextlib.contextmanager
def _one_at_a_time(connection: Connection, name: Name) -> Iterator[None]:
    """Two registrations of one table would take each other's empty lake table for a leftover."""
    key = f"modak.register {name}"
    row = connection.execute("select pg_try_advisory_lock(hashtextextended(%s, 0)) as mine", [key]).fetchone()
    if row is None or not row["mine"]:
        raise LockNotAvailable(f"another registration of {name} is running", hint="wait for it, then look at `modak status`")
    try:
        yield
    finally:
        if not connection.closed:
            connection.execute("select pg_advisory_unlock(hashtextextended(%s, 0))", [key])


def _check_keys(connection: Connection, plan: Plan) -> None:
    """What only the rows can tell: no NULL in the key, and no key twice where no index says so."""
    problems = []
    relation, key = plan.relation, plan.decision.primary_key
    nullable = [column.name for column in relation.columns if column.name in key and not column.not_null]
    for column in nullable:
        found = connection.execute(
            sql.SQL("select 1 from {} where {} is null limit 1").format(identifier(relation.name), sql.Identifier(column))
        ).fetchone()
        if found:
            problems.append(Problem("null_key", f"primary key column {column} has NULLs", "fill them in, or choose another key"))
    if not problems and not proven_unique(relation, key):
        row = connection.execute(
            sql.SQL("select {} as pk, count(*) as n from {} group by {} having count(*) > 1 limit 1").format(
                sql.SQL(encoded_key(key)),
                identifier(relation.name),
                sql.SQL(", ").join(sql.Identifier(column) for column in key),
            )
        ).fetchone()
        if row:
            problems.append(Problem("duplicate_key", f"primary key ({', '.join(key)}) = {row['pk']!r} stands {row['n']} times"))
    if problems:
        raise Refused(f"{relation.name} cannot be registered", problems, hint="nothing was changed")


def lake_table_of(plan: Plan, catalog_id: str) -> LakeTable:
    required = (*plan.decision.primary_key, plan.options.tier_key)
    columns, _ = lake_table.lake_columns(plan.relation.columns, required, plan.options.text_columns)
    stamps = {CATALOG_STAMP: catalog_id, TABLE_STAMP: str(plan.relation.name)}
    return LakeTable(
        ref=plan.lake_ref,
        columns=columns,
        tier_key=plan.options.tier_key,
        primary_key=plan.decision.primary_key,
        layout=plan.decision.layout,
        properties=lake_table.properties(plan.decision.primary_key, stamps),
    )


def _create_lake_table(connection: Connection, lake: Lake, plan: Plan) -> LakePointer:
    catalog_id = read_catalog_id(connection)
    found = lake.find(plan.lake_ref)
    if found is not None:
        if not is_leftover(connection, found, catalog_id):
            raise Refused(
                f"lake table {plan.lake_ref} exists already",
                hint="it may hold rows of an earlier registration: name another one with --lake-table, or remove it with "
                f"`modak unregister {plan.relation.name} --drop-lake`",
                rows=found.total_rows,
                location=found.location,
            )
        lake.drop(plan.lake_ref, purge=True)
    return lake.create(lake_table_of(plan, catalog_id))


def read_catalog_id(connection: Connection) -> str:
    row = connection.execute(migrate.SQL.query("read_catalog_id")).fetchone()
    return str(row["catalog_id"]) if row else ""


def is_leftover(connection: Connection, pointer: LakePointer, catalog_id: str) -> bool:
    """A lake table that this catalog made, that never got a row and that no registration owns: a crash left it."""
    empty_and_ours = pointer.properties.get(CATALOG_STAMP) == catalog_id and pointer.snapshot_id is None
    return empty_and_ours and not _is_owned(connection, pointer.ref)


def _change_postgres(connection: Connection, plan: Plan, pointer: LakePointer, profile: str) -> Registered:
    relation = plan.relation
    try:
        with connection.transaction():
            connection.execute(sql.SQL("set local lock_timeout = {}").format(sql.Literal(LOCK_TIMEOUT_MS)))
            # A mirrored table changes for nobody: its readers and writers pass.
            mode = "access exclusive" if plan.options.has_seam else "share update exclusive"
            connection.execute(sql.SQL("lock table {} in {} mode").format(identifier(relation.name), trusted(mode)))
            locked = _look_again(connection, plan)
            failpoint("register.after_lock")
            registered = (
                _change_mirrored(connection, locked, profile) if is_mirrored(plan) else change_relations(connection, locked, profile)
            )
            failpoint("register.after_ddl")
            _write_catalog(connection, locked, registered, pointer)
            failpoint("register.before_commit")
    except psycopg.errors.LockNotAvailable as cause:
        raise LockNotAvailable(
            f"{relation.name} is in use, and its lock was not free within {LOCK_TIMEOUT_MS} ms",
            hint="try again when long transactions on it have ended; nothing was changed",
        ) from cause
    except psycopg.errors.InsufficientPrivilege as cause:
        raise Refused(
            f"this role may not register {relation.name}: {cause.diag.message_primary}",
            hint=f"connect as its owner ({relation.owner}) or as a superuser",
        ) from cause
    return registered


def _look_again(connection: Connection, plan: Plan) -> Plan:
    """The look was without a lock. What the lake table was made from must be the same under it; the rest, partitions above all, is
    taken as it stands now."""
    now = look(connection, plan.relation.name, plan.options)
    refuse_if_wrong(now)
    if (now.relation.oid, now.relation.columns, now.decision) != (plan.relation.oid, plan.relation.columns, plan.decision):
        raise LockNotAvailable(f"{plan.relation.name} changed while it was being registered", hint="run the command again")
    return now


def change_relations(connection: Connection, plan: Plan, profile: str) -> Registered:
    relation, options = plan.relation, plan.options
    nullable = [column.name for column in relation.columns if column.name in plan.decision.primary_key and not column.not_null]
    for column in nullable:
        connection.execute(sql.SQL("alter table {} alter column {} set not null").format(identifier(relation.name), sql.Identifier(column)))
    moving = options.surface == "view" and options.dependents == "move"
    moved = [dependent for dependent in relation.dependents if moving and follows_name(relation, dependent)]
    definitions = surface.definitions(connection, moved)
    if options.surface == "view":
        surface.rename(connection, "table", relation.name, plan.heap.name)
    columns = lake_table_of(plan, "").columns
    shape = Shape(relation.oid, relation.name, options.tier_key, plan.key_type, plan.decision.primary_key, columns)
    surface.create_view(connection, surface.Plan(relation, shape, plan.heap, plan.view, options.text_columns))
    surface.redefine(connection, definitions)
    spills = [(plan.heap if parent == relation.name else parent, name) for parent, name in spill.spill_names(connection, relation)]
    spill.create(connection, relation, spills, shape)
    original = {"set_not_null": nullable, "spills": [[name.schema, name.name] for _, name in spills]}
    registered = _registered(plan, profile, original)
    for _, name in spills:
        rebuild.watch_keys(connection, registered, name)
    newcomers.define(connection, shape)
    newcomers.watch(connection, relation.oid, plan.heap, relation, [name for _, name in spills])
    return registered


def is_mirrored(plan: Plan) -> bool:
    return plan.options.mode == "mirrored"


def _change_mirrored(connection: Connection, plan: Plan, profile: str) -> Registered:
    """The table stays as it is, but for what its stream has to say of a row: a mirror has no view and no spill. One that is to shed
    partitions has both, from the beginning."""
    mirroring.refuse_if_impossible(connection, plan.relation, plan.decision.primary_key)
    publication, slot = mirroring.publish(connection, plan.relation)
    identities = mirroring.identify(connection, plan.relation, plan.decision.primary_key)
    if plan.options.has_seam:
        found = change_relations(connection, plan, profile)
        original = {**found.original, "identities": identities}
        return replace(found, publication_name=publication, slot_name=slot, original=original)
    found = _registered(plan, profile, {"identities": identities})
    return replace(found, publication_name=publication, slot_name=slot, view_name=plan.heap.name, cold_build=0, cold_bound=KEY_MIN)


def _registered(plan: Plan, profile: str, original: dict[str, object]) -> Registered:
    relation, options, lags = plan.relation, plan.options, plan.decision.lags
    return Registered(
        table_id=relation.oid,
        schema_name=relation.name.schema,
        table_name=relation.name.name,
        primary_key_cols=plan.decision.primary_key,
        tier_key_col=options.tier_key,
        tier_key_type=plan.key_type.value,
        partition_scheme=tables.partition_scheme(plan.decision.layout),
        lake_table_ref=plan.lake_ref,
        storage_profile=profile,
        mode=options.mode,
        surface=options.surface,
        heap_name=plan.heap.name,
        view_name=plan.view.name,
        text_cols=options.text_columns,
        tier_lag=lags["lag"],
        reclaim_lag=lags["reclaim_lag"],
        lake_retention_lag=lags["lake_retention"],
        heap_retention_lag=lags["heap_retention"],
        keep_heap=options.keep_heap,
        check_cold_keys=options.check_cold_keys,
        premake=options.premake,
        hybrid=options.hybrid,
        original=original,
        cold_build=surface.FIRST_BUILD,
        cold_bound=plan.lowest,
    )


def _write_catalog(connection: Connection, plan: Plan, registered: Registered, pointer: LakePointer) -> None:
    tables.insert(connection, registered, tier_key_hi=plan.lowest, lake_props={"metadata_location": pointer.metadata_location})
    # From the first moment, so that a column that is renamed before the first pass is not taken for a new one.
    fields = dict(zip(pointer.columns, pointer.field_ids, strict=True))
    known = {column.number: fields[column.name] for column in plan.relation.columns}
    tables.save_lake_columns(connection, registered.table_id, known)
    if is_mirrored(plan):
        mirrors.insert(connection, registered.table_id)
    if plan.options.has_seam:
        record_partitions(connection, plan)


def record_partitions(connection: Connection, plan: Plan) -> None:
    leaves = bounds.range_leaves(plan.relation)
    found = [(leaf.oid, leaf.name, *bounds.parse_range(leaf.bound, plan.key_type)) for leaf in leaves]
    tables.record_partitions(connection, plan.relation.oid, found)
    for name in newcomers.known(connection, plan.relation.oid):
        newcomers.trust(connection, name)
