"""The server's side of SCRAM-SHA-256 (RFC 5802, RFC 7677), with Postgres's verifiers and Postgres's reading of the rules."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
import stringprep
import unicodedata
from dataclasses import dataclass, field
from typing import Final, Self

from modak.errors import ModakError, UsageError
from modak.gateway.wire.codec import ProtocolError

MECHANISM: Final = "SCRAM-SHA-256"
ITERATIONS: Final = 4096
_SALT_BYTES: Final = 16
_NONCE_BYTES: Final = 18
_KEY_BYTES: Final = hashlib.sha256().digest_size
# Visible ASCII without the comma, which separates attributes.
_NONCE = re.compile(r"[\x21-\x2b\x2d-\x7e]+")
_VERIFIER = re.compile(r"SCRAM-SHA-256\$([1-9][0-9]{0,8}):([^$:]+)\$([^$:]+):([^$:]+)")


class ScramError(ModakError):
    """The client does not know the password, or there is no such user; which of the two is not said."""

    code = "authentication_failed"
    sqlstate = "28P01"


@dataclass(frozen=True)
class Verifier:
    """What a server keeps in place of a password: enough to check a proof, not enough to make one."""

    salt: bytes = field(repr=False)
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    @classmethod
    def parse(cls, text: str) -> Self:
        """The form of pg_authid.rolpassword."""
        found = _VERIFIER.fullmatch(text)
        try:
            if not found:
                raise ValueError("shape")
            salt, stored, server = (base64.b64decode(part, validate=True) for part in found.groups()[1:])
            if len(stored) != _KEY_BYTES or len(server) != _KEY_BYTES:
                raise ValueError("key length")
        except ValueError as cause:
            # The text is a secret, or a password put in the wrong place: the error does not repeat it.
            hint = "take rolpassword from pg_authid, or make one from the password"
            raise UsageError("not a SCRAM-SHA-256 verifier", hint=hint) from cause
        return cls(salt, int(found[1]), stored, server)

    @classmethod
    def make(cls, password: str, iterations: int = ITERATIONS, *, salt: bytes | None = None) -> Self:
        salt = secrets.token_bytes(_SALT_BYTES) if salt is None else salt
        salted = hashlib.pbkdf2_hmac("sha256", _prepared(password), salt, iterations)
        client_key = _hmac(salted, b"Client Key")
        return cls(salt, iterations, hashlib.sha256(client_key).digest(), _hmac(salted, b"Server Key"))

    @classmethod
    def mock(cls, user: str, secret: bytes, iterations: int = ITERATIONS) -> Self:
        """For a user that does not exist. No proof fits it, and it costs what a real one costs.

        ``secret`` is the gateway's own and lasts while it runs: a salt that changed between two attempts would give the secret away.
        ``iterations`` should be what the real users have.
        """

        def derived(purpose: bytes) -> bytes:
            return _hmac(secret, purpose + b"\0" + user.encode(errors="surrogateescape"))

        return cls(derived(b"salt")[:_SALT_BYTES], iterations, derived(b"stored"), derived(b"server"))

    def text(self) -> str:
        return f"{MECHANISM}${self.iterations}:{_b64(self.salt)}${_b64(self.stored_key)}:{_b64(self.server_key)}"


class Exchange:
    """One authentication: ``first`` and then ``final``, each once. Anything malformed or out of order is a ProtocolError."""

    def __init__(self, verifier: Verifier, *, server_nonce: str | None = None) -> None:
        self._verifier = verifier
        self._server_nonce = secrets.token_urlsafe(_NONCE_BYTES) if server_nonce is None else server_nonce
        self._header = ""
        self._nonce = ""
        self._opening = ""

    def first(self, client_first: bytes) -> bytes:
        """client-first-message in, server-first-message out."""
        if self._opening:
            raise ProtocolError("a second SCRAM opening")
        self._header, bare = _split_header(_decoded(client_first, "client-first"))
        attributes = bare.split(",")
        if attributes[0].startswith("m="):
            raise ProtocolError("client requires an unsupported SCRAM extension")
        # The name in here is not looked at (libpq leaves it empty): the start-up packet has said who it is.
        if len(attributes) < 2 or not attributes[0].startswith("n="):
            raise ProtocolError("malformed SCRAM client-first message")
        nonce = _value(attributes[1], "r")
        if not _NONCE.fullmatch(nonce):
            raise ProtocolError("SCRAM nonce with characters that are not allowed")
        self._nonce = nonce + self._server_nonce
        reply = f"r={self._nonce},s={_b64(self._verifier.salt)},i={self._verifier.iterations}"
        self._opening = f"{bare},{reply}"
        return reply.encode()

    def final(self, client_final: bytes) -> bytes:
        """client-final-message in, server-final-message out; a ScramError if the proof is wrong."""
        if not self._opening:
            raise ProtocolError("a SCRAM proof without an opening")
        without_proof, _, proof_attribute = _decoded(client_final, "client-final").rpartition(",")
        proof = _bytes_of(_value(proof_attribute, "p"))
        attributes = without_proof.split(",")
        if len(attributes) < 2:
            raise ProtocolError("malformed SCRAM client-final message")
        # The header comes again under the proof's protection, so that nobody in between can have changed it.
        if _bytes_of(_value(attributes[0], "c")) != self._header.encode():
            raise ProtocolError("SCRAM channel binding does not match the opening")
        if not hmac.compare_digest(_value(attributes[1], "r"), self._nonce):
            raise ProtocolError("SCRAM nonce does not match")
        signed = f"{self._opening},{without_proof}".encode()
        self._opening = ""
        self._check(proof, signed)
        return f"v={_b64(_hmac(self._verifier.server_key, signed))}".encode()

    def _check(self, proof: bytes, signed: bytes) -> None:
        if len(proof) != _KEY_BYTES:
            raise ProtocolError("malformed SCRAM proof")
        signature = _hmac(self._verifier.stored_key, signed)
        client_key = bytes(one ^ other for one, other in zip(proof, signature, strict=True))
        if not hmac.compare_digest(hashlib.sha256(client_key).digest(), self._verifier.stored_key):
            raise ScramError("password authentication failed")


def _split_header(message: str) -> tuple[str, str]:
    """The GS2 header with its last comma, and the bare message.

    ``y`` is a client that could bind to the channel and saw no offer to; it is right, as only the plain mechanism is offered.
    """
    flag, comma, rest = message.partition(",")
    if flag.startswith("p="):
        raise ProtocolError("channel binding is not supported", hint="connect with channel_binding=disable or prefer")
    if flag not in ("n", "y") or not comma:
        raise ProtocolError("malformed SCRAM header")
    identity, comma, bare = rest.partition(",")
    if identity:
        raise ProtocolError("client uses a SCRAM authorization identity, which is not supported")
    if not comma:
        raise ProtocolError("malformed SCRAM header")
    return f"{flag},,", bare


def _decoded(message: bytes, what: str) -> str:
    # A user name may be UTF-8; every byte must come back in the signed text as it was.
    if b"\0" in message:
        raise ProtocolError(f"malformed SCRAM {what} message")
    try:
        return message.decode()
    except UnicodeDecodeError as cause:
        raise ProtocolError(f"malformed SCRAM {what} message") from cause


def _value(attribute: str, letter: str) -> str:
    if not attribute.startswith(f"{letter}="):
        raise ProtocolError(f"malformed SCRAM message: attribute {letter} expected")
    return attribute[2:]


def _bytes_of(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as cause:
        raise ProtocolError("malformed base64 in a SCRAM message") from cause


def _b64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _hmac(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "sha256")


_PROHIBITED: Final = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
    stringprep.in_table_a1,  # unassigned in Unicode 3.2
)


def _prepared(password: str) -> bytes:
    """SASLprep; a password that it forbids is taken as it stands, which is what both libpq and Postgres do."""
    raw = password.encode()
    if password.isascii():
        return raw
    prepared = unicodedata.normalize("NFKC", "".join(map(_mapped, password)))
    forbidden = any(table(char) for char in prepared for table in _PROHIBITED)
    return raw if not prepared or forbidden or _mixed_directions(prepared) else prepared.encode()


def _mapped(char: str) -> str:
    # The zero-width space is in both tables; to Postgres it is a space.
    if stringprep.in_table_c12(char):
        return " "
    return "" if stringprep.in_table_b1(char) else char


def _mixed_directions(text: str) -> bool:
    right_to_left = [stringprep.in_table_d1(char) for char in text]
    if not any(right_to_left):
        return False
    return any(map(stringprep.in_table_d2, text)) or not (right_to_left[0] and right_to_left[-1])
