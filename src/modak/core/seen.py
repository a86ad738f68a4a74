"""Which transactions a snapshot of Postgres sees. Pure."""

from __future__ import annotations

from dataclasses import dataclass

_HALF = 1 << 31


@dataclass(frozen=True)
class Seen:
    """As ``pg_current_snapshot()`` has it: all below ``end`` but those that ``ran`` then."""

    end: int
    ran: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> Seen:
        _, end, ran = text.split(":")
        return cls(int(end), frozenset(int(xid) for xid in ran.split(",") if xid))

    def __call__(self, xid: int) -> bool:
        """Of one that committed; ``xid`` has 32 bits, as the stream has it, and lies within half their range of the snapshot."""
        full = self.end + (xid - self.end + _HALF) % (2 * _HALF) - _HALF
        return full < self.end and full not in self.ran
