"""The authentication code at the end of a frame. It proves that the peer knows the secret and that nobody changed the
frame.

HMAC-SHA256 from the standard library. Each connection and each direction has its own key, and the number of the frame
is signed too: a frame cannot be repeated, moved or sent back. docs/security.md describes the protocol.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

NAME = "HMAC-SHA256"


class FrameMac:
    """One direction of a connection: `start` a frame, `update` with its bytes, `digest` at its end."""

    size = 32

    def __init__(self, key: bytes) -> None:
        self._keyed = hmac.new(key, b"", hashlib.sha256)
        self._state = self._keyed.copy()

    def start(self, number: int) -> None:
        self._state = self._keyed.copy()
        self._state.update(number.to_bytes(12, "little"))

    def update(self, data: Any) -> None:
        """Takes any object that supports the buffer protocol."""
        self._state.update(data)

    def digest(self) -> bytes:
        return self._state.digest()
