"""A login for the console's SQL page that may only read, for machines on which nobody made one."""

from __future__ import annotations

import hashlib
import secrets

from psycopg import conninfo

from modak.catalog.migrate import SQL
from modak.connection import Connection
from modak.errors import CatalogError

_ROUNDS = 200_000


def make(connection: Connection, secret: str | None = None) -> str:
    """What has to be said to log in, without host and port: those are the worker's own. The password comes from the secret, so that all
    workers who know it make the same one; without a secret it is another one each time."""
    if secret is None:
        password = secrets.token_urlsafe(24)
    else:
        password = hashlib.pbkdf2_hmac("sha256", secret.encode(), b"modak console login", _ROUNDS).hex()
    # Encrypted here: a server that logs statements would write the password down.
    verifier = connection.pgconn.encrypt_password(password.encode(), b"-", b"scram-sha-256").decode()
    row = connection.execute(SQL.query("make_console_login"), {"verifier": verifier}).fetchone()
    if row is None:
        raise CatalogError("no login for the console was made", hint="set MODAK_CONSOLE_DSN to a role that may only read")
    return conninfo.make_conninfo("", user=row["login"], password=password)
