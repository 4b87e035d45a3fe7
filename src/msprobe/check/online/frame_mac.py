"""The authentication code at the end of a frame. It proves that the peer knows the secret and that nobody changed the
frame.

Each connection and each direction has its own key, and the number of the frame is signed too: a frame cannot be
repeated, moved or sent back. HMAC-SHA256 is in the standard library. AES-256-GMAC is many times faster; it needs the
package `cryptography` on both sides (extra `online`). docs/security.md describes the protocol.
"""

from __future__ import annotations

import hashlib
import hmac
from functools import cache
from typing import Any, Protocol

HMAC_SHA256 = "HMAC-SHA256"
AES_GMAC = "AES-256-GMAC"


class Code(Protocol):
    """One direction of a connection: `start` a frame, `update` with its bytes, `digest` at its end."""

    size: int

    def start(self, number: int) -> None:
        """Begins a frame. A number must not be used twice."""

    def update(self, data: Any) -> None:
        """Takes any object that supports the buffer protocol."""

    def digest(self) -> bytes: ...


class FrameMac:
    """HMAC-SHA256."""

    size = 32

    def __init__(self, key: bytes) -> None:
        self._keyed = hmac.new(key, b"", hashlib.sha256)
        self._state = self._keyed.copy()

    def start(self, number: int) -> None:
        self._state = self._keyed.copy()
        self._state.update(number.to_bytes(12, "little"))

    def update(self, data: Any) -> None:
        self._state.update(data)

    def digest(self) -> bytes:
        return self._state.digest()


class FrameGmac:
    """AES-256-GCM of an empty text: the frame is what it authenticates, and the number of the frame is the nonce."""

    size = 16

    def __init__(self, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        def cipher(nonce: bytes) -> Any:
            return Cipher(algorithms.AES(key), modes.GCM(nonce)).encryptor()

        self._cipher = cipher
        self._state: Any = None

    def start(self, number: int) -> None:
        self._state = self._cipher(number.to_bytes(12, "little"))

    def update(self, data: Any) -> None:
        self._state.authenticate_additional_data(data)

    def digest(self) -> bytes:
        self._state.finalize()
        return bytes(self._state.tag)


def names() -> list[str]:
    """The codes that this installation has, the fastest first."""
    return [AES_GMAC, HMAC_SHA256] if _has_gmac() else [HMAC_SHA256]


@cache
def _has_gmac() -> bool:
    try:
        code = FrameGmac(bytes(32))
        code.start(0)
        return len(code.digest()) == code.size
    except Exception:  # it is not installed, or its library is without AES-GCM
        return False


def choose(offered: Any) -> str:
    """The code of a connection, if the peer has these. A peer of an older version offers nothing."""
    theirs = offered if isinstance(offered, list) else []
    return next((name for name in names() if name in theirs), HMAC_SHA256)


def make(name: str, key: bytes) -> Code:
    return FrameGmac(key) if name == AES_GMAC else FrameMac(key)
