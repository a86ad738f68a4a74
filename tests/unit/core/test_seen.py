from __future__ import annotations

import pytest

from modak.core.seen import Seen


@pytest.mark.parametrize(
    ("text", "xid", "is_seen"),
    [
        ("100:200:", 199, True),
        ("100:200:", 200, False),
        ("100:200:", 50, True),
        ("100:200:120,150", 150, False),
        ("100:200:120,150", 121, True),
        # Numbers of 32 bits begin anew; the snapshot's do not.
        ("4294967300:4294967310:4294967305", 13, True),
        ("4294967300:4294967310:4294967305", 9, False),
        ("4294967300:4294967310:4294967305", 14, False),
        ("4294967300:4294967310:4294967305", 4294967290, True),
        ("4294967280:4294967290:", 3, False),
    ],
)
def test_which_transactions_a_snapshot_sees(text: str, xid: int, is_seen: bool) -> None:
    assert Seen.parse(text)(xid) is is_seen
