"""Registrations as a file: export from one database, import into another."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from modak.catalog import profiles, tables
from modak.connection import Connection
from modak.core.profile import Profile
from modak.core.registration import Options
from modak.errors import UsageError
from modak.lake.port import Lake
from modak.progress import Progress
from modak.registration import policy
from modak.registration.register import register
from modak.source.relation import parse_name

FORMAT = 1
ENTRY = ("table", "tier_key", "primary_key", "mode", "surface", "width", "keep_heap", "as_text", "profile", "lake_table", "policy")


def export(connection: Connection) -> dict[str, Any]:
    return {"modak_export": FORMAT, "tables": [_entry(table) for table in tables.listing(connection)]}


def _entry(table: tables.Registered) -> dict[str, Any]:
    shown = {key: _text(value) for key, value in policy.show(table).items() if key != "keep_heap"}
    return {
        "table": str(table.name),
        "tier_key": table.tier_key_col,
        "primary_key": list(table.primary_key_cols),
        "mode": table.mode,
        # A mirror that sheds nothing any more is registered as one that never did.
        "surface": "heap" if table.mode == "mirrored" and table.heap_retention_lag is None else table.surface,
        "width": None if table.layout == "none" and not table.key_type.is_time else table.layout,
        "keep_heap": table.keep_heap,
        "check_cold_keys": table.check_cold_keys,
        "as_text": list(table.text_cols),
        "profile": table.storage_profile,
        "lake_table": table.lake_table_ref,
        "policy": {key: value for key, value in shown.items() if value is not None},
    }


def _text(value: Any) -> str | None:
    return str(value).lower() if isinstance(value, bool) else None if value is None else str(value)


def read(text: str | bytes) -> list[dict[str, Any]]:
    """Bytes in any of Unicode's forms: a shell of Windows writes what is sent to a file in UTF-16."""
    try:
        data = json.loads(text)
        if data["modak_export"] != FORMAT:
            raise UsageError(f"export format {data['modak_export']!r} is not known", hint="export and import with the same release")
        entries = [dict(entry) for entry in data["tables"]]
        for entry in entries:
            missing = [key for key in ENTRY if key not in entry]
            if missing:
                raise KeyError(missing[0])
        return entries
    except (ValueError, KeyError, TypeError) as cause:
        raise UsageError("the file is no export of Modak", hint="`modak export > tables.json` writes one") from cause


def load(connection: Connection, lake_of: Callable[[Profile], Lake], entry: dict[str, Any], progress: Progress) -> str:
    """Register one entry if need be, and set its policy; returns what was done."""
    name = parse_name(entry["table"])
    known = tables.find(connection, name)
    if known is None:
        profile = profiles.get(connection, entry["profile"])
        options = Options(
            tier_key=entry["tier_key"],
            primary_key=tuple(entry["primary_key"]),
            mode=entry["mode"],
            surface=entry["surface"],
            width=entry["width"],
            keep_heap=entry["keep_heap"],
            check_cold_keys=entry.get("check_cold_keys", False),
            text_columns=tuple(entry["as_text"]),
            lake_table=entry["lake_table"],
            heap_retention=entry["policy"].get("heap_retention") if entry["mode"] == "mirrored" else None,
        )
        registered = register(connection, lake_of(profile), name, options, profile=profile.name, progress=progress)
    policy.change(connection, known or registered, entry["policy"])
    return "policy set" if known else "registered"
