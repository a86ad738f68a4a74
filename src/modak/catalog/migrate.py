"""Install or upgrade the catalog.

Migrations are append-only and checksummed: a database remembers what it was given, so a program that carries another
text under the same number is refused. Functions and views are replaced whenever their text changes.
Everything runs in one transaction under an advisory lock: two migrations at once, or one killed half-way, leave one result.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

import psycopg

from modak import __version__
from modak.connection import Connection
from modak.errors import CatalogError, CatalogMissing, CatalogNewer, MigrationChanged
from modak.failpoints import failpoint
from modak.sqlfiles import SqlFiles, trusted

SQL = SqlFiles("modak.catalog")

# Any constant will do as long as every Modak uses the same one: "modak" in ASCII.
MIGRATION_LOCK = 0x6D6F64616B

_NUMBERED = re.compile(r"^(\d{4})_(\w+)\.sql$")


@dataclass(frozen=True)
class Migration:
    version: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True)
class Outcome:
    """What a run of ``migrate`` did."""

    version: int
    applied: tuple[str, ...]
    routines_replaced: bool
    roles_missing: tuple[str, ...] = ()


def migrations() -> list[Migration]:
    found = []
    for file_name, text in SQL.folder("migrations"):
        match = _NUMBERED.match(file_name)
        if match is None:
            raise ValueError(f"migration file {file_name} is not named NNNN_name.sql")
        found.append(Migration(int(match[1]), match[2], text))
    if [migration.version for migration in found] != list(range(1, len(found) + 1)):
        raise ValueError("migrations must be numbered from 1 without a gap")
    return found


def routines() -> str:
    """Functions, then views that use them, as one script."""
    return "\n".join(text for folder in ("functions", "views") for _, text in SQL.folder(folder))


def routines_checksum() -> str:
    return hashlib.sha256(routines().encode()).hexdigest()


def current_version() -> int:
    return len(migrations())


def migrate(connection: Connection, *, upto: int | None = None) -> Outcome:
    """Bring the database to this program's version (or to ``upto``, for tests of upgrades)."""
    try:
        with connection.transaction():
            return _migrate(connection, upto or current_version())
    except psycopg.errors.InsufficientPrivilege as cause:
        raise CatalogError(
            f"this role may not install the catalog: {cause.diag.message_primary}",
            hint="run `modak migrate` as a role that may create schemas and use postgres_fdw (docs/guides/managed-postgres.md "
            "has the grants), or pipe `modak migrate --print` to one",
        ) from cause


def prepare(connection: Connection) -> Outcome | None:
    """For daemons, at their start: a catalog that is missing or older than this program is brought up to date, and any other left alone.

    Of several that start at once, one does it and the others wait for it.
    """
    try:
        require_current(connection)
    except CatalogMissing as missing:
        try:
            return migrate(connection)
        except psycopg.errors.ReadOnlySqlTransaction as cause:
            raise CatalogMissing(missing.message, hint="this server only reads: run `modak migrate` on its primary") from cause
    return None


def _migrate(connection: Connection, upto: int) -> Outcome:
    connection.execute("select pg_advisory_xact_lock(%s)", [MIGRATION_LOCK])
    if installed_version(connection) is None:
        connection.execute(trusted(SQL.text("bootstrap.sql")))
    _check_history(connection)
    done = {row["version"] for row in connection.execute(SQL.query("list_migrations")).fetchall()}
    pending = [migration for migration in migrations() if migration.version not in done and migration.version <= upto]
    for migration in pending:
        connection.execute(trusted(migration.text))
        connection.execute(SQL.query("record_migration"), vars(migration) | {"checksum": migration.checksum})
        failpoint("migrate.after_migration")
    replaced = upto == current_version() and _replace_routines(connection, upto)
    if not replaced and upto != current_version():
        # Half-way there are no routines: they are written for the whole catalog.
        connection.execute(SQL.query("write_schema_meta"), {"version": upto, "program": __version__, "routines_checksum": ""})
    missing = _set_up_roles(connection) if upto == current_version() else ()
    return Outcome(upto, tuple(f"{migration.version:04}_{migration.name}" for migration in pending), replaced, missing)


def _set_up_roles(connection: Connection) -> tuple[str, ...]:
    """Also where nothing else is new: somebody may have made the roles that were missing."""
    row = connection.execute("select modak.set_up_roles() as missing").fetchone()
    return tuple(row["missing"]) if row else ()


def _check_history(connection: Connection) -> None:
    known = {migration.version: migration for migration in migrations()}
    for row in connection.execute(SQL.query("list_migrations")).fetchall():
        migration = known.get(row["version"])
        if migration is None:
            raise _newer(row["version"])
        if migration.checksum != row["checksum"]:
            raise MigrationChanged(
                f"migration {row['version']:04} ({row['name']}) was applied with another text than this program carries",
                hint="install the Modak release that migrated this database; never edit an applied migration",
            )


def _newer(found: int) -> CatalogNewer:
    return CatalogNewer(
        f"the database's catalog has version {found}, this program knows {current_version()}",
        hint="upgrade Modak on this machine; a newer catalog is never touched by an older program",
    )


def _replace_routines(connection: Connection, version: int) -> bool:
    row = connection.execute(SQL.query("read_schema_meta")).fetchone()
    fresh = {"version": version, "program": __version__, "routines_checksum": routines_checksum()}
    if row == fresh:
        return False
    replaced = row is None or row["routines_checksum"] != fresh["routines_checksum"] or row["version"] != version
    if replaced:
        # Functions may call each other; their bodies are checked by tests, not by the order of files.
        connection.execute("set local check_function_bodies = off")
        connection.execute("set local client_min_messages = warning")
        connection.execute(trusted(routines()))
    connection.execute(SQL.query("write_schema_meta"), fresh)
    return replaced


def installed_version(connection: Connection) -> int | None:
    """The catalog's version, None without a catalog, 0 for one that is being installed right now."""
    row = connection.execute("select to_regclass('modak.schema_meta') is not null as there").fetchone()
    if row is None or not row["there"]:
        return None
    meta = connection.execute(SQL.query("read_schema_meta")).fetchone()
    return int(meta["version"]) if meta else 0


def require_current(connection: Connection) -> None:
    """Refuse to work on a database without a catalog, or with one of another version."""
    try:
        installed = installed_version(connection)
    except psycopg.errors.InsufficientPrivilege as cause:
        raise CatalogError(
            f"this role may not read the catalog: {cause.diag.message_primary}",
            hint="connect as the role that ran `modak migrate`, or as a superuser",
        ) from cause
    if installed is None:
        raise CatalogMissing("this database has no Modak catalog", hint="run `modak migrate`")
    if installed > current_version():
        raise _newer(installed)
    if installed < current_version():
        raise CatalogMissing(f"the catalog has version {installed}, this program needs {current_version()}", hint="run `modak migrate`")


def script() -> str:
    """Everything as one SQL script for a database without a catalog, for people who apply changes by hand."""
    lines = [f"-- Modak {__version__}: the catalog, version {current_version()}.", "begin;"]
    lines += [
        f"select pg_advisory_xact_lock({MIGRATION_LOCK});",
        "set local check_function_bodies = off;",
        SQL.text("bootstrap.sql"),
    ]
    for migration in migrations():
        lines += [
            migration.text,
            "insert into modak.schema_migrations (version, name, checksum)"
            f" values ({migration.version}, '{migration.name}', '{migration.checksum}');",
        ]
    lines += [
        routines(),
        "insert into modak.schema_meta (version, program, routines_checksum)"
        f" values ({current_version()}, '{__version__}', '{routines_checksum()}');",
        "select modak.set_up_roles();",
        "commit;",
    ]
    return "\n".join(lines) + "\n"
