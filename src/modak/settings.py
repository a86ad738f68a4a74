"""Settings: declared once, with default and meaning; the only reader of the environment.

The declaration feeds parsing, ``--help`` and docs/reference/settings.md. A ``MODAK_*`` variable that is a slip away from a declared one is
an error, because a typing mistake that silently falls back to a default is worse than a refusal. Any other is somebody else's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from modak.errors import UsageError

PREFIX = "MODAK_"
CREDENTIALS_PREFIX = "MODAK_CREDENTIALS_"
LONG_NAME = 8


@dataclass(frozen=True)
class Setting:
    """One variable of the environment."""

    name: str
    default: str | None
    meaning: str
    secret: bool = False
    internal: bool = False

    @property
    def variable(self) -> str:
        return f"{PREFIX}{self.name.upper()}"


SETTINGS = (
    Setting("dsn", None, "Postgres to work on, as a URI or libpq string; without it the embedded cluster in MODAK_DATA is used", True),
    Setting("warehouse", None, "folder or s3:// URI of the default warehouse; without it MODAK_DATA/warehouse"),
    Setting("catalog", "jdbc", "`jdbc` (Iceberg catalog inside the same Postgres) or the URI of an Iceberg REST catalog"),
    Setting("spark", "local[*]", "`local[N]`, a master URL, or `sc://host:port` of a Spark Connect server"),
    Setting("http", "127.0.0.1:9090", "where the worker serves console, API, metrics and Stream Load"),
    Setting("gateway", "127.0.0.1:5439", "where the gateway listens"),
    Setting("gateway_dsn_host", None, "how Postgres reaches the gateway, if not by the address it listens on"),
    Setting("gateway_memory", "2GB", "memory the gateway's engine may use; more spills to disk"),
    Setting("gateway_threads", None, "threads of the gateway's engine; without it one per core"),
    Setting("gateway_connections", "200", "connections the gateway takes"),
    Setting("gateway_cert", None, "certificate (PEM) with which the gateway speaks TLS; without it TLS is not offered"),
    Setting("gateway_key", None, "private key of that certificate"),
    Setting("load_token", None, "token of the Stream Load endpoint; without it the endpoint does not exist", True),
    Setting("load_body_max", "2GiB", "largest body of a load by HTTP, decompressed"),
    Setting("load_connections", "8", "connections to Postgres that loads by HTTP share"),
    Setting("rest_token", None, "token of the Iceberg REST catalog that the worker serves below /iceberg; without it there is none", True),
    Setting("http_cert", None, "certificate (PEM) with which the HTTP server speaks TLS; without it plain HTTP"),
    Setting("http_key", None, "private key of that certificate"),
    Setting(
        "console_password", None, "password of the console and the API; without it they only show, and only on a loopback address", True
    ),
    Setting(
        "console_dsn",
        None,
        "login of the console's SQL page, as a DSN; without a host on the worker's server; without it the worker makes one, if it may",
        True,
    ),
    Setting("log", "text", "how daemons log: `text` for people, `json` for one object per line"),
    Setting("cycle_seconds", "10", "seconds between two cycles of the worker"),
    Setting("worker_tables", "2", "tables whose jobs the worker runs side by side"),
    Setting("lease_seconds", "15", "a leader that is silent for so many seconds loses its place to a worker that stands by"),
    Setting("drain_seconds", "30", "seconds that a worker which is asked to end gives its jobs; the next one finishes or undoes the rest"),
    Setting("fold_rows", "10000", "corrections of a table that make the worker fold them"),
    Setting("fold_seconds", "300", "seconds after which the worker folds fewer corrections, too"),
    Setting("backlog_rows", "1000000", "no further partition of a table is tiered while more corrections than that wait"),
    Setting("backlog_labels", "1000", "no further partition of a table is tiered while more staged loads than that wait"),
    Setting("maintain_seconds", "3600", "seconds between two maintenances of a table, unless its policy says otherwise"),
    Setting("data", "modak-data", "folder of the embedded Postgres and the default warehouse"),
    Setting("cache", None, "folder of fetched jars and generated wrappers; without it the user's cache folder"),
    Setting("spark_memory", "1g", "memory of the local Spark driver"),
    Setting("failpoints", None, "named crash points, for tests", internal=True),
)

_BY_VARIABLE = {setting.variable: setting for setting in SETTINGS}


@dataclass(frozen=True)
class Settings:
    """The values of one run. Secrets print as ***."""

    dsn: str | None = field(default=None, repr=False)
    warehouse: str | None = None
    catalog: str = "jdbc"
    spark: str = "local[*]"
    http: tuple[str, int] = ("127.0.0.1", 9090)
    gateway: tuple[str, int] = ("127.0.0.1", 5439)
    gateway_dsn_host: str | None = None
    gateway_memory: str = "2GB"
    gateway_threads: int | None = None
    gateway_connections: int = 200
    gateway_cert: Path | None = None
    gateway_key: Path | None = None
    load_token: str | None = field(default=None, repr=False)
    load_body_max: int = 2 * 1024**3
    load_connections: int = 8
    rest_token: str | None = field(default=None, repr=False)
    http_cert: Path | None = None
    http_key: Path | None = None
    console_password: str | None = field(default=None, repr=False)
    console_dsn: str | None = field(default=None, repr=False)
    log: str = "text"
    cycle_seconds: float = 10.0
    worker_tables: int = 2
    lease_seconds: float = 15.0
    drain_seconds: float = 30.0
    fold_rows: int = 10_000
    fold_seconds: float = 300.0
    backlog_rows: int = 1_000_000
    backlog_labels: int = 1_000
    maintain_seconds: float = 3600.0
    data: Path = Path("modak-data")
    cache: Path = Path(".cache")
    spark_memory: str = "1g"
    failpoints: str | None = None
    credentials: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)

    @property
    def warehouse_folder(self) -> str:
        """Where files go if nothing else is said: beside the embedded Postgres."""
        return str(self.data / "warehouse")

    @property
    def warehouse_root(self) -> str:
        """The default warehouse as given, or that folder."""
        return self.warehouse or self.warehouse_folder


def load(environ: Mapping[str, str], **overrides: str | None) -> Settings:
    """Settings from the environment, with command-line values on top."""
    _refuse_slips(environ)
    given = {setting.name: environ.get(setting.variable) or setting.default for setting in SETTINGS}
    given |= {name: value for name, value in overrides.items() if value is not None}
    return Settings(
        dsn=given["dsn"],
        warehouse=given["warehouse"],
        catalog=_catalog(given["catalog"] or "jdbc"),
        spark=_spark(given["spark"] or "local[*]"),
        http=_address("http", given["http"]),
        gateway=_address("gateway", given["gateway"]),
        gateway_dsn_host=given["gateway_dsn_host"],
        gateway_memory=_memory("gateway_memory", given["gateway_memory"] or "2GB"),
        gateway_threads=_count("gateway_threads", given["gateway_threads"], 1024) if given["gateway_threads"] else None,
        gateway_connections=_count("gateway_connections", given["gateway_connections"], 10_000),
        gateway_cert=Path(given["gateway_cert"]) if given["gateway_cert"] else None,
        gateway_key=Path(given["gateway_key"]) if given["gateway_key"] else None,
        load_token=given["load_token"],
        load_body_max=_bytes("load_body_max", given["load_body_max"] or "2GiB"),
        load_connections=_count("load_connections", given["load_connections"], 1000),
        rest_token=given["rest_token"],
        http_cert=Path(given["http_cert"]) if given["http_cert"] else None,
        http_key=Path(given["http_key"]) if given["http_key"] else None,
        console_password=given["console_password"],
        console_dsn=given["console_dsn"],
        log=_log(given["log"] or "text"),
        cycle_seconds=_seconds("cycle_seconds", given["cycle_seconds"]),
        worker_tables=_count("worker_tables", given["worker_tables"], 64),
        lease_seconds=_seconds("lease_seconds", given["lease_seconds"]),
        drain_seconds=_seconds("drain_seconds", given["drain_seconds"]),
        fold_rows=_count("fold_rows", given["fold_rows"], 999_999_999),
        fold_seconds=_seconds("fold_seconds", given["fold_seconds"]),
        backlog_rows=_count("backlog_rows", given["backlog_rows"], 999_999_999),
        backlog_labels=_count("backlog_labels", given["backlog_labels"], 999_999_999),
        maintain_seconds=_seconds("maintain_seconds", given["maintain_seconds"]),
        data=Path(given["data"] or "modak-data"),
        cache=Path(given["cache"]) if given["cache"] else _user_cache(environ),
        spark_memory=given["spark_memory"] or "1g",
        failpoints=given["failpoints"],
        credentials=_credentials(environ),
    )


def unknown(environ: Mapping[str, str]) -> list[str]:
    """Variables with our prefix that mean nothing here."""
    ours = (name for name in environ if name.startswith(PREFIX) and not name.startswith(CREDENTIALS_PREFIX))
    return sorted(name for name in ours if name not in _BY_VARIABLE)


def _refuse_slips(environ: Mapping[str, str]) -> None:
    for name in unknown(environ):
        near = _meant(name)
        if near is not None:
            raise UsageError(f"unknown setting {name}", hint=f"did you mean {near}? docs/reference/settings.md lists all of them")


def _meant(name: str) -> str | None:
    """What a name that is none is a slip away from. Of a short name one letter is much of it: MODAK_BIN is not meant to be MODAK_DSN."""
    if _slips(name[: len(CREDENTIALS_PREFIX)], CREDENTIALS_PREFIX) <= 2:
        return f"{CREDENTIALS_PREFIX}<REF>"
    short = name.removeprefix(PREFIX)
    near = min(_BY_VARIABLE, key=lambda known: _slips(short, known.removeprefix(PREFIX)))
    return near if _slips(short, near.removeprefix(PREFIX)) <= (1 if len(short) < LONG_NAME else 2) else None


def _slips(one: str, other: str) -> int:
    """How many letters are missing, too many, wrong, or have changed places with their neighbour."""
    before, last = list[int](), list(range(len(other) + 1))
    for row, letter in enumerate(one, start=1):
        line = [row]
        for column, wanted in enumerate(other, start=1):
            least = min(last[column] + 1, line[column - 1] + 1, last[column - 1] + (letter != wanted))
            if row > 1 and column > 1 and letter == other[column - 2] and one[row - 2] == wanted:
                least = min(least, before[column - 2] + 1)
            line.append(least)
        before, last = last, line
    return last[-1]


def _user_cache(environ: Mapping[str, str]) -> Path:
    base = environ.get("XDG_CACHE_HOME")
    if base:
        return Path(base) / "modak"
    home = environ.get("HOME")
    return (Path(home) if home else Path.home()) / ".cache" / "modak"


def _address(name: str, text: str | None) -> tuple[str, int]:
    host, _, port = (text or "").rpartition(":")
    if not host or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
        raise UsageError(f"setting {name} is not an address: {text!r}", hint="write it as host:port, for example 127.0.0.1:9090")
    return host.strip("[]"), int(port)


def _seconds(name: str, text: str | None) -> float:
    try:
        seconds = float(text or "")
    except ValueError as cause:
        raise UsageError(f"setting {name} is not a number of seconds: {text!r}") from cause
    if not 0 < seconds <= 86_400:
        raise UsageError(f"setting {name} must be above 0 and at most a day", found=text)
    return seconds


def _memory(name: str, text: str) -> str:
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]+)? ?([KMGT]i?B|%)", text):
        raise UsageError(f"setting {name} is not an amount of memory: {text!r}", hint="write it as 500MB, 4GB or 1.5GiB")
    return text


def _bytes(name: str, text: str) -> int:
    match = re.fullmatch(r"([0-9]{1,6}) ?([KMG]i?B)", text)
    if match is None or int(match[1]) == 0:
        raise UsageError(f"setting {name} is not a size: {text!r}", hint="write it as 500MB, 1GB or 2GiB")
    base = 1024 if "i" in match[2] else 1000
    return int(match[1]) * int(base ** ("KMG".index(match[2][0]) + 1))


def _count(name: str, text: str | None, most: int) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text or "") or not 1 <= int(text or "") <= most:
        raise UsageError(f"setting {name} is not a number from 1 to {most}: {text!r}")
    return int(text or "")


def _catalog(text: str) -> str:
    if re.search(r"://[^/@\s]*@", text):
        raise UsageError(
            "setting catalog holds a name or password", hint="put `token` or `credential` into the profile's MODAK_CREDENTIALS_<REF>"
        )
    if text != "jdbc" and not text.startswith(("http://", "https://")):
        raise UsageError(f"setting catalog is neither `jdbc` nor the URI of a REST catalog: {text!r}")
    return text


def _log(text: str) -> str:
    if text not in ("text", "json"):
        raise UsageError(f"setting log is neither `text` nor `json`: {text!r}")
    return text


def _spark(text: str) -> str:
    if not text.startswith(("local", "spark://", "yarn", "k8s://", "sc://")):
        raise UsageError(f"setting spark is not a Spark master: {text!r}", hint="local[*], spark://host:7077, yarn, k8s://… or sc://host")
    return text


def _credentials(environ: Mapping[str, str]) -> dict[str, dict[str, str]]:
    return {
        name.removeprefix(CREDENTIALS_PREFIX): _credential_set(name, value)
        for name, value in environ.items()
        if name.startswith(CREDENTIALS_PREFIX)
    }


def _credential_set(name: str, text: str) -> dict[str, str]:
    """JSON object, or key=value pairs separated by commas. The value itself never appears in the error."""
    try:
        pairs = json.loads(text) if text.lstrip().startswith("{") else dict(part.split("=", 1) for part in text.split(","))
        return {str(key).strip(): str(value) for key, value in pairs.items()}
    except ValueError as cause:
        raise UsageError(f"{name} cannot be read", hint='write it as key=value,key=value or as a JSON object {"key": "value"}') from cause
