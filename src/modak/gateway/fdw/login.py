"""Who may read cold rows without being anybody in particular: Postgres itself, by the password of its user mapping.

The privileges of the person behind a query were checked where the query was written, on the view.
"""

from __future__ import annotations

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

USER = "modak_gateway"
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


async def login(channel: Channel, verifier: Verifier, pid: int, secret: bytes) -> None:
    """Check the password; a ScramError if it is wrong."""
    await channel.send(authentication_sasl([MECHANISM]))
    exchange = Exchange(verifier)
    opening = parse_sasl_initial(await channel.receive())
    await channel.send(authentication_sasl_continue(exchange.first(opening.data or b"")))
    proof = parse_sasl_response(await channel.receive())
    await channel.send(authentication_sasl_final(exchange.final(proof.data)), authentication_ok())
    await channel.send(*(parameter_status(name, value) for name, value in _STATUSES.items()), backend_key_data(pid, secret))
