"""Settings of an object store, completed once, so that PyIceberg, Spark and DuckDB are told the same.

The words are Iceberg's own (``s3.endpoint``, ``s3.access-key-id`` …). What each of the three would guess in its own way is said here
instead: the region of a store that has none, how a bucket is addressed, and how long to wait for an answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

SCHEMES = ("s3://", "s3a://", "s3n://")
CONNECT_SECONDS = 5
ANSWER_SECONDS = 30
ATTEMPTS = 4
# Stores other than AWS have no regions and take any name; without one, PyIceberg asks AWS and Spark's client refuses to start.
_ANY_REGION = "us-east-1"
# What a REST catalog is told, and file access has no use for.
_CATALOG_KEYS = re.compile(r"token|credential|scope|audience|resource|oauth2|rest\.|header\.|auth|ssl|warehouse|uri")
_SECRET_KEYS = re.compile(
    r"secret|passw|token|credential|authorization|signature|(access|account|private|api|shared)[-_.]?key", re.IGNORECASE
)
# A shorter text would turn up in places that have nothing to do with it.
_SECRET_LETTERS_MIN = 6


def is_s3(location: str) -> bool:
    return location.startswith(SCHEMES)


def completed(config: Mapping[str, str]) -> dict[str, str]:
    """The settings of a store with everything that is only implied; other settings stay as they are."""
    known = dict(config)
    endpoint = known.get("s3.endpoint")
    region = known.get("s3.region") or known.get("client.region") or (_ANY_REGION if endpoint else None)
    if region:
        known |= {"s3.region": region, "client.region": region}
    if endpoint or "s3.path-style-access" in known:
        # Few stores but AWS answer to bucket.host.
        asked = known.get("s3.path-style-access") or _opposite(known.get("s3.force-virtual-addressing", "false"))
        known |= {"s3.path-style-access": asked.lower(), "s3.force-virtual-addressing": _opposite(asked)}
    return known


def _opposite(flag: str) -> str:
    return "false" if flag.lower() == "true" else "true"


def for_pyiceberg(config: Mapping[str, str]) -> dict[str, str]:
    return {"s3.connect-timeout": str(CONNECT_SECONDS), "s3.request-timeout": str(ANSWER_SECONDS), **config}


def for_spark(config: Mapping[str, str]) -> dict[str, str]:
    """PyIceberg's own times are in seconds and under names that Iceberg's Java does not know."""
    bounds = {
        "http-client.type": "apache",
        "http-client.apache.connection-timeout-ms": str(CONNECT_SECONDS * 1000),
        "http-client.apache.socket-timeout-ms": str(ANSWER_SECONDS * 1000),
        "s3.retry.num-retries": str(ATTEMPTS - 1),
        "s3.retry.max-wait-ms": "5000",
    }
    return {**bounds, **config}


def file_access(config: Mapping[str, str]) -> dict[str, str]:
    """Without what only the catalog needs: tasks that write files do not get the key to the catalog."""
    return {name: value for name, value in config.items() if not _CATALOG_KEYS.match(name)}


def secrets_of(config: Mapping[str, str]) -> list[str]:
    """Every value that must not be shown, and what stands behind the colon of ``id:secret``."""
    values = [value for name, value in config.items() if _SECRET_KEYS.search(name)]
    values += [value.split(":", 1)[1] for value in values if ":" in value]
    return sorted({value for value in values if len(value) >= _SECRET_LETTERS_MIN}, key=len, reverse=True)


def without(text: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, "***")
    return text
