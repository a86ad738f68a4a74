"""Where a storage profile's lake is, said the way Spark and PyIceberg each want to hear it; DuckDB's way is in ``modak.scan.engine``.

One profile is one Iceberg catalog name in both. The default profile takes everything from the environment; a named one overrides the
warehouse and non-secret settings, and names a credential set of the environment.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlencode

from psycopg import conninfo

from modak.core.profile import Profile
from modak.errors import MissingComponent, UsageError
from modak.lake import s3

# The Iceberg JDBC catalog keeps its tables in a schema of its own, out of the user's way.
CATALOG_SCHEMA = "modak_lake"
DEFAULT_PROFILE = "default"
JDBC = "jdbc"
_REST_IMPLEMENTATION = "modak.lake.rest.BoundedRestCatalog"
_CONNECT_SECONDS = "10"
# Not for a folder's name: what means something in a URI or a path.
_STRANGE = re.compile(r"[/?#%\\\x00-\x1f]|^\.+")
# A file system has 255 for a name, and twelve digits and a dash come behind.
_FOLDER_BYTES_MAX = 200


@dataclass(frozen=True)
class Storage:
    """A profile with the environment's part filled in."""

    catalog_name: str
    warehouse: str
    catalog: str  # 'jdbc' or the URI of a REST catalog
    dsn: str
    config: Mapping[str, str]

    def __repr__(self) -> str:
        return f"Storage({self.catalog_name!r}, {self.warehouse!r}, {self.catalog!r})"

    @property
    def is_rest(self) -> bool:
        return self.catalog != JDBC

    @property
    def is_remote(self) -> bool:
        """Files are in an object store. A REST catalog decides by itself where; that it needs a store's settings tells."""
        return s3.is_s3(self.warehouse) or (self.is_rest and any(name.startswith("s3.") for name in self.config))

    @property
    def scope(self) -> str:
        """Below this, files are reached by these credentials, and by no others of a longer scope."""
        return self.warehouse.rstrip("/") + "/" if s3.is_s3(self.warehouse) else "s3://"

    @property
    def secrets(self) -> list[str]:
        """What no message may show."""
        password = conninfo.conninfo_to_dict(self.dsn).get("password")
        return s3.secrets_of({**self.config, "password": str(password or "")})

    def new_location(self, ref: str) -> str:
        """A folder that no other table has: databases and profiles may share a warehouse, and a purge removes the whole folder."""
        namespace, table = (_STRANGE.sub("_", part).encode()[:_FOLDER_BYTES_MAX].decode(errors="ignore") for part in ref.split(".", 1))
        return f"{self.warehouse.rstrip('/')}/{namespace}/{table}-{uuid.uuid4().hex[:12]}"


def catalog_name(profile: str) -> str:
    """The catalog's name in Spark and in the catalog's own rows; a name Spark's configuration keys can carry."""
    if profile == DEFAULT_PROFILE:
        return "modak"
    if "-" not in profile:
        return f"modak_{profile}"
    # Profiles a-b and a_b are two: the digest keeps their catalogs apart.
    return f"modak_{profile.replace('-', '_')}_{hashlib.sha256(profile.encode()).hexdigest()[:8]}"


def resolve(
    profile: Profile,
    *,
    dsn: str,
    catalog: str,
    warehouse: str | None,
    folder: str,
    credentials: Mapping[str, Mapping[str, str]],
    stored: Callable[[], Mapping[str, str]] = dict,
) -> Storage:
    """``warehouse`` is the environment's; without one of its own, and without a REST catalog that has one, the files go to ``folder``.

    ``stored`` gives what modak.set_storage_secret was given. It is asked for the default profile only, where the environment says nothing.
    """
    config = dict(profile.lake_config)
    named = credentials.get(profile.credential_ref) if profile.credential_ref else None
    if named is not None:
        config |= dict(named)
    elif profile.is_default and (profile.credential_ref or s3.is_s3(profile.warehouse or warehouse or "") or "s3.endpoint" in config):
        named = stored()
        config |= named
    if profile.credential_ref is not None and not named:
        raise MissingComponent(
            f"storage profile {profile.name} wants the credentials {profile.credential_ref}, and this process has none of that name",
            hint=f"set MODAK_CREDENTIALS_{profile.credential_ref} to key=value,key=value",
        )
    catalog = config.pop("catalog", catalog)
    given = profile.warehouse or warehouse
    return Storage(
        catalog_name=catalog_name(profile.name),
        # What a REST catalog calls a warehouse need not be a place: it goes there as it was given, or not at all.
        warehouse=warehouse_uri(given or folder) if catalog == JDBC else given or "",
        catalog=catalog,
        dsn=dsn,
        config=s3.completed(config),
    )


def warehouse_uri(text: str) -> str:
    if "://" in text or text.startswith("file:"):
        return text.rstrip("/")
    # Not as_uri(): Hadoop and PyIceberg take the path as it stands, and a %20 would become part of a folder's name.
    return f"file://{Path(text).absolute()}"


def io_properties(storage: Storage) -> dict[str, str]:
    """For PyIceberg's file access alone: what tasks that write files are given."""
    return s3.for_pyiceberg(s3.file_access(storage.config))


def pyiceberg_properties(storage: Storage) -> dict[str, str]:
    own = s3.for_pyiceberg(storage.config)
    if storage.is_rest:
        named = {"warehouse": storage.warehouse} if storage.warehouse else {}
        return {"py-catalog-impl": _REST_IMPLEMENTATION, "uri": storage.catalog, **named, **own}
    # Looked at before it is used: after a restart of Postgres the pool's connections are dead.
    return {"type": "sql", "uri": sqlalchemy_url(storage.dsn), "pool_pre_ping": "true", "warehouse": storage.warehouse, **own}


def spark_properties(storage: Storage) -> dict[str, str]:
    """Spark configuration of this catalog. Spark must not cache tables: PyIceberg and other engines commit too."""
    prefix = f"spark.sql.catalog.{storage.catalog_name}"
    shared = {prefix: "org.apache.iceberg.spark.SparkCatalog", f"{prefix}.cache-enabled": "false"}
    if storage.warehouse:
        shared[f"{prefix}.warehouse"] = storage.warehouse
    own = s3.for_spark(storage.config) if storage.is_remote else dict(storage.config)
    if storage.is_rest:
        seconds = {"connection": s3.CONNECT_SECONDS, "socket": s3.ANSWER_SECONDS}
        bounds = {f"rest.client.{name}-timeout-ms": str(value * 1000) for name, value in seconds.items()}
        catalog = {"type": "rest", "uri": storage.catalog, **bounds}
    else:
        url, user, password = jdbc_url(storage.dsn, schema=CATALOG_SCHEMA)
        catalog = {"type": "jdbc", "uri": url, "jdbc.schema-version": "V1", "jdbc.user": user}
        catalog |= {"jdbc.password": password} if password else {}
        catalog |= {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO"} if storage.is_remote else {}
    return shared | {f"{prefix}.{name}": value for name, value in {**catalog, **own}.items()}


def _parts(dsn: str) -> dict[str, str]:
    parts = {name: str(value) for name, value in conninfo.conninfo_to_dict(dsn).items() if value is not None}
    if "service" in parts:
        raise UsageError("a DSN with service= cannot be handed to Spark", hint="write host, port, dbname and user out")
    return parts


def sqlalchemy_url(dsn: str) -> str:
    """The DSN for SQLAlchemy with psycopg, pinned to the catalog's schema."""
    parts = _parts(dsn)
    parts.setdefault("connect_timeout", _CONNECT_SECONDS)
    parts["options"] = f"{parts.get('options', '')} -c search_path={CATALOG_SCHEMA}".strip()
    return "postgresql+psycopg://?" + urlencode(parts)


def jdbc_url(dsn: str, *, schema: str | None = None) -> tuple[str, str, str | None]:
    """(url, user, password) for Spark. JDBC has no Unix sockets, so a socket folder becomes localhost with the same port."""
    parts = _parts(dsn)
    hosts = (parts.get("host") or "localhost").split(",")
    ports = (parts.get("port") or "5432").split(",")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    where = ",".join(f"{_jdbc_host(host)}:{port or 5432}" for host, port in zip(hosts, ports, strict=True))
    user = parts.get("user") or _system_user()
    query = {"ApplicationName": "modak-spark", "reWriteBatchedInserts": "true"}
    query |= {"currentSchema": schema} if schema else {}
    query |= {"sslmode": parts["sslmode"]} if "sslmode" in parts else {}
    query |= {"sslrootcert": parts["sslrootcert"]} if "sslrootcert" in parts else {}
    return f"jdbc:postgresql://{where}/{quote(parts.get('dbname') or user, safe='')}?{urlencode(query)}", user, parts.get("password")


def _jdbc_host(host: str) -> str:
    if host.startswith("/") or host == "":
        return "localhost"
    return f"[{host}]" if ":" in host else host


def _system_user() -> str:
    import getpass

    return getpass.getuser()
