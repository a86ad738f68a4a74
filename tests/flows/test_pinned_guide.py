"""What docs/guides/pinned-reads.md tells a reader to type works, and prints what the page says."""

from __future__ import annotations

from pathlib import Path

from tests.docs.blocks import Reader, blocks
from tests.flows.test_pinned_seam import cold_events, no_spark  # noqa: F401 - fixtures

from modak.settings import Settings

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "pinned-reads.md"


def test_the_guide_works(cold_events: None, settings: Settings, dsn: str, tmp_path: Path) -> None:  # noqa: F811
    found = blocks(PAGE)
    assert len(found) == 2
    Reader(tmp_path, MODAK_DSN=dsn, MODAK_DATA=str(settings.data)).follow(found)
