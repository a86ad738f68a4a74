"""A REST catalog that is asked with a limit: PyIceberg's own session waits for ever, and gives up at the first refused connection."""

from __future__ import annotations

from typing import Any

from pyiceberg.catalog.rest import RestCatalog
from requests import PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter
from urllib3.util.retry import Retry

from modak.lake.s3 import ANSWER_SECONDS, ATTEMPTS, CONNECT_SECONDS

_BACKOFF_SECONDS = 0.2


class _Bounded(HTTPAdapter):
    def __init__(self) -> None:
        # A request that never reached the server may be sent again whatever it is; one that did, only if it asks and changes nothing.
        retry = Retry(
            total=ATTEMPTS - 1,
            read=ATTEMPTS - 1,
            status_forcelist=(429, 502, 503, 504),
            allowed_methods=("GET", "HEAD"),
            backoff_factor=_BACKOFF_SECONDS,
            raise_on_status=False,
        )
        super().__init__(max_retries=retry)

    def send(self, request: PreparedRequest, *args: Any, **options: Any) -> Response:
        if options.get("timeout") is None:
            options["timeout"] = (CONNECT_SECONDS, ANSWER_SECONDS)
        return super().send(request, *args, **options)


class BoundedRestCatalog(RestCatalog):
    def _create_session(self) -> Session:
        session = super()._create_session()
        for scheme in ("http://", "https://"):
            # Requests signed for AWS have an adapter of their own by a longer prefix, which wins.
            session.mount(scheme, _Bounded())
        return session
