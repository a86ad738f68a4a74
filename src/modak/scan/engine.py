"""One DuckDB database inside a process: its limits, its extensions, its way to object stores.

Nothing is installed or loaded behind our back: extensions come from wheels of the lock file, by path. After set-up the configuration is
locked, so that a query cannot lift a limit; what a query may *name* is the business of whoever writes its SQL, and users' text never
gets here as it came.
"""

from __future__ import annotations

import importlib
import re
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import duckdb

from modak.errors import LakeError, MissingComponent, UsageError
from modak.lake.s3 import ANSWER_SECONDS, ATTEMPTS, without
from modak.scan.paths import readable
from modak.scan.sqltext import quoted, string

if TYPE_CHECKING:
    from modak.lake.storage import Storage

Cursor = duckdb.DuckDBPyConnection

_NO_SETTINGS: Mapping[str, str] = MappingProxyType({})
# A store that is down is found out within seconds, not minutes: whoever reads holds a connection of Postgres meanwhile.
_HTTP_BOUNDS = {
    "http_timeout": str(ANSWER_SECONDS),
    "http_retries": str(ATTEMPTS - 1),
    "http_retry_wait_ms": "200",
    "http_retry_backoff": "3",
}
_SECRET_KEYS = {"s3.access-key-id": "KEY_ID", "s3.secret-access-key": "SECRET", "s3.session-token": "SESSION_TOKEN"}
_CREDENTIALS_HINT = "check the profile's MODAK_CREDENTIALS_<REF>; without keys in it the machine's own credentials are looked up"


class Engine:
    """``cursor()`` may be called from any thread, and each cursor belongs to one thread at a time; ``interrupt()`` on it cancels."""

    def __init__(
        self,
        storages: Sequence[Storage],
        *,
        memory_limit: str,
        threads: int,
        temp_directory: Path,
        settings: Mapping[str, str] = _NO_SETTINGS,
        remote: bool = False,
    ) -> None:
        """``settings`` are further settings of DuckDB for every cursor, since none can be changed later.

        ``remote``: a storage that comes later may be an object store.
        """
        self._lock = threading.Lock()
        self._loaded: set[str] = set()
        self._secrets: dict[str, str] = {}
        temp_directory.mkdir(parents=True, exist_ok=True)
        self._database = duckdb.connect(
            ":memory:",
            config={
                "autoinstall_known_extensions": "false",
                "autoload_known_extensions": "false",
                "allow_community_extensions": "false",
                "allow_persistent_secrets": "false",
                "memory_limit": memory_limit,
                "threads": str(threads),
                "temp_directory": str(temp_directory),
            },
        )
        caching = any(storage.is_remote for storage in storages)
        if remote or caching:
            # Now: its settings cannot be changed once the configuration is locked.
            self._load("httpfs")
        for storage in storages:
            self.use(storage)
        self._configure({**_HTTP_BOUNDS, **settings} if "httpfs" in self._loaded else settings, caching=caching)

    def _configure(self, settings: Mapping[str, str], *, caching: bool) -> None:
        chosen = {
            "parquet_metadata_cache": "true",
            # Worth its memory only where a read is a request; the system caches local files itself. It is safe because a data file
            # never changes under its name and deletes do not come through it.
            "enable_external_file_cache": str(caching).lower(),
            "TimeZone": "UTC",
            # The variables of the Python that hosts us are no tables.
            "python_enable_replacements": "false",
            **settings,
            "lock_configuration": "true",
        }
        for name, value in chosen.items():
            if not re.fullmatch(r"[A-Za-z_]+", name):
                raise UsageError("not the name of a DuckDB setting", name=name)
            # Global: a plain SET would hold for this connection and not for its cursors.
            self._database.execute(f"SET GLOBAL {name} = {string(value)}")

    def cursor(self) -> Cursor:
        """A connection of its own to the same database."""
        return self._database.cursor()

    def use(self, storage: Storage) -> None:
        """Make a storage profile's files readable; again for the same profile is a no-op, unless its settings changed."""
        if not storage.is_remote:
            return
        statement = secret_sql(storage.catalog_name, readable(storage.scope), storage.config)
        with self._lock:
            if self._secrets.get(storage.catalog_name) == statement:
                return
            self._load("httpfs")
            if "s3.access-key-id" not in storage.config:
                self._load("aws")
            try:
                self._database.execute(statement)
            except duckdb.Error as cause:
                # Its text repeats the statement, and the statement is the secret.
                told = without(str(cause), storage.secrets).splitlines()[0]
                raise LakeError(f"the engine refuses the credentials of {storage.catalog_name}: {told}", hint=_CREDENTIALS_HINT) from None
            self._secrets[storage.catalog_name] = statement

    def close(self) -> None:
        self._database.close()

    def _load(self, name: str) -> None:
        if name not in self._loaded:
            self._database.execute(f"LOAD {string(str(extension_path(name)))}")
            self._loaded.add(name)


def extension_path(name: str) -> Path:
    """The file of an extension in its wheel."""
    package = f"duckdb-extension-{name.replace('_', '-')}"
    hint = f"install {package}=={duckdb.__version__}; extensions belong to exactly one version of DuckDB"
    try:
        folder = Path(str(importlib.import_module(f"duckdb_extension_{name}").__file__)).parent
    except ModuleNotFoundError as cause:
        raise MissingComponent(f"the DuckDB extension {name} is not installed", hint=hint) from cause
    found = folder / "extensions" / f"v{duckdb.__version__}" / f"{name}.duckdb_extension"
    if not found.is_file():
        raise MissingComponent(f"the DuckDB extension {name} is of another version than DuckDB", hint=hint, expected=found)
    return found


def secret_sql(name: str, scope: str, config: Mapping[str, str]) -> str:
    """CREATE SECRET from the properties that PyIceberg reads; without keys the machine's own credentials are looked up."""
    options = {"TYPE": "s3", "SCOPE": string(scope)}
    if "s3.access-key-id" in config:
        options |= {option: string(config[key]) for key, option in _SECRET_KEYS.items() if key in config}
    else:
        options["PROVIDER"] = "credential_chain"
    region = config.get("s3.region") or config.get("client.region")
    if region:
        options["REGION"] = string(region)
    if "s3.endpoint" in config:
        options |= _endpoint(config["s3.endpoint"])
        virtual = config.get("s3.force-virtual-addressing", "false").lower() == "true" or config.get("s3.path-style-access") == "false"
        options["URL_STYLE"] = "'vhost'" if virtual else "'path'"
    return f"CREATE OR REPLACE SECRET {quoted(name)} ({', '.join(f'{option} {value}' for option, value in options.items())})"


def _endpoint(url: str) -> dict[str, str]:
    parts = urlsplit(url if "://" in url else f"https://{url}")
    return {"ENDPOINT": string(parts.netloc + parts.path.rstrip("/")), "USE_SSL": str(parts.scheme != "http").lower()}
