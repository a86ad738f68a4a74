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

from modak.errors import MissingComponent, UsageError
from modak.scan.paths import readable
from modak.scan.sqltext import quoted, string

if TYPE_CHECKING:
    from modak.lake.storage import Storage

Cursor = duckdb.DuckDBPyConnection

_NO_SETTINGS: Mapping[str, str] = MappingProxyType({})
_SECRET_KEYS = {"s3.access-key-id": "KEY_ID", "s3.secret-access-key": "SECRET", "s3.session-token": "SESSION_TOKEN"}


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
    ) -> None:
        """``settings`` are further settings of DuckDB for every cursor, since none can be changed later."""
        self._lock = threading.Lock()
        self._loaded: set[str] = set()
        self._secrets: set[tuple[str, str]] = set()
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
        for storage in storages:
            self.use(storage)
        self._configure(settings, remote=any(is_remote(storage) for storage in storages))

    def _configure(self, settings: Mapping[str, str], *, remote: bool) -> None:
        chosen = {
            "parquet_metadata_cache": "true",
            # Worth its memory only where a read is a request; the system caches local files itself. It is safe because a data file
            # never changes under its name and deletes do not come through it.
            "enable_external_file_cache": str(remote).lower(),
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
        """Make a storage profile's files readable; again for the same profile is a no-op."""
        if not is_remote(storage):
            return
        scope = readable(storage.warehouse)
        with self._lock:
            if (storage.catalog_name, scope) in self._secrets:
                return
            self._load("httpfs")
            if "s3.access-key-id" not in storage.config:
                self._load("aws")
            self._database.execute(secret_sql(storage.catalog_name, scope, storage.config))
            self._secrets.add((storage.catalog_name, scope))

    def close(self) -> None:
        self._database.close()

    def _load(self, name: str) -> None:
        if name not in self._loaded:
            self._database.execute(f"LOAD {string(str(extension_path(name)))}")
            self._loaded.add(name)


def is_remote(storage: Storage) -> bool:
    return not storage.is_local


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
        # Stores other than AWS rarely answer to bucket.host, and PyIceberg asks them by path unless told otherwise.
        virtual = config.get("s3.force-virtual-addressing", "false").lower() == "true" or config.get("s3.path-style-access") == "false"
        options["URL_STYLE"] = "'vhost'" if virtual else "'path'"
    return f"CREATE OR REPLACE SECRET {quoted(name)} ({', '.join(f'{option} {value}' for option, value in options.items())})"


def _endpoint(url: str) -> dict[str, str]:
    parts = urlsplit(url if "://" in url else f"https://{url}")
    return {"ENDPOINT": string(parts.netloc + parts.path.rstrip("/")), "USE_SSL": str(parts.scheme != "http").lower()}
