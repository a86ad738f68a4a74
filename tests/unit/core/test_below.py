"""A row of the stream is below T exactly if its tier key is, whatever the text looks like."""

from __future__ import annotations

import random

import pytest

from modak.core.below import Below
from modak.core.changes import UNCHANGED
from modak.core.tier_key import KEY_MAX, KEY_MIN, TierKeyType

TEXTS = {
    TierKeyType.BIGINT: ["-5", "0", "7", "200", "9223372036854775807"],
    TierKeyType.DATE: ["0044-03-15 BC", "0999-12-31", "2025-12-31", "2026-01-01", "2026-01-02", "12026-01-01"],
    TierKeyType.TIMESTAMP: ["0044-03-15 00:00:00 BC", "2025-12-31 23:59:59.999999", "2026-01-01 00:00:00", "2026-01-01 00:00:00.5"],
    TierKeyType.TIMESTAMPTZ: [
        "2025-12-31 23:59:59+00", "2026-01-01 00:00:00+00", "2026-01-01 00:00:00.1+00", "2026-01-01 01:00:00+02", "20260-01-01 00:00:00+00",
    ],
}  # fmt: skip


@pytest.mark.parametrize("key_type", TEXTS)
def test_by_text_as_by_number(key_type: TierKeyType) -> None:
    chance = random.Random(7)
    keys = [key_type.decode(text) for text in TEXTS[key_type]]
    texts = TEXTS[key_type] + [
        key_type.encode(chance.choice(keys) + chance.randint(-3, 3) * 100_000) for _ in range(50) if key_type.is_time
    ]
    for line in {*keys, *(key + 1 for key in keys if key < key_type.maximum), KEY_MIN, KEY_MAX}:
        below = Below(key_type, line, 1)
        assert [below((b"x", text.encode())) for text in texts] == [key_type.decode(text) < line for text in texts]


def test_odd_values() -> None:
    below = Below(TierKeyType.DATE, 100, 0)
    assert [below((value,)) for value in (b"infinity", b"-infinity", None, UNCHANGED)] == [False, True, False, False]
