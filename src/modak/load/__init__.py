"""Stream Load: labelled batches into a registered table, each applied exactly once.

``LoadClient(LoadOptions(dsn, "public.events")).load(LoadRequest("orders-3-91100", rows))``. A host that puts many small batches into one
transaction uses ``open_session`` and ``Loader.apply``.
"""

from modak.load.batch import Loader
from modak.load.client import LoadClient, open_session
from modak.load.errors import LabelInFlight, LoadRejected
from modak.load.failures import LoadFailed
from modak.load.request import LoadOptions, LoadRequest, LoadResult
from modak.load.storage import lake_storage

__all__ = [
    "LabelInFlight",
    "LoadClient",
    "LoadFailed",
    "LoadOptions",
    "LoadRejected",
    "LoadRequest",
    "LoadResult",
    "Loader",
    "lake_storage",
    "open_session",
]
