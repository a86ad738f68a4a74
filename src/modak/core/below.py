"""Whether a row of the stream lies below a line, by the text of its tier key."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from modak.core.changes import Row
from modak.core.tier_key import TierKeyType

# Of such texts the order of their characters is the order of their moments: years of four digits, in UTC or without a zone.
_ORDERED = re.compile(rb"[0-9]{4}-[0-9]{2}-[0-9]{2}( [0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?(\+00)?)?")


@dataclass(frozen=True)
class Below:
    """``place``: where the tier key stands in a row. Rows below are the corrections' business, and not the stream's."""

    key_type: TierKeyType
    line: int
    place: int
    _text: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        text = self.key_type.encode_bound(self.line).encode() if self.key_type.is_time else b""
        object.__setattr__(self, "_text", text if _ORDERED.fullmatch(text) else b"")

    def __call__(self, row: Row) -> bool:
        value = row[self.place]
        if not isinstance(value, bytes):
            return False  # no row is without its tier key; whoever reads the key will say so
        if not self.key_type.is_time:
            return int(value) < self.line
        if self._text and _ORDERED.fullmatch(value):
            return value < self._text
        if value in (b"infinity", b"-infinity"):
            return value == b"-infinity"
        return self.key_type.decode(value.decode()) < self.line
