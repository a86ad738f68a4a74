"""What the lake's libraries raise becomes ours at this border: their exceptions have no common base, and their texts may hold secrets."""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyiceberg.exceptions import TableAlreadyExistsError

from modak.errors import LakeError, LakeFull, LakeTableExists, ModakError
from modak.lake.s3 import without

if TYPE_CHECKING:
    from modak.lake.storage import Storage

_LIBRARIES = frozenset(("pyiceberg", "pyarrow", "sqlalchemy", "duckdb", "_duckdb", "requests", "urllib3", "botocore"))
_FULL = re.compile(r"No space left on device|Disk quota exceeded|\bENOSPC\b|disk is full|StorageFull|XMinioStorageFull", re.IGNORECASE)


@contextlib.contextmanager
def failures(what: str, storage: Storage) -> Iterator[None]:
    """Around calls of the lake's libraries alone: whatever they raise is the lake's failure."""
    try:
        yield
    except TableAlreadyExistsError as cause:
        raise LakeTableExists(f"lake table {what} exists already", hint="choose another name with --lake-table") from cause
    except ModakError:
        raise
    except Exception as cause:  # noqa: BLE001 - what these libraries raise has no common base
        raise lake_failure(what, cause, storage.secrets, warehouse=storage.warehouse or None) from _shown(cause, storage.secrets)


@contextlib.contextmanager
def lake_failures(what: str, storage: Storage) -> Iterator[None]:
    """Around a whole job: what comes from one of the lake's libraries is the lake's failure, and everything else passes."""
    try:
        yield
    except ModakError:
        raise
    except Exception as cause:
        if not is_lakes(cause):
            raise
        raise lake_failure(what, cause, storage.secrets, warehouse=storage.warehouse or None) from _shown(cause, storage.secrets)


def is_lakes(cause: BaseException) -> bool:
    return isinstance(cause, OSError) or type(cause).__module__.split(".")[0] in _LIBRARIES


def lake_failure(what: str, cause: Exception, secrets: Sequence[str] = (), **facts: object) -> LakeError:
    told = without(f"{type(cause).__name__}: {cause}", secrets).splitlines()[0]
    if is_full(cause):
        hint = "make room where the warehouse is; nothing was lost, and the next pass goes on by itself"
        return LakeFull(f"the lake has no room left for {what}: {told}", hint=hint, **facts)
    return LakeError(f"the lake failed on {what}: {told}", hint=_hint(cause), **facts)


def is_full(cause: BaseException) -> bool:
    return (isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT)) or _FULL.search(str(cause)) is not None


def _hint(cause: Exception) -> str:
    text = str(cause)
    if "ACCESS_DENIED" in text or "AccessDenied" in text or "Forbidden" in type(cause).__name__ or "Unauthorized" in type(cause).__name__:
        return "the credentials of the storage profile are refused; MODAK_CREDENTIALS_<REF> holds them"
    return "check MODAK_CATALOG, MODAK_WAREHOUSE and the storage profile's credentials; what failed is tried again by itself"


def _shown(cause: Exception, secrets: Sequence[str]) -> Exception | None:
    """A cause is printed with its own text in tracebacks: one with a secret in it is told, and not shown."""
    return None if any(secret in str(cause) for secret in secrets) else cause
