"""``modak status``: one line per table, or everything about one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from modak.catalog import decoupled, leadership, migrate, mirrors, overview, profiles, tables
from modak.catalog.tables import Registered
from modak.cli.output import Output
from modak.connection import Connection
from modak.core.decoupled import Definition
from modak.core.profile import Profile
from modak.core.table import Name, quoted
from modak.lake.decoupled import shown
from modak.lake.iceberg import IcebergLake
from modak.registration import policy
from modak.worker.waiting import reclaim_waits

Lakes = Callable[[Profile], IcebergLake]


def show(connection: Connection, output: Output, name: Name | None, lakes: Lakes) -> None:
    rows = overview.status(connection)
    if name is None:
        followed = mirrors.lags(connection)
        in_the_lake = [_decoupled(connection, one, lakes) for one in decoupled.listing(connection)]
        output.result([*({**row, "mirror": overview.mirror(row, followed)} for row in rows), *in_the_lake])
        _lines(output, rows)
        _decoupled_lines(output, in_the_lake)
        for row in rows:
            _follows(output, row, followed)
            _problems(output, row)
        for problem in decoupled.not_followed(connection):
            output.note(f"! {problem['schema_name']}.{problem['table_name']} {problem['job']}: {problem['message']}")
            if problem["hint"]:
                output.note(f"  {problem['hint']}")
        _workers(output, leadership.workers(connection))
        if not rows and not in_the_lake:
            output.note("no table is registered yet: `modak register schema.table --tier-key COLUMN`")
        return
    alone = decoupled.find(connection, name)
    if alone is not None:
        shown_line = _decoupled(connection, alone, lakes)
        output.result({**shown_line, "columns": [column.as_json() for column in alone.columns]})
        _decoupled_lines(output, [shown_line])
        output.table(["column", "type", "in the lake"], [(one.name, one.pg.display, one.lake.iceberg) for one in alone.columns])
        return
    table = tables.get(connection, name)
    row = next(row for row in rows if row["table_id"] == table.table_id)
    partitions = overview.partitions(connection, table)
    output.result(
        {
            **row,
            "mirror": overview.mirror(row, mirrors.lags(connection)),
            "settings": overview.settings(table),
            "policy": policy.show(table),
            "partitions": partitions,
            "waits": reclaim_waits(connection, table),
            "lake": _lake(connection, table),
        }
    )
    _lines(output, [row])
    output.table(["setting", "value"], [(key, _plain(value)) for key, value in overview.settings(table).items()])
    output.table(["partition", "from", "to", "state"], [(part["name"], part["from"], part["to"], part["state"]) for part in partitions])
    _follows(output, row, mirrors.lags(connection))
    _problems(output, row)
    _health(output, _lake(connection, table))
    for line in reclaim_waits(connection, table):
        output.note(f"waiting to be dropped: {line}")


def _decoupled(connection: Connection, definition: Definition, lakes: Lakes) -> dict[str, Any]:
    """With the names that other rows have theirs under."""
    names = {"table_id": definition.table_id, "schema_name": definition.name.schema, "table_name": definition.name.name}
    found = shown(definition, lambda: lakes(profiles.get(connection, definition.profile)))
    return names | found | {"problems": decoupled.problems(connection, definition)}


def _decoupled_lines(output: Output, lines: Sequence[dict[str, Any]]) -> None:
    if lines:
        columns = ("table", "rows", "bytes", "files", "partition_by", "lake_table", "profile")
        headings = ["decoupled table", *columns[1:4], "partitioned by", "lake table", "profile"]
        output.table(headings, [tuple(_plain("?" if line[one] is None else line[one]) for one in columns) for line in lines])
    for line in lines:
        if line["error"]:
            output.note(f"! {line['table']}: {line['error']}")
        for problem in line["problems"]:
            _problem(output, line["table"], problem)


def _lake(connection: Connection, table: Registered) -> dict[str, Any] | None:
    """The lake as maintenance left it last; None before its first pass."""
    found: dict[str, Any] | None = connection.execute(migrate.SQL.query("find_lake_stats"), {"table_id": table.table_id}).fetchone()
    return found


def _health(output: Output, found: dict[str, Any] | None) -> None:
    if found is None:
        return
    stats = found["stats"]
    output.note(
        f"= lake: {stats['files']:,} files, {stats['bytes'] / 1024**2:,.1f} MB, {stats['rows']:,} rows, "
        f"{stats['delete_files']:,} delete files, {stats['snapshots']:,} snapshots at {found['collected_at']:%Y-%m-%d %H:%M}"
    )
    for warning in found["warnings"]:
        output.note(f"! lake: {warning}")


def _workers(output: Output, found: dict[str, Any]) -> None:
    leader, standbys = found["leader"], [one["holder"] for one in found["standbys"]]
    if leader is not None:
        since = f"leads since {leader['since']}" if leader["leads"] else "led last, and nobody does now"
        output.note(f"worker {leader['holder']}, epoch {leader['epoch']}, {since}; seen {leader['seen_seconds']:.0f} s ago")
    if standbys:
        output.note(f"standing by: {', '.join(standbys)}")


def _follows(output: Output, row: dict[str, Any], followed: Sequence[dict[str, Any]]) -> None:
    found = overview.mirror(row, followed)
    if found is not None:
        output.note(
            f"= {row['schema_name']}.{row['table_name']} {found['state']}, F {found['frontier'] or 'none'}, "
            f"{found['lag_bytes']:,} bytes behind, {found['lag_seconds']:.0f} s; "
            f"its slot keeps {found['retained_bytes']:,} bytes of WAL"
        )
        if found["warning"]:
            output.note(found["warning"])


_COLUMNS = ["table", "mode", "cut-line T", "S", "partitions", "delta", "staged", "pins", "enabled"]


def _lines(output: Output, rows: Sequence[dict[str, Any]]) -> None:
    """With R beside T where something has expired."""
    if not any(row["retention"] for row in rows):
        output.table(_COLUMNS, [_line(row) for row in rows])
        return
    columns = [*_COLUMNS[:3], "R", *_COLUMNS[3:]]
    output.table(columns, [(*_line(row)[:3], row["retention"] or "none", *_line(row)[3:]) for row in rows])


def _line(row: dict[str, Any]) -> tuple[Any, ...]:
    states = ", ".join(f"{count} {state}" for state, count in sorted(row["partition_states"].items()))
    name = f"{quoted(row['schema_name'])}.{quoted(row['table_name'])}"
    snapshot = "none" if row["cutline_s"] is None else row["cutline_s"]
    return (
        name, row["mode"], row["cutline"], snapshot, states, row["delta_backlog"], row["staged_loads"], row["read_pins"],
        "yes" if row["enabled"] else "no",
    )  # fmt: skip


def _problems(output: Output, row: dict[str, Any]) -> None:
    for operation in row["operations"] or ():
        output.note(
            f"> {row['schema_name']}.{row['table_name']} {operation['kind']}: {operation['phase']} since {operation['since']}, "
            f"{operation['rows_done']} rows so far"
        )
    for problem in row["problems"] or ():
        _problem(output, f"{row['schema_name']}.{row['table_name']}", problem)


def _problem(output: Output, table: str, problem: dict[str, Any]) -> None:
    again = f" (attempt {problem['attempts']}, next one {problem['next_attempt']})" if problem["next_attempt"] else ""
    output.note(f"! {table} {problem['job']}: {problem['message']}{again}")
    if problem["hint"]:
        output.note(f"  {problem['hint']}")


def _plain(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
