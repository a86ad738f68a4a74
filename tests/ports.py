"""Free loopback ports."""

from __future__ import annotations

import contextlib
import random
import socket


def free_ports(count: int, *, companions: int = 0) -> list[int]:
    """Ports nobody listens on. ``companions``: a server takes a second port so much above its own, and both must be free."""
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(20_000, 40_000)
        if port not in found and _is_free(port) and (not companions or _is_free(port + companions)):
            found.append(port)
    return found


def _is_free(port: int) -> bool:
    with contextlib.closing(socket.socket()) as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
