"""Settings of a registered table that may change while it is registered."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from modak.catalog import tables
from modak.catalog.tables import Registered
from modak.connection import Connection
from modak.core.lag import Lag
from modak.core.lake_table import layout
from modak.core.maintenance import Upkeep
from modak.core.registration import Options
from modak.errors import ModakError, Problem, Refused, UsageError
from modak.registration import seam

# policy key → column. Everything else about a table is structure: unregister and register again.
LAGS = {
    "lag": "tier_lag",
    "reclaim_lag": "reclaim_lag",
    "lake_retention": "lake_retention_lag",
    "heap_retention": "heap_retention_lag",
}
OTHERS = ("premake", "enabled", "keep_heap", "hybrid", "wal_limit")
MAINTENANCE = "maintenance."


def keys() -> list[str]:
    return [*LAGS, *OTHERS, MAINTENANCE + "…"]


def show(table: Registered) -> dict[str, Any]:
    shown: dict[str, Any] = {key: getattr(table, column) for key, column in LAGS.items()}
    shown |= {key: getattr(table, key) for key in OTHERS}
    return shown | {MAINTENANCE + key: value for key, value in (table.maintenance_policy or {}).items()}


def change(connection: Connection, table: Registered, wanted: Mapping[str, str]) -> Registered:
    """Apply key=value pairs, all or none; an empty value resets a key."""
    changes: dict[str, Any] = {}
    maintenance = dict(table.maintenance_policy or {})
    problems = []
    for key, value in wanted.items():
        try:
            if key in LAGS:
                changes[LAGS[key]] = Lag.parse(value, table.key_type).text if value else None
            elif key in OTHERS:
                changes[key] = _PARSERS[key](value) if value else _DEFAULTS[key]
            elif key.startswith(MAINTENANCE) and key != MAINTENANCE:
                _set(maintenance, key.removeprefix(MAINTENANCE), value)
                changes["maintenance_policy"] = maintenance or None
            else:
                problems.append(Problem("policy", f"unknown policy key {key!r}", f"known: {', '.join(keys())}", is_usage=True))
        except ModakError as refused:
            problems.append(Problem("policy", f"{key}: {refused}", refused.hint, is_usage=True))
    problems += _conflicts(table, changes)
    if problems:
        raise Refused(f"the policy of {table.name} was not changed", problems)
    if changes.get("heap_retention_lag") is not None and not table.has_seam:
        table = seam.add(connection, table, changes["heap_retention_lag"])
    return tables.update_policy(connection, table, **changes)


def _set(maintenance: dict[str, Any], key: str, value: str) -> None:
    if value:
        Upkeep.of({key: value})
        maintenance[key] = value
    else:
        maintenance.pop(key, None)


def _whole_number(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,4}", text) or int(text) > 1000:
        raise UsageError(f"{text!r} is not a whole number from 0 to 1000")
    return int(text)


def _truth(text: str) -> bool:
    words = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}
    if text.lower() not in words:
        raise UsageError(f"{text!r} is neither true nor false")
    return words[text.lower()]


def _size(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,15})\s*(kB|MB|GB|TB)?", text.strip(), re.IGNORECASE)
    if found is None:
        raise UsageError(f"{text!r} is not a size", hint="bytes, or a number with kB, MB, GB or TB; 0 for no limit")
    units = {"": 1, "kb": 1024, "mb": 1024**2, "gb": 1024**3, "tb": 1024**4}
    size = int(found[1]) * units[(found[2] or "").lower()]
    if size > 2**62:
        raise UsageError(f"{text!r} is more than any disk has")
    return size


_PARSERS: dict[str, Callable[[str], Any]] = {
    "premake": _whole_number,
    "enabled": _truth,
    "keep_heap": _truth,
    "hybrid": _truth,
    "wal_limit": _size,
}
_DEFAULTS: dict[str, Any] = {"premake": 0, "enabled": True, "keep_heap": False, "hybrid": False, "wal_limit": None}


def _conflicts(table: Registered, changes: Mapping[str, Any]) -> list[Problem]:
    """The same rules as at registration, on what the table would become."""
    after = {column.name: changes.get(column.name, getattr(table, column.name)) for column in fields(Registered)}
    problems = []
    keep, hot = after["lake_retention_lag"], after["tier_lag"]
    if keep is not None:
        hot_length = Lag.parse(hot, table.key_type).approximate(table.key_type) if hot else 0
        if Lag.parse(keep, table.key_type).approximate(table.key_type) <= hot_length:
            problems.append(Problem("option", "lake_retention must exceed the hot period (lag)"))
        if after["keep_heap"]:
            problems.append(Problem("option", "keep_heap and lake_retention contradict each other"))
        if table.layout == "none":
            problems.append(Problem("option", "lake_retention needs a partitioned lake table", "register again with --width"))
        if table.mode != "tiered":
            problems.append(Problem("option", "lake_retention is for tiered tables"))
    if after["heap_retention_lag"] is not None and table.mode != "mirrored":
        problems.append(Problem("option", "heap_retention is for mirrored tables", "use lag"))
    if after["hybrid"] and (table.mode != "mirrored" or table.has_seam or after["heap_retention_lag"] is not None):
        problems.append(Problem("option", "hybrid is for mirrored tables that shed nothing", "others are read from both tiers anyway"))
    if after["wal_limit"] is not None and table.mode != "mirrored":
        problems.append(Problem("option", "wal_limit is for mirrored tables"))
    if after["keep_heap"] and after["reclaim_lag"] is not None:
        problems.append(Problem("option", "keep_heap never reclaims, so reclaim_lag has no meaning"))
    if "keep_heap" in changes and changes["keep_heap"] != table.keep_heap:
        problems.append(Problem("option", "keep_heap is decided at registration", "unregister and register again"))
    return problems


def apply_options(connection: Connection, table: Registered, options: Options, *, primary_key: tuple[str, ...]) -> Registered:
    """A second ``register`` of a registered table: settings change in place, structure must be the same."""
    width = layout(options.width, table.key_type) if options.width is not None else table.layout
    if isinstance(width, Problem):
        raise Refused(f"{table.name} is registered already, and was not changed", [width])
    structure = [
        ("--tier-key", table.tier_key_col, options.tier_key),
        ("--primary-key", table.primary_key_cols, primary_key or table.primary_key_cols),
        ("--mode", table.mode, options.mode),
        ("--surface", table.surface, options.surface),
        ("--keep-heap", table.keep_heap, options.keep_heap),
        ("--check-cold-keys", table.check_cold_keys, options.check_cold_keys),
        ("--as-text", tuple(sorted(table.text_cols)), tuple(sorted(options.text_columns or table.text_cols))),
        ("--profile", table.storage_profile, options.profile or table.storage_profile),
        ("--lake-table", table.lake_table_ref, options.lake_table or table.lake_table_ref),
        ("--width", table.layout, width),
    ]
    problems = [
        Problem("registered", f"{flag}: registered with {_plain(old)}, asked for {_plain(new)}", "unregister it first")
        for flag, old, new in structure
        if old != new
    ]
    if problems:
        raise Refused(f"{table.name} is registered already, in another way", problems, hint="nothing was changed")
    wanted = {key: getattr(options, key) for key in LAGS if getattr(options, key) is not None}
    if options.premake:
        wanted["premake"] = str(options.premake)
    if options.hybrid:
        wanted["hybrid"] = "true"
    return change(connection, table, wanted) if wanted else table


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return (",".join(value) or "none") if isinstance(value, tuple) else str(value)
