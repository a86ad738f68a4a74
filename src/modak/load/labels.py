"""The lock of a label, by which one connection at a time applies it."""

from __future__ import annotations

import hashlib


def label_lock(table_id: int, label: str) -> dict[str, int]:
    """Two numbers for a label of a table; two labels with the same ones would only be told to come back."""
    digest = hashlib.sha256(f"{table_id}:{label}".encode()).digest()
    return {"high": int.from_bytes(digest[:4], "big", signed=True), "low": int.from_bytes(digest[4:8], "big", signed=True)}
