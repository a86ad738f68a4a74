"""Rows of modak.tables and what hangs on them: registered tables, their cut-line and their partitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from psycopg.types.json import Jsonb

from modak.catalog import decoupled
from modak.catalog.migrate import SQL
from modak.connection import Connection
from modak.core.cutline import Cutline
from modak.core.partition import Partition, PartitionState
from modak.core.table import Name
from modak.core.tier_key import KEY_MIN, TierKeyType
from modak.errors import NotRegistered


@dataclass(frozen=True)
class Registered:
    """One registered table. Lags keep the text the user gave, in its canonical spelling."""

    table_id: int
    schema_name: str
    table_name: str
    primary_key_cols: tuple[str, ...]
    tier_key_col: str
    tier_key_type: str
    lake_table_ref: str
    partition_scheme: Mapping[str, Any] = field(default_factory=dict)
    storage_profile: str = "default"
    mode: str = "tiered"
    surface: str = "view"
    heap_name: str = ""
    view_name: str = ""
    text_cols: tuple[str, ...] = ()
    tier_lag: str | None = None
    reclaim_lag: str | None = None
    lake_retention_lag: str | None = None
    heap_retention_lag: str | None = None
    keep_heap: bool = False
    check_cold_keys: bool = False
    premake: int = 0
    enabled: bool = True
    maintenance_policy: Mapping[str, Any] | None = None
    original: Mapping[str, Any] = field(default_factory=dict)
    cold_build: int = 0
    cold_bound: int = KEY_MIN
    publication_name: str | None = None
    slot_name: str | None = None
    hybrid: bool = False
    wal_limit: int | None = None

    @property
    def name(self) -> Name:
        return Name(self.schema_name, self.table_name)

    @property
    def heap(self) -> Name:
        return Name(self.schema_name, self.heap_name)

    @property
    def view(self) -> Name:
        return Name(self.schema_name, self.view_name)

    @property
    def has_seam(self) -> bool:
        """Whether rows below T are the lake's and its corrections': not of a mirror whose heap is complete."""
        return self.mode == "tiered" or self.cold_build > 0

    @property
    def key_type(self) -> TierKeyType:
        return TierKeyType(self.tier_key_type)

    @property
    def layout(self) -> str:
        return layout_of(self.partition_scheme)


def layout_of(scheme: Mapping[str, Any]) -> str:
    return str(scheme.get("width") or scheme.get("granularity") or "none")


def partition_scheme(layout: str) -> dict[str, Any]:
    """The lake layout as the catalog writes it: {"width": 3600} or {"granularity": "day"}."""
    if layout == "none":
        return {}
    return {"width": int(layout)} if layout.isdigit() else {"granularity": layout}


_COLUMNS = tuple(column.name for column in fields(Registered))
_JSON = ("partition_scheme", "maintenance_policy", "original")


def _from_row(row: Mapping[str, Any]) -> Registered:
    values: dict[str, Any] = {name: tuple(row[name]) if isinstance(row[name], list) else row[name] for name in _COLUMNS}
    # Rows written by hand with the published columns only: the names follow from the surface.
    values["heap_name"] = row["heap_name"] or row["table_name"]
    values["view_name"] = row["view_name"] or row["table_name"]
    return Registered(**values)


def _parameters(table: Registered) -> dict[str, Any]:
    values = asdict(table)
    values |= {name: Jsonb(values[name]) if values[name] is not None else None for name in _JSON}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def insert(connection: Connection, table: Registered, *, tier_key_hi: int, lake_props: Mapping[str, Any]) -> None:
    connection.execute(SQL.query("insert_table"), _parameters(table))
    connection.execute(
        SQL.query("insert_cutline"), {"table_id": table.table_id, "tier_key_hi": tier_key_hi, "lake_props": Jsonb(dict(lake_props))}
    )


def find(connection: Connection, name: Name) -> Registered | None:
    """Also by the name that a mirrored table was given since: the next pass writes it down."""
    wanted = {"schema_name": name.schema, "table_name": name.name}
    row = connection.execute(SQL.query("find_table"), wanted).fetchone()
    row = row or connection.execute(SQL.query("find_renamed_table"), wanted).fetchone()
    return _from_row(row) if row else None


def get(connection: Connection, name: Name) -> Registered:
    found = find(connection, name)
    if found is not None:
        return found
    if decoupled.find(connection, name) is not None:
        raise NotRegistered(
            f"{name} is a decoupled table: all of its rows are in the lake, and it is not registered",
            hint="it takes plain SQL, `modak maintain` and `modak policy`; modak.drop_iceberg_table ends it: docs/guides/decoupled.md",
        )
    owner = owner_of(connection, name)
    hint = f"it is a part of {owner}" if owner else "`modak status` lists the registered ones"
    raise NotRegistered(f"{name} is not a registered table", hint=hint)


def owner_of(connection: Connection, name: Name) -> Name | None:
    """The registered table that a name belongs to: its own, its heap's or its view's."""
    row = connection.execute(SQL.query("find_table_by_relation"), {"schema_name": name.schema, "name": name.name}).fetchone()
    return Name(row["schema_name"], row["table_name"]) if row else None


def listing(connection: Connection) -> list[Registered]:
    return [_from_row(row) for row in connection.execute(SQL.query("list_tables")).fetchall()]


def delete(connection: Connection, table_id: int) -> None:
    connection.execute(SQL.query("delete_table"), {"table_id": table_id})


def update_policy(connection: Connection, table: Registered, **changes: Any) -> Registered:
    changed = replace(table, **changes)
    connection.execute(SQL.query("update_policy"), _parameters(changed))
    return changed


def save_names(connection: Connection, names: Mapping[int, Name]) -> None:
    """What tables that stand alone are called now. Within the caller's transaction; names may pass from one to another."""
    rows = [(table_id, name.schema, name.name) for table_id, name in names.items()]
    values = {"ids": [row[0] for row in rows], "schemas": [row[1] for row in rows], "names": [row[2] for row in rows]}
    connection.execute(SQL.query("set_names_aside"), values)
    connection.execute(SQL.query("save_names"), values)


def save_columns(connection: Connection, table: Registered) -> None:
    """The names of columns, wherever a registration has them."""
    connection.execute(SQL.query("save_columns"), _parameters(table))


def save_surface(connection: Connection, table: Registered, made: Registered, *, tier_key_hi: int) -> Registered:
    """A mirrored table has two tiers from now on; T rises to where its heap begins."""
    changed = replace(
        table,
        surface=made.surface,
        heap_name=made.heap_name,
        view_name=made.view_name,
        heap_retention_lag=made.heap_retention_lag,
        original={**table.original, **made.original},
        cold_build=made.cold_build,
        cold_bound=made.cold_bound,
    )
    connection.execute(SQL.query("save_surface"), _parameters(changed) | {"tier_key_hi": tier_key_hi})
    return changed


def save_cold_side(connection: Connection, table_id: int, *, build: int, bound: int) -> None:
    connection.execute(SQL.query("save_cold_side"), {"table_id": table_id, "cold_build": build, "cold_bound": bound})


def cutline(connection: Connection, table_id: int) -> Cutline:
    row = connection.execute(SQL.query("read_cutline"), {"table_id": table_id}).fetchone()
    if row is None:
        raise NotRegistered("the table has no cut-line: it was unregistered meanwhile", table_id=table_id)
    return Cutline(row["tier_key_hi"], row["lake_snapshot_id"], row["retention_line"], row["replicated_lsn"])


def published_snapshot(connection: Connection, table_id: int) -> int | None:
    """The Iceberg id of S, None before the first commit: what a reader or a job opens the lake at."""
    row = connection.execute(SQL.query("read_cutline"), {"table_id": table_id}).fetchone()
    found = row["lake_props"].get("snapshot_id") if row else None
    return int(found) if found is not None else None


def record_partitions(connection: Connection, table_id: int, found: Iterable[tuple[int, Name, int, int]]) -> None:
    """Learn about heap partitions (oid, name, lower, upper); one that is known already keeps its state."""
    for oid, name, lower, upper in found:
        connection.execute(
            SQL.query("insert_partition"),
            {
                "table_id": table_id,
                "partition_id": oid,
                "schema_name": name.schema,
                "partition_name": name.name,
                "tier_key_lo": lower,
                "tier_key_hi": upper,
            },
        )


def partitions(connection: Connection, table_id: int) -> list[Partition]:
    rows = connection.execute(SQL.query("list_catalog_partitions"), {"table_id": table_id}).fetchall()
    return [_partition(row) for row in rows]


def partitions_of(connection: Connection, ids: Iterable[int]) -> dict[int, list[Partition]]:
    """Of several tables in one look."""
    found: dict[int, list[Partition]] = {table_id: [] for table_id in ids}
    for row in connection.execute(SQL.query("list_partitions_of"), {"ids": list(found)}).fetchall():
        found[row["table_id"]].append(_partition(row))
    return found


def _partition(row: Mapping[str, Any]) -> Partition:
    return Partition(
        schema=row["schema_name"],
        name=row["partition_name"],
        lower=row["tier_key_lo"],
        upper=row["tier_key_hi"],
        state=PartitionState(row["state"]),
        rows=row["row_count"],
    )


def has_tiered(connection: Connection, table_id: int) -> bool:
    """Whether a partition waits to be dropped."""
    return PartitionState.TIERED in states(connection, table_id).values()


def states(connection: Connection, table_id: int) -> dict[int, PartitionState]:
    """State of each known partition by its OID."""
    rows = connection.execute(SQL.query("list_catalog_partitions"), {"table_id": table_id}).fetchall()
    return {row["partition_id"]: PartitionState(row["state"]) for row in rows}


def save_lake_columns(connection: Connection, table_id: int, field_ids: Mapping[int, int]) -> None:
    """Remember which lake field each heap column (by attnum) is."""
    columns = [{"attnum": number, "field_id": field_id} for number, field_id in sorted(field_ids.items())]
    connection.execute(SQL.query("save_lake_columns"), {"table_id": table_id, "lake_columns": Jsonb(columns)})


def lake_field_ids(connection: Connection, table_id: int) -> dict[int, int]:
    row = connection.execute(SQL.query("read_lake_columns"), {"table_id": table_id}).fetchone()
    return {entry["attnum"]: entry["field_id"] for entry in row["lake_columns"]} if row else {}


def set_state(connection: Connection, table_id: int, partition_id: int, state: PartitionState, rows: int | None = None) -> None:
    connection.execute(
        SQL.query("set_partition_state"), {"table_id": table_id, "partition_id": partition_id, "state": state.value, "row_count": rows}
    )


def count(connection: Connection, query: str, table_id: int) -> int:
    row = connection.execute(SQL.query(query), {"table_id": table_id}).fetchone()
    return int(row["n"]) if row else 0
