"""Who may read cold rows without being anybody in particular: Postgres itself, by the password of its user mapping.

The privileges of the person behind a query were checked where the query was written, on the view. The password is made here, kept by
Postgres in the user mapping, and known to gateways by a verifier only, so that several of them can serve one database.
"""

from __future__ import annotations

import secrets

from psycopg import sql

from modak.catalog.migrate import SQL
from modak.connection import Connection
from modak.gateway.channel import Channel
from modak.gateway.wire.messages import (
    authentication_ok,
    authentication_sasl,
    authentication_sasl_continue,
    authentication_sasl_final,
    backend_key_data,
    parameter_status,
    parse_sasl_initial,
    parse_sasl_response,
)
from modak.gateway.wire.scram import MECHANISM, Exchange, Verifier
from modak.source.cold import SERVER

USER = "modak_gateway"
_GATEWAY_LOCK = 0x6D66 << 32
_STATUSES = {
    "server_version": "15.0",
    "server_encoding": "UTF8",
    "client_encoding": "UTF8",
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "integer_datetimes": "on",
    "standard_conforming_strings": "on",
    "is_superuser": "off",
}


def introduce(connection: Connection, host: str, port: int) -> Verifier | None:
    """Tell Postgres where the gateway is, and agree on a password if there is none yet. None: this Postgres cannot be written to."""
    row = connection.execute("select pg_is_in_recovery() as standby").fetchone()
    if row and row["standby"]:
        return known_verifier(connection)
    with connection.transaction():
        connection.execute("select pg_advisory_xact_lock(%s)", [_GATEWAY_LOCK])
        _set_address(connection, host, port)
        verifier = known_verifier(connection)
        mapped = connection.execute("select 1 from pg_user_mappings where srvname = %s and usename = 'public'", [SERVER]).fetchone()
        if verifier is not None and mapped:
            return verifier
        return _new_password(connection, bool(mapped))


def known_verifier(connection: Connection) -> Verifier | None:
    row = connection.execute("select verifier from modak.gateway").fetchone()
    return Verifier.parse(row["verifier"]) if row else None


def _set_address(connection: Connection, host: str, port: int) -> None:
    row = connection.execute("select srvoptions from pg_foreign_server where srvname = %s", [SERVER]).fetchone()
    options = dict(option.split("=", 1) for option in (row["srvoptions"] or [])) if row else {}
    wanted = {"host": host, "port": str(port)}
    # Only on a change: altering the server makes every session plan anew.
    for name in [name for name, value in wanted.items() if options.get(name) != value]:
        verb = sql.SQL("set" if name in options else "add")
        connection.execute(
            sql.SQL("alter server {} options ({} {} {})").format(
                sql.Identifier(SERVER), verb, sql.Identifier(name), sql.Literal(wanted[name])
            )
        )


def _new_password(connection: Connection, mapped: bool) -> Verifier:
    password = secrets.token_urlsafe(32)
    verifier = Verifier.make(password)
    if mapped:
        connection.execute(sql.SQL("drop user mapping for public server {}").format(sql.Identifier(SERVER)))
    connection.execute(
        sql.SQL("create user mapping for public server {} options (user {}, password {})").format(
            sql.Identifier(SERVER), sql.Literal(USER), sql.Literal(password)
        )
    )
    connection.execute(SQL.query("save_gateway_verifier"), {"verifier": verifier.text()})
    return verifier


async def login(channel: Channel, verifier: Verifier, pid: int, secret: bytes) -> None:
    """Check the password; a ScramError if it is wrong."""
    await channel.send(authentication_sasl([MECHANISM]))
    exchange = Exchange(verifier)
    opening = parse_sasl_initial(await channel.receive())
    await channel.send(authentication_sasl_continue(exchange.first(opening.data or b"")))
    proof = parse_sasl_response(await channel.receive())
    await channel.send(authentication_sasl_final(exchange.final(proof.data)), authentication_ok())
    await channel.send(*(parameter_status(name, value) for name, value in _STATUSES.items()), backend_key_data(pid, secret))
