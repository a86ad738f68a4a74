"""What Postgres knows of its gateway: where it is, by which password to log in there, and whether it is there at all.

The password is made by Postgres, kept in the user mapping, and known to gateways by a verifier only, so that several of them can
serve one database. While a gateway is there Postgres asks it for estimates when it plans; while it is away Postgres must not, because
plans that never touch cold rows would fail for want of an estimate of them (decision 0020).
"""

from __future__ import annotations

from dataclasses import dataclass

from psycopg import sql

from modak.catalog.migrate import SQL
from modak.connection import Connection
from modak.gateway.fdw.login import USER
from modak.gateway.wire.scram import Verifier
from modak.source.cold import SERVER

_GATEWAY_LOCK = 0x6D66 << 32
_LOCK_TIMEOUT = "10s"


@dataclass(frozen=True)
class Presence:
    """``since`` tells this stay of a gateway from every other; None where this Postgres cannot be written to."""

    verifier: Verifier | None
    since: str | None


def announce(connection: Connection, host: str, port: int, *, new_password: bool = False) -> Presence:
    """Tell Postgres where the gateway is and that it is there, and agree on a password if there is none yet, or on another one."""
    row = connection.execute("select pg_is_in_recovery() as standby").fetchone()
    if row and row["standby"]:
        return Presence(known_verifier(connection), None)
    with connection.transaction():
        _lock(connection)
        _set_options(connection, {"host": host, "port": str(port), "use_remote_estimate": "true"})
        verifier = known_verifier(connection)
        mapped = connection.execute("select 1 from pg_user_mappings where srvname = %s and usename = 'public'", [SERVER]).fetchone()
        if verifier is None or not mapped or new_password:
            verifier = _new_password(connection)
        return Presence(verifier, _mark(connection))


def depart(connection: Connection, since: str) -> bool:
    """Tell Postgres that the gateway went; False if another one has come since."""
    with connection.transaction():
        _lock(connection)
        row = connection.execute("select updated_at::text as since from modak.gateway").fetchone()
        if row is None or row["since"] != since:
            return False
        _set_options(connection, {"use_remote_estimate": "false"})
        return True


def known_verifier(connection: Connection) -> Verifier | None:
    row = connection.execute("select verifier from modak.gateway").fetchone()
    return Verifier.parse(row["verifier"]) if row else None


def _lock(connection: Connection) -> None:
    connection.execute("select set_config('lock_timeout', %s, true)", [_LOCK_TIMEOUT])
    connection.execute("select pg_advisory_xact_lock(%s)", [_GATEWAY_LOCK])


def _mark(connection: Connection) -> str:
    row = connection.execute("update modak.gateway set updated_at = clock_timestamp() returning updated_at::text as since").fetchone()
    assert row is not None
    return str(row["since"])


def _set_options(connection: Connection, wanted: dict[str, str]) -> None:
    row = connection.execute("select srvoptions from pg_foreign_server where srvname = %s", [SERVER]).fetchone()
    options = dict(option.split("=", 1) for option in (row["srvoptions"] or [])) if row else {}
    # Only on a change: altering the server makes every session plan anew.
    for name in [name for name, value in wanted.items() if options.get(name) != value]:
        verb = sql.SQL("set" if name in options else "add")
        connection.execute(
            sql.SQL("alter server {} options ({} {} {})").format(
                sql.Identifier(SERVER), verb, sql.Identifier(name), sql.Literal(wanted[name])
            )
        )


def _new_password(connection: Connection) -> Verifier:
    """Made inside Postgres, where no log of statements and no statistics of them see it."""
    row = connection.execute("select modak.new_gateway_password(%s) as password", [USER]).fetchone()
    assert row is not None
    verifier = Verifier.make(str(row["password"]))
    connection.execute(SQL.query("save_gateway_verifier"), {"verifier": verifier.text()})
    return verifier
