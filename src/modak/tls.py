"""TLS of our servers: one way to read a certificate, and one way to say that it cannot be used."""

from __future__ import annotations

import ssl
from pathlib import Path

from modak.errors import UsageError


def tls_context(certificate: Path | None, key: Path | None, prefix: str) -> ssl.SSLContext | None:
    """None without a certificate. ``prefix`` names the settings, for the error."""
    if certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as cause:
        raise UsageError(f"the certificate cannot be used: {cause}", hint=f"{prefix}_CERT and {prefix}_KEY") from cause
    return context
