"""What the templates are given: reports with their pictures, and figures in words where a page needs them that way."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from modak.catalog.explain import Route
from modak.core.tier_key import TierKeyType
from modak.errors import ModakError, Refused
from modak.web.console import charts, words
from modak.web.console.charts import Line
from modak.web.console.query import CELL_CHARACTERS_MAX, RESULT_BYTES_MAX, ROWS_MAX, SECONDS_MAX, Outcome
from modak.web.reports import HISTORY_SECONDS, HISTORY_STEP_SECONDS, partition_of
from modak.worker.samples import SAMPLE_SECONDS, SAMPLES_MAX, Samples

Row = dict[str, Any]
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?")
PARTITIONS_MAX = 300
KEPT = words.span(SAMPLES_MAX * SAMPLE_SECONDS)
_NO_MIRROR = {"state": "copying", "frontier": None, "lag_bytes": None, "lag_seconds": None, "retained_bytes": None}
_PHASES = {"flushing": "copying", "committed": "in the lake, not published yet", "advanced": "published", "abandoned": "given up"}
# What the policy form has, and the words beside each field.
_POLICY = {
    "lag": ("Lag", "How far behind the newest row a partition becomes due."),
    "reclaim_lag": ("Reclaim lag", "How long a tiered partition stays in the heap as well."),
    "lake_retention": ("Lake retention", "Rows further behind the cut-line expire."),
    "heap_retention": ("Heap retention", "For mirrored tables: how long rows stay in the heap."),
    "wal_limit": ("WAL limit", "For mirrored tables: the WAL one may keep while it does not get on, as 16 GB. 0 for no limit."),
    "premake": ("Premake", "Partitions to keep ready ahead of the newest row, 0 to 1000."),
    "enabled": ("Enabled", "Whether the worker runs this table's jobs."),
    "hybrid": ("Hybrid reads", "Queries on the gateway's port are answered by the lake, once it has what they must see."),
}
_CHOICES = ("enabled", "hybrid")
# What a table of the other mode could only be refused.
_OF_OTHERS = {
    "tiered": ("keep_heap", "heap_retention", "hybrid", "wal_limit"),
    "mirrored": ("keep_heap", "lag", "lake_retention"),
}


def worker(found: Row) -> Row:
    names = {"leader": "Leader", "standby": "Standby", "server": "Serving only"}
    return found | {"title": names[found["role"]]}


def overview(found: Row, samples: Samples) -> Row:
    lines = [_line(row, samples) for row in found["tables"]]
    sums = {
        name: sum(row["figures"][name] or 0 for row in found["tables"] if row["figures"])
        for name in ("hot_bytes", "cold_bytes", "cold_rows")
    }
    return {
        "tables": lines,
        "workers": found["workers"],
        "decoupled": found["decoupled"],
        "pins": found["pins"],
        "transactions": found["transactions"],
        "slots": found["slots"],
        "problems": found["problems"],
        "operations": [_operation(row) for row in found["operations"]],
        "errands": [one for one in found["worker"]["errands"] if one["state"] in ("waiting", "running")],
        "sums": sums,
        "sum_share": charts.split_bar(_share_text(sums["hot_bytes"], sums["cold_bytes"]), _shares(sums["hot_bytes"], sums["cold_bytes"])),
        "delta_rows": sum(row["delta_rows"] for row in found["tables"]),
        "staged_loads": sum(row["staged_loads"] for row in found["tables"]),
        "wal_bytes": sum(slot["retained_bytes"] for slot in found["slots"]),
        "sampled": samples.taken_at is not None,
    }


def table(found: Row, history: Sequence[Row], samples: Samples) -> Row:
    key_type = TierKeyType(found["tier_key_type"])
    name, parts = found["table"], [partition_of(row) for row in found["partitions"]]
    line = found["cutline"]
    return {
        **found,
        **_line(found, samples),
        "map": charts.partition_map(
            f"Partitions of {name}", parts, key_type, line=line["tier_key_hi"], retention=line["retention_line"]
        ) if found["mode"] == "tiered" else None,
        "retention_text": words.key(line["retention_line"], key_type) if line["retention_line"] is not None else None,
        "partitions": [
            row | {"from_text": words.key(row["tier_key_lo"], key_type), "to_text": words.key(row["tier_key_hi"], key_type)}
            for row in reversed(found["partitions"][-PARTITIONS_MAX:])
        ],
        "partition_count": len(found["partitions"]),
        "operations": [_operation(row) for row in found["operations"]],
        "charts": _charts(name, key_type, found["mode"], samples),
        "throughput": _throughput(name, history),
        "policy_fields": _policy_fields(found),
        "kept": KEPT,
        "refused": None,
        "given": {},
        "hot_text": words.size(found["figures"]["hot_bytes"]) if found["figures"] else "–",
    }  # fmt: skip


def operations(found: Sequence[Row], *, full: bool) -> Row:
    older = found[-1]["started_at"].isoformat() if full and found else None
    return {"operations": [_operation(row) for row in found], "older": older}


def query(statement: str, *, outcome: Outcome | None = None, route: Route | None = None, failed: ModakError | None = None) -> Row:
    shown = None
    if outcome is not None:
        numeric = _numeric(outcome)
        shown = {
            "columns": list(zip(outcome.columns, numeric, strict=True)),
            "rows": [list(zip(row, numeric, strict=True)) for row in outcome.rows],
            "truncated_by": outcome.truncated_by,
            "values_cut": outcome.values_cut,
            "seconds": f"{outcome.seconds:.3f}" if outcome.seconds < 1 else f"{outcome.seconds:.1f}",
            "engine": "the gateway" if outcome.engine == "gateway" else "Postgres",
            "note": outcome.note,
        }
    found = route if route is not None else Route(outcome.route) if outcome is not None else None
    return {
        "statement": statement,
        "limits": {"seconds": f"{SECONDS_MAX:g}", "rows": ROWS_MAX, "bytes": RESULT_BYTES_MAX, "characters": CELL_CHARACTERS_MAX},
        "result": shown,
        "route": _sorted(found) if found is not None else None,
        "tiers": found.tiers if found is not None else [],
        "failed": failed,
        "place": _place(statement.lstrip(), failed.facts.get("position")) if failed is not None else None,
    }


def _sorted(route: Route) -> Row:
    """The gateway's word first; Postgres's plan is long."""
    plan = [line.removeprefix("postgres: ") for line in route.lines if line.startswith("postgres: ")]
    return {"gateway": [line.removeprefix("gateway: ") for line in route.lines if not line.startswith("postgres: ")], "postgres": plan}


def _place(statement: str, position: object) -> tuple[str, str, str] | None:
    """The line in which a query is wrong, and a mark below the place."""
    if not isinstance(position, str) or not position.isdigit() or not 1 <= int(position) <= len(statement):
        return None
    before = statement[: int(position) - 1]
    start = before.rfind("\n") + 1
    line = statement[start:].partition("\n")[0].rstrip()[:200]
    return line, " " * (len(before) - start) + "^", position


def _numeric(outcome: Outcome) -> list[bool]:
    """Columns of numbers stand to the right."""
    return [all(_NUMBER.fullmatch(row[place] or "0") for row in outcome.rows) for place in range(len(outcome.columns))]


def policy_text(value: Any) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def problems_of(refused: Refused) -> list[tuple[str, str | None]]:
    return [(problem.message, problem.hint) for problem in refused.problems] or [(refused.message, refused.hint)]


def _line(row: Row, samples: Samples) -> Row:
    # A registration that broke off has nothing to say about its mirror yet.
    row = row if row["mode"] == "tiered" or row["mirror"] else row | {"mirror": _NO_MIRROR}
    key_type, figures = TierKeyType(row["tier_key_type"]), row["figures"] or {}
    hot, cold = figures.get("hot_bytes"), figures.get("cold_bytes")
    return row | {
        "t_text": words.key(row["cutline"]["tier_key_hi"], key_type),
        "hot_bytes": hot,
        "cold_bytes": cold,
        "share": charts.split_bar(_share_text(hot, cold), _shares(hot, cold)),
        "lag_text": words.lag(figures.get("hot_period"), key_type) if row["mode"] == "tiered" else words.size(row["mirror"]["lag_bytes"]),
        "due": figures.get("partitions_due"),
        "spark": charts.spark(f"Delta backlog of {row['table']}", samples.series(row["table"], "delta_rows")),
        "states_text": ", ".join(f"{count:,} {state}" for state, count in sorted(row["partition_states"].items())) or "none",
    }


def _shares(hot: float | None, cold: float | None) -> list[tuple[str, float]]:
    return [("cold", float(cold or 0)), ("hot", float(hot or 0))]


def _share_text(hot: float | None, cold: float | None) -> str:
    return f"{words.size(cold)} cold, {words.size(hot)} hot"


def _operation(row: Row) -> Row:
    is_open = row["phase"] in ("flushing", "committed")
    key_type, old, new = TierKeyType(row["tier_key_type"]), row["old_tier_key_hi"], row["new_tier_key_hi"]
    moved = (words.key(old, key_type), words.key(new, key_type)) if new is not None and old != new else None
    rate = row["rows"] / row["seconds"] if row["rows"] and row["seconds"] and row["seconds"] > 0.001 and not is_open else None
    return row | {"phase_text": _PHASES[row["phase"]], "is_open": is_open, "moved": moved, "rate": rate}


def _charts(name: str, key_type: TierKeyType, mode: str, samples: Samples) -> list[Row]:
    series = partial(samples.series, name)
    lag = Line("lag", series("hot_period"), "cold")
    wanted: list[tuple[str, list[Line], str]] = []
    if mode == "tiered":
        wanted.append(("Hot period: newest row ahead of T", [lag], "span" if key_type.is_time else "count"))
    else:
        wanted.append(("WAL behind", [Line("WAL behind", series("mirror_lag_bytes"), "cold")], "bytes"))
    wanted.append(("Size of the tiers", [Line("cold", series("cold_bytes"), "cold"), Line("hot", series("hot_bytes"), "hot")], "bytes"))
    backlog = [Line("corrections", series("delta_rows"), "one"), Line("staged loads", series("staged_loads"), "two")]
    wanted.append(("Backlog", backlog, "count"))
    return [{"title": title, "picture": charts.line_chart(title, lines, kind=kind)} for title, lines, kind in wanted]


def _throughput(name: str, history: Sequence[Row]) -> Any:
    last = time.time()
    bars: dict[float, list[tuple[str, float]]] = {}
    for row in history:
        bars.setdefault(row["at"].timestamp(), []).append((row["op_kind"], float(row["rows_moved"])))
    kinds = sorted({row["op_kind"] for row in history})
    return charts.bar_chart(
        f"Rows moved by operations on {name}, last day",
        sorted(bars.items()),
        looks=kinds,
        first=last - HISTORY_SECONDS,
        last=last,
        step=HISTORY_STEP_SECONDS,
        empty="No rows were moved in the last day.",
    )


def _policy_fields(found: Row) -> list[Row]:
    fields = []
    for key, value in found["policy"].items():
        if key in _OF_OTHERS.get(found["mode"], ()):
            continue
        title, told = _POLICY.get(key, (key, "A setting of the lake's maintenance."))
        fields.append({"key": key, "title": title, "told": told, "value": policy_text(value), "is_choice": key in _CHOICES})
    return fields
