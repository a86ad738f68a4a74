"""Several Postgres nodes that write one lake: whose turn it is, and how nodes find each other."""

from __future__ import annotations

from modak.mesh.bakery import Bakery, Claim

__all__ = ["Bakery", "Claim"]
