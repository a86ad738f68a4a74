"""DuckDB attached to the REST face of the embedded catalog."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import duckdb

from modak.scan.engine import extension_path

TOKEN = "a-token-of-the-rest-catalog"


@contextlib.contextmanager
def attached(address: str) -> Iterator[duckdb.DuckDBPyConnection]:
    database = duckdb.connect(config={"autoinstall_known_extensions": False, "autoload_known_extensions": False})
    for name in ("avro", "httpfs", "iceberg"):
        database.execute(f"LOAD '{extension_path(name)}'")
    database.execute(f"CREATE SECRET (TYPE iceberg, TOKEN '{TOKEN}')")
    database.execute(f"ATTACH 'default' AS lake (TYPE iceberg, ENDPOINT '{address}')")
    with contextlib.closing(database):
        yield database
