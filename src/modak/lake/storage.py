"""Where a storage profile's lake is, said the way Spark and PyIceberg each want to hear it.

One profile is one Iceberg catalog name in both. The default profile takes everything from the environment; a named one overrides the
warehouse and non-secret settings, and names a credential set of the environment.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlencode

from psycopg import conninfo

from modak.core.profile import Profile
from modak.errors import MissingComponent, UsageError

# The Iceberg JDBC catalog keeps its tables in a schema of its own, out of the user's way.
CATALOG_SCHEMA = "modak_lake"
DEFAULT_PROFILE = "default"


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
    def is_local(self) -> bool:
        return self.warehouse.startswith("file:")

    def new_location(self, ref: str) -> str:
        """A folder that no other table has: databases and profiles may share a warehouse, and a purge removes the whole folder."""
        namespace, table = ref.split(".", 1)
        return f"{self.warehouse.rstrip('/')}/{namespace}/{table}-{uuid.uuid4().hex[:12]}"


def catalog_name(profile: str) -> str:
    """The catalog's name in Spark and in the catalog's own rows; a name Spark's configuration keys can carry."""
    if profile == DEFAULT_PROFILE:
        return "modak"
    if "-" not in profile:
        return f"modak_{profile}"
    # Profiles a-b and a_b are two: the digest keeps their catalogs apart.
    return f"modak_{profile.replace('-', '_')}_{hashlib.sha256(profile.encode()).hexdigest()[:8]}"


def resolve(profile: Profile, *, dsn: str, catalog: str, warehouse: str, credentials: Mapping[str, Mapping[str, str]]) -> Storage:
    config = dict(profile.lake_config)
    if profile.credential_ref is not None:
        if profile.credential_ref not in credentials:
            raise MissingComponent(
                f"storage profile {profile.name} wants the credentials {profile.credential_ref}, and this process has none of that name",
                hint=f"set MODAK_CREDENTIALS_{profile.credential_ref} to key=value,key=value",
            )
        config |= dict(credentials[profile.credential_ref])
    return Storage(
        catalog_name=catalog_name(profile.name),
        warehouse=warehouse_uri(profile.warehouse or warehouse),
        catalog=config.pop("catalog", catalog),
        dsn=dsn,
        config=config,
    )


def warehouse_uri(text: str) -> str:
    if "://" in text or text.startswith("file:"):
        return text.rstrip("/")
    # Not as_uri(): Hadoop and PyIceberg take the path as it stands, and a %20 would become part of a folder's name.
    return f"file://{Path(text).absolute()}"


def pyiceberg_properties(storage: Storage) -> dict[str, str]:
    if storage.catalog != "jdbc":
        return {"type": "rest", "uri": storage.catalog, "warehouse": storage.warehouse, **storage.config}
    return {"type": "sql", "uri": sqlalchemy_url(storage.dsn), "warehouse": storage.warehouse, **storage.config}


def spark_properties(storage: Storage) -> dict[str, str]:
    """Spark configuration of this catalog. Spark must not cache tables: PyIceberg and other engines commit too."""
    prefix = f"spark.sql.catalog.{storage.catalog_name}"
    shared = {
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        f"{prefix}.warehouse": storage.warehouse,
        f"{prefix}.cache-enabled": "false",
    }
    own = {f"{prefix}.{name}": value for name, value in storage.config.items()}
    if storage.catalog != "jdbc":
        return shared | {f"{prefix}.type": "rest", f"{prefix}.uri": storage.catalog} | own
    url, user, password = jdbc_url(storage.dsn, schema=CATALOG_SCHEMA)
    jdbc = {f"{prefix}.type": "jdbc", f"{prefix}.uri": url, f"{prefix}.jdbc.schema-version": "V1", f"{prefix}.jdbc.user": user}
    if password:
        jdbc[f"{prefix}.jdbc.password"] = password
    return shared | jdbc | own


def _parts(dsn: str) -> dict[str, str]:
    parts = {name: str(value) for name, value in conninfo.conninfo_to_dict(dsn).items() if value is not None}
    if "service" in parts:
        raise UsageError("a DSN with service= cannot be handed to Spark", hint="write host, port, dbname and user out")
    return parts


def sqlalchemy_url(dsn: str) -> str:
    """The DSN for SQLAlchemy with psycopg, pinned to the catalog's schema."""
    parts = _parts(dsn)
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
