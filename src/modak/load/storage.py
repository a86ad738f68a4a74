"""Where the lake is, for clients that spool: found by the storage profile of the table, as every command of Modak finds it."""

from __future__ import annotations

import os
from collections.abc import Callable

from modak.catalog import profiles
from modak.connection import connect
from modak.lake.storage import Storage, resolve
from modak.settings import Settings, load


def lake_storage(dsn: str, settings: Settings | None = None) -> Callable[[str], Storage]:
    """For ``LoadOptions.storage``: the warehouse, catalog and credentials of ``settings``, by default those of the environment."""
    chosen = settings or load(os.environ)

    def storage(profile: str) -> Storage:
        with connect(dsn) as connection:
            return resolve(
                profiles.get(connection, profile),
                dsn=dsn,
                catalog=chosen.catalog,
                warehouse=chosen.warehouse,
                folder=chosen.warehouse_folder,
                credentials=chosen.credentials,
                stored=lambda: profiles.stored_credentials(connection),
            )

    return storage
