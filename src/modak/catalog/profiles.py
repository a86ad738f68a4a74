"""Storage profiles: named warehouses, exactly one of them the default."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from modak.catalog.migrate import SQL
from modak.connection import Connection
from modak.core.profile import Profile
from modak.errors import NotFound, Problem, Refused

# The same words as in the constraint lake_config_holds_no_secret, which guards rows that others write.
_SECRET = re.compile(
    r"secret|passw|passphrase|token|credential|authorization|connection[-_.]?string|(access|account|private|api|shared)[-_.]?key", re.I
)
_PASSWORD_IN_URI = re.compile(r"://[^/@\s]*:[^/@\s]*@")
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_REFERENCE = re.compile(r"[A-Z0-9_]{1,63}")


def _from_row(row: Mapping[str, Any]) -> Profile:
    return Profile(
        row["profile_name"], row["warehouse"], row["lake_config"], row["credential_ref"], row["is_default"], row.get("tables", 0)
    )


def listing(connection: Connection) -> list[Profile]:
    return [_from_row(row) for row in connection.execute(SQL.query("list_profiles")).fetchall()]


def get(connection: Connection, name: str | None) -> Profile:
    """A profile by name; None asks for the default."""
    if name is None:
        row = connection.execute(SQL.query("find_default_profile")).fetchone()
    else:
        row = connection.execute(SQL.query("find_profile"), {"profile_name": name}).fetchone()
    if row is None:
        known = ", ".join(profile.name for profile in listing(connection))
        raise NotFound(f"there is no storage profile {name or '(default)'}", hint=f"known: {known}; `modak profile set` makes one")
    return _from_row(row)


def stored_credentials(connection: Connection) -> dict[str, str]:
    """What modak.set_storage_secret was given; nothing for roles that may not know it."""
    try:
        with connection.transaction():
            row = connection.execute(SQL.query("read_storage_secret")).fetchone()
    except psycopg.errors.InsufficientPrivilege:
        return {}
    return {"s3.access-key-id": row["key"], "s3.secret-access-key": row["secret"]} if row else {}


def save(connection: Connection, profile: Profile) -> None:
    _check(profile)
    values = {
        "profile_name": profile.name,
        "warehouse": profile.warehouse,
        "lake_config": Jsonb(dict(profile.lake_config)),
        "credential_ref": profile.credential_ref,
        "is_default": profile.is_default,
    }
    try:
        with connection.transaction():
            if profile.is_default:
                connection.execute(SQL.query("clear_default_profile"), values)
            connection.execute(SQL.query("upsert_profile"), values)
            # The constraint that one default must stay is checked at commit; ask now, so that the error has a place.
            connection.execute("set constraints all immediate")
    except psycopg.errors.CheckViolation as cause:
        raise Refused(f"profile {profile.name!r}: {cause.diag.message_primary}", hint=cause.diag.message_hint) from cause


def _check(profile: Profile) -> None:
    problems = []
    if not _NAME.fullmatch(profile.name):
        problems.append(Problem("name", f"profile name {profile.name!r} is not made of lower case letters, digits, _ and -"))
    if profile.credential_ref is not None and not _REFERENCE.fullmatch(profile.credential_ref):
        problems.append(Problem("credentials", f"credentials {profile.credential_ref!r} are no name of capitals, digits and _"))
    hint = "secrets stay in the environment: use --credentials REF and MODAK_CREDENTIALS_<REF>"
    problems += [Problem("secret", f"{key} looks like a secret", hint) for key in profile.lake_config if _SECRET.search(key)]
    uris = {"warehouse": profile.warehouse, **profile.lake_config}
    problems += [Problem("secret", f"{key} holds a password", hint) for key, value in uris.items() if _PASSWORD_IN_URI.search(value)]
    if problems:
        raise Refused(f"profile {profile.name!r} was not saved", problems, hint="nothing was changed")


def drop(connection: Connection, name: str) -> bool:
    """Remove a profile that nothing uses; False if there is none of that name."""
    profile = next((known for known in listing(connection) if known.name == name), None)
    if profile is None:
        return False
    if profile.is_default or profile.tables:
        reason = "is the default" if profile.is_default else f"holds {profile.tables} tables"
        raise Refused(f"profile {name} {reason} and stays", hint="make another one the default, or unregister its tables first")
    connection.execute(SQL.query("delete_profile"), {"profile_name": name})
    return True
