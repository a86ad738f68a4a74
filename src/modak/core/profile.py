"""A storage profile: a named warehouse that tables are registered against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Profile:
    """A blank warehouse means the environment's; secrets are named by ``credential_ref`` and never stored."""

    name: str
    warehouse: str = ""
    lake_config: Mapping[str, str] = field(default_factory=dict)
    credential_ref: str | None = None
    is_default: bool = False
    tables: int = 0
