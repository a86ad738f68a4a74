"""Who may look: the password, sessions, and how often somebody may guess.

Everything is in memory and made anew by each process: a restart logs everybody out, and nothing can be stolen from a disk.
"""

from __future__ import annotations

import base64
import binascii
import enum
import hashlib
import hmac
import ipaddress
import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

SESSION_SECONDS = 12 * 3600
SESSIONS_MAX = 200
PASSWORD_CHARACTERS_MAX = 1000
# Wrong passwords within a minute: of one address, and of all together.
_WINDOW_SECONDS = 60.0
_FAILURES_PER_ADDRESS = 5
_FAILURES_MAX = 50
_ADDRESSES_MAX = 1000


class Access(enum.Enum):
    """What the console is for whoever comes, decided when the server starts."""

    GUARDED = "guarded"  # a password is set: everything, after logging in
    OPEN = "open"  # none, and only this machine can come: everything that only shows
    OFF = "off"  # none, and others could come: nothing


def access(password: str | None, host: str) -> Access:
    if password:
        return Access.GUARDED
    return Access.OPEN if is_loopback(host) else Access.OFF


def is_loopback(host: str) -> bool:
    """An address that only this machine reaches, or the name that stands for one."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def names_loopback(host_header: str) -> bool:
    """Of a request's Host. A page of somebody else whose name was bent to this machine has a Host of its own."""
    host = host_header.strip()
    if host.startswith("["):
        return is_loopback(host[1:].partition("]")[0])
    return is_loopback(host.rpartition(":")[0] if ":" in host else host)


@dataclass(frozen=True)
class Session:
    """``form_token`` stands in every form, so that no other site can send one."""

    token: str = field(repr=False)
    form_token: str = field(repr=False)
    expires_at: float = 0.0


class Sessions:
    """By the digest of their token: comparing takes the same time whatever was guessed."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sessions: dict[bytes, Session] = {}

    def open(self) -> Session:
        self._forget_old()
        if len(self._sessions) >= SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]
        made = Session(secrets.token_urlsafe(32), secrets.token_urlsafe(32), self._clock() + SESSION_SECONDS)
        self._sessions[_digest(made.token)] = made
        return made

    def find(self, token: str) -> Session | None:
        found = self._sessions.get(_digest(token))
        return found if found is not None and found.expires_at > self._clock() else None

    def close(self, token: str) -> None:
        self._sessions.pop(_digest(token), None)

    def _forget_old(self) -> None:
        now = self._clock()
        for key in [key for key, session in self._sessions.items() if session.expires_at <= now]:
            del self._sessions[key]


class Throttle:
    """Counts wrong passwords; ``wait`` is how many seconds an address has to wait, 0 when it may try."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._by_address: dict[str, deque[float]] = {}
        self._all: deque[float] = deque(maxlen=_FAILURES_MAX)

    def wait(self, address: str) -> int:
        start = self._clock() - _WINDOW_SECONDS
        own = [at for at in self._by_address.get(address, ()) if at > start]
        everybody = [at for at in self._all if at > start]
        if len(own) < _FAILURES_PER_ADDRESS and len(everybody) < _FAILURES_MAX:
            return 0
        oldest = own[0] if len(own) >= _FAILURES_PER_ADDRESS else everybody[0]
        return max(1, round(oldest - start))

    def failed(self, address: str) -> None:
        now = self._clock()
        if address not in self._by_address and len(self._by_address) >= _ADDRESSES_MAX:
            del self._by_address[next(iter(self._by_address))]
        self._by_address.setdefault(address, deque(maxlen=_FAILURES_PER_ADDRESS)).append(now)
        self._all.append(now)

    def succeeded(self, address: str) -> None:
        self._by_address.pop(address, None)


def is_password(given: str, password: str) -> bool:
    """In constant time, whatever their lengths."""
    return hmac.compare_digest(_digest(given[: PASSWORD_CHARACTERS_MAX + 1]), _digest(password))


def basic_password(header: str) -> str | None:
    """The password of an Authorization header of the kind Basic; the name before it may be anything."""
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        _, separator, password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return None
    return password if separator else None


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
