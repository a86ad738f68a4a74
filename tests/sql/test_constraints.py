"""What the catalog refuses by itself, whoever writes the row: modes, profiles, life cycles, the seam (SCENARIOS 5, 12, 16, 20)."""

from __future__ import annotations

import itertools
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb
from tests.support import rows, value

from modak.connection import Connection, connect
from modak.core import operation, partition
from modak.core.operation import OperationKind, Phase
from modak.core.partition import PartitionState

# spec/3's published columns of modak.tables.
PUBLISHED: dict[str, Any] = {
    "table_id": 1, "schema_name": "public", "table_name": "events", "primary_key_cols": ["id"], "tier_key_col": "event_time",
    "partition_scheme": Jsonb({"width": 3600}), "lake_format": "iceberg", "lake_table_ref": "public.events", "storage_profile": "default",
    "mode": "tiered", "publication_name": None, "slot_name": None, "heap_retention_lag": None, "lake_retention_lag": None,
    "keep_heap": False, "maintenance_policy": None,
}  # fmt: skip
STATUS = [
    "table_id", "schema_name", "table_name", "mode", "cutline_t", "cutline_s", "mirror_frontier", "retention_line", "cutline_updated_at",
    "delta_backlog", "read_pins", "copying", "partition_states",
]  # fmt: skip


PARTITION = """
    insert into modak.partitions (table_id, partition_id, schema_name, partition_name, tier_key_lo, tier_key_hi)
    values (1, 7, 's', 'p', 0, 1)
"""


def insert_table(connection: Connection, **changes: Any) -> None:
    values = PUBLISHED | changes
    names = ", ".join(values)
    marks = ", ".join(f"%({name})s" for name in values)
    connection.execute(f"insert into modak.tables ({names}) values ({marks})", values)


@pytest.fixture
def table(connection: Connection) -> int:
    insert_table(connection)
    connection.execute("insert into modak.cutline (table_id, tier_key_hi) values (1, 0)")
    return 1


def test_rows_that_name_only_published_columns_are_complete(connection: Connection, table: int) -> None:
    from modak.catalog import tables

    found = tables.listing(connection)[0]
    assert (found.heap_name, found.view_name, found.enabled, found.layout) == ("events", "events", True, "3600")
    assert tables.cutline(connection, table).tier_key_hi == 0
    connection.execute("insert into modak.delta (table_id, pk, op, tier_key, version, payload) values (1, 'a', 0, -1, 5, '{}')")
    connection.execute("insert into modak.op_log (op_id, table_id, op_kind, phase, snapshot) values ('o', 1, 'load', 'flushing', 1)")
    plumbing = {"publication_name": "p", "slot_name": "s", "heap_retention_lag": "5"}
    insert_table(connection, table_id=2, table_name="m", lake_table_ref="public.m", mode="mirrored", **plumbing)


def test_the_first_columns_of_status_are_the_published_ones(connection: Connection, table: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("select * from modak.status")
        assert [column.name for column in cursor.description or ()][:13] == STATUS
    counted = rows(connection, "select cutline_t, delta_backlog, read_pins, copying, partition_states from modak.status")
    assert counted == [(0, 0, 0, False, {})]


WRONG_TABLES: list[tuple[dict[str, Any], str]] = [
    ({"mode": "sideways"}, "tables_mode_check"),
    ({"slot_name": "s"}, "mirror_plumbing_only_on_mirrored"),
    ({"publication_name": "p"}, "mirror_plumbing_only_on_mirrored"),
    ({"heap_retention_lag": "5"}, "mirror_plumbing_only_on_mirrored"),
    ({"hybrid": True}, "hybrid_only_on_mirrored"),
    ({"mode": "mirrored", "keep_heap": True}, "retention_and_keep_heap_only_on_tiered"),
    ({"mode": "mirrored", "lake_retention_lag": "5"}, "retention_and_keep_heap_only_on_tiered"),
    ({"keep_heap": True, "lake_retention_lag": "5"}, "keep_heap_without_lake_retention"),
    ({"primary_key_cols": []}, "primary_key_not_empty"),
    ({"partition_scheme": Jsonb([1])}, "partition_scheme_is_object"),
    ({"lake_format": "delta"}, "lake_format_check"),
    ({"tier_key_type": "text"}, "tier_key_type"),
    ({"surface": "both"}, "surface"),
    ({"premake": -1}, "premake"),
    ({"storage_profile": "nowhere"}, "storage_profile_fkey"),
]


@pytest.mark.parametrize(("changes", "constraint"), WRONG_TABLES)
def test_incoherent_tables_are_refused(shared: Connection, changes: dict[str, Any], constraint: str) -> None:
    with pytest.raises(psycopg.errors.IntegrityError, match=constraint):
        insert_table(shared, **{"table_id": 99, "table_name": "z", "lake_table_ref": "z.z", **changes})


def test_no_table_is_registered_twice(connection: Connection, table: int) -> None:
    for changes, constraint in (
        ({"table_id": 2, "lake_table_ref": "public.other"}, "tables_name_once"),
        ({"table_id": 2, "table_name": "other"}, "tables_lake_table_once"),
        ({"table_name": "other", "lake_table_ref": "public.other"}, "tables_pkey"),
    ):
        with pytest.raises(psycopg.errors.UniqueViolation, match=constraint):
            insert_table(connection, **changes)


def test_two_default_profiles_are_refused(connection: Connection) -> None:
    with pytest.raises(psycopg.errors.UniqueViolation, match="storage_profiles_one_default"):
        connection.execute("insert into modak.storage_profiles (profile_name, is_default) values ('second', true)")


@pytest.mark.parametrize("statement", ["delete from modak.storage_profiles", "update modak.storage_profiles set is_default = false"])
def test_no_default_profile_is_refused_at_commit(dsn: str, statement: str) -> None:
    with connect(dsn) as connection:
        connection.execute(statement)
        with pytest.raises(psycopg.errors.CheckViolation, match="must be the default"):
            connection.commit()
    with connect(dsn) as connection:
        connection.execute("update modak.storage_profiles set is_default = false")
        connection.execute("insert into modak.storage_profiles (profile_name, is_default) values ('second', true)")
        connection.commit()


@pytest.mark.parametrize("name", ["", "Upper", "with space", "-x", "x" * 64])
def test_profile_names_are_plain(shared: Connection, name: str) -> None:
    with pytest.raises(psycopg.errors.CheckViolation):
        shared.execute("insert into modak.storage_profiles (profile_name) values (%s)", [name])


def _paths(allowed: Any, start: Any) -> dict[Any, list[Any]]:
    """A shortest way from the first state to each one."""
    ways = {start: [start]}
    queue = [start]
    while queue:
        state = queue.pop(0)
        for following in allowed[state]:
            if following not in ways:
                ways[following] = [*ways[state], following]
                queue.append(following)
    return ways


def _reach(connection: Connection, relation: str, column: str, way: list[Any]) -> None:
    for state in way[1:]:
        connection.execute(f"update modak.{relation} set {column} = %s", [state])


@pytest.mark.parametrize(("old", "new"), list(itertools.product(PartitionState, PartitionState)))
def test_partition_states_follow_cores_table(shared: Connection, old: PartitionState, new: PartitionState) -> None:
    shared.execute("delete from modak.partitions")
    shared.execute(PARTITION)
    _reach(shared, "partitions", "state", _paths(partition.ALLOWED, PartitionState.HOT)[old])
    _expect(shared, f"update modak.partitions set state = '{new}'", legal=new in partition.ALLOWED[old] or new == old)


@pytest.mark.parametrize(("old", "new"), list(itertools.product(Phase, Phase)))
def test_operation_phases_follow_cores_table(shared: Connection, old: Phase, new: Phase) -> None:
    shared.execute("delete from modak.op_log")
    shared.execute("insert into modak.op_log (op_id, table_id, op_kind) values ('o', 1, 'tiering')")
    _reach(shared, "op_log", "phase", _paths(operation.ALLOWED, Phase.FLUSHING)[old])
    _expect(shared, f"update modak.op_log set phase = '{new}'", legal=new in operation.ALLOWED[old] or new == old)


@pytest.fixture(scope="module")
def shared(cluster: Any, template: str) -> Any:
    """One database for the many pairs of states."""
    with psycopg.connect(cluster.dsn(), autocommit=True) as admin:
        admin.execute(f"create database constraint_pairs template {template}")
    with connect(cluster.dsn("constraint_pairs"), autocommit=True) as connection:
        insert_table(connection)
        yield connection


def _expect(connection: Connection, statement: str, *, legal: bool) -> None:
    if legal:
        connection.execute(statement)
        return
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="cannot go from"):
        connection.execute(statement)


@pytest.mark.parametrize("state", [state for state in PartitionState if state is not PartitionState.HOT])
def test_a_partition_starts_hot(shared: Connection, state: PartitionState) -> None:
    shared.execute("delete from modak.partitions")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="must start as hot"):
        shared.execute(
            "insert into modak.partitions (table_id, partition_id, schema_name, partition_name, tier_key_lo, tier_key_hi, state)"
            " values (1, 8, 's', 'p', 0, 1, %s)",
            [state],
        )


def test_every_kind_of_operation_is_known(shared: Connection) -> None:
    shared.execute("delete from modak.op_log")
    for kind in OperationKind:
        shared.execute("insert into modak.op_log (table_id, op_kind) values (1, %s)", [kind])
    with pytest.raises(psycopg.errors.CheckViolation):
        shared.execute("insert into modak.op_log (table_id, op_kind) values (1, 'dance')")


POINTER = '{"metadata_location": "file:///m.json", "snapshot_id": 77}'


def test_the_seam_never_moves_back(connection: Connection, table: int) -> None:
    def step(**changes: Any) -> None:
        assignments = ", ".join(f"{column} = %({column})s" for column in changes)
        connection.execute(f"update modak.cutline set {assignments}", changes)

    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="without its pointer"):
        step(lake_snapshot_id=1)
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="without its pointer"):
        step(lake_snapshot_id=1, lake_props='{"metadata_location": "x"}')
    step(tier_key_hi=100, lake_snapshot_id=5, lake_props=POINTER)
    step(tier_key_hi=100, lake_snapshot_id=5)
    for wrong in ({"tier_key_hi": 99}, {"lake_snapshot_id": 4}, {"lake_snapshot_id": None}, {"lake_props": "{}"}):
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
            step(**wrong)
    with pytest.raises(psycopg.errors.CheckViolation, match="retention_below_cutline"):
        step(retention_line=101)
    step(retention_line=50)
    for wrong in ({"retention_line": 49}, {"retention_line": None}):
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="would move back"):
            step(**wrong)
    step(tier_key_hi=200, lake_snapshot_id=6, retention_line=200)
    assert rows(connection, "select tier_key_hi, lake_snapshot_id, retention_line from modak.cutline") == [(200, 6, 200)]


def test_everything_goes_with_the_table(connection: Connection, table: int) -> None:
    connection.execute(PARTITION)
    connection.execute("""
        insert into modak.delta (table_id, pk, op, tier_key) values (1, 'a', 1, -1);
        insert into modak.read_pins (table_id, pinned_tier_key_hi) values (1, 0);
        insert into modak.op_log (table_id, op_kind) values (1, 'load');
        insert into modak.load_labels (table_id, label, state) values (1, 'l', 'committed');
        insert into modak.maintenance_requests (table_id) values (1);
        insert into modak.lake_stats (table_id) values (1);
        insert into modak.copy_progress (table_id) values (1);
        insert into modak.problems (table_id, job, code, message) values (1, 'tier', 'x', 'y');
    """)
    holders = rows(
        connection,
        "select conrelid::regclass::text from pg_constraint where contype = 'f' and confrelid = 'modak.tables'::regclass order by 1",
    )
    assert len(holders) >= 10
    connection.execute("delete from modak.tables")
    assert {name: value(connection, f"select count(*) from {name}") for (name,) in holders} == {name: 0 for (name,) in holders}


@pytest.mark.parametrize(
    "statement",
    [
        "insert into modak.delta (table_id, pk, op, tier_key) values (1, 'a', 0, -1)",
        "insert into modak.delta (table_id, pk, op, tier_key) values (1, 'a', 2, -1)",
        "insert into modak.load_labels (table_id, label, state) values (1, '', 'committed')",
        "insert into modak.load_labels (table_id, label, state) values (1, 'l', 'staged')",
    ],
)
def test_half_rows_are_refused(connection: Connection, table: int, statement: str) -> None:
    with pytest.raises(psycopg.errors.CheckViolation):
        connection.execute(statement)
