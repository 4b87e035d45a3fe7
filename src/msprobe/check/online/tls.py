"""Mutual TLS for the online check: both sides show a certificate of the same authority, or neither side uses TLS."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from typing import Optional, Union

from msprobe.check.online import frame_mac
from msprobe.dump.errors import DumpError

Place = Optional[Union[str, Path]]
_KEYS = ("tls_cert", "tls_key", "tls_ca")


def server_context(cert: Place, key: Place, authority: Place) -> Optional[ssl.SSLContext]:
    """The TLS context of the checker; None without TLS."""
    return _context(ssl.Purpose.CLIENT_AUTH, cert, key, authority)


def client_context(cert: Place, key: Place, authority: Place) -> Optional[ssl.SSLContext]:
    """The TLS context of the sender; None without TLS."""
    return _context(ssl.Purpose.SERVER_AUTH, cert, key, authority)


def describe(used: Union[bool, socket.socket], code: Optional[str] = None) -> str:
    """How frames are protected, in general or on one connection with this code, for the log."""
    signed = f"frames are signed with {code or ' or '.join(frame_mac.names())}"
    if isinstance(used, ssl.SSLSocket):
        return f"encrypted with {used.version()}, {signed}"
    if used is True:
        return f"encrypted with mutual TLS, {signed}"
    return f"not encrypted, {signed}"


def _context(purpose: ssl.Purpose, cert: Place, key: Place, authority: Place) -> Optional[ssl.SSLContext]:
    given = dict(zip(_KEYS, (cert, key, authority)))
    missing = [name for name, value in given.items() if value is None]
    if len(missing) == len(given):
        return None
    if missing:
        raise DumpError(f"TLS needs tls_cert, tls_key and tls_ca on both sides; {' and '.join(missing)} is missing.")
    assert cert is not None
    try:
        context = ssl.create_default_context(purpose, cafile=authority)
        context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise DumpError(f"The TLS files cannot be used: {error}.") from None
    context.verify_mode = ssl.CERT_REQUIRED
    return context
