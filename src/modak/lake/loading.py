"""Looking a table up while others may be dropping it."""

from __future__ import annotations

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import Table
from pyiceberg.typedef import Identifier


def load_table(catalog: Catalog, identifier: str | Identifier) -> Table:
    """Of a table that is purged at this moment the catalog may still name a metadata file, and the file be gone when it is read. A table
    goes from its catalog before its files go: the second look tells."""
    try:
        return catalog.load_table(identifier)
    except FileNotFoundError:
        return catalog.load_table(identifier)


def find_table(catalog: Catalog, identifier: str | Identifier) -> Table | None:
    """The same for a table that need not be there."""
    try:
        return load_table(catalog, identifier)
    except (NoSuchTableError, NoSuchNamespaceError):
        return None
