"""What bounds a pass of the pump, and what it tells about itself."""

from __future__ import annotations

from dataclasses import dataclass, field

from modak.catalog import mirrors


@dataclass(frozen=True)
class Limits:
    """What a batch may grow to. ``wal_bytes_max``: a table that does not get on and keeps more WAL is parked, unless its policy has another
    limit, when it has been warned about for ``wal_warned_seconds``."""

    changes_max: int = 200_000
    bytes_max: int = 128 * 1024 * 1024
    wal_bytes_max: int = mirrors.WAL_BYTES_MAX
    wal_warned_seconds: int = 600

    @property
    def wal_bytes_warned(self) -> int:
        return self.wal_bytes_max // 2


@dataclass
class MirrorOutcome:
    """What a pass did. ``parked`` and ``failed``: tables and why they did not get on; ``copying`` wait for `modak register`."""

    tables: int = 0
    transactions: int = 0
    changes: int = 0
    commits: int = 0
    rows_written: int = 0
    rows_deleted: int = 0
    lsn: int | None = None
    tagged: bool = False
    warning: str | None = None
    parked: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    copying: list[str] = field(default_factory=list)
    shed: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    corrections: int = 0
    waiting: list[str] = field(default_factory=list)
