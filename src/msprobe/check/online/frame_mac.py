"""The proof at the end of a frame: that it comes from who knows the key, and is as it was sent.

Two ways, both standard, and the two ends agree on one: AES-256-GMAC (NIST SP 800-38D) through the OpenSSL library that
Python itself is linked to, at the speed of memory where the processor has instructions for it; and HMAC-SHA256, which
every Python has and which is eight times slower. A key is of one connection and one direction, and the number of a
frame is its nonce: neither ever comes twice.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import hmac
from typing import Any, Optional, Protocol

import numpy as np

GMAC, SHA256 = "aes-256-gmac", "hmac-sha256"
_GET_TAG = 0x10
_MOST = 1 << 30  # the library counts in C ints
_P, _I = ctypes.c_void_p, ctypes.c_int
_FUNCTIONS = {
    "EVP_CIPHER_CTX_new": (_P, ()),
    "EVP_CIPHER_CTX_free": (None, (_P,)),
    "EVP_aes_256_gcm": (_P, ()),
    "EVP_EncryptInit_ex": (_I, (_P, _P, _P, ctypes.c_char_p, ctypes.c_char_p)),
    "EVP_EncryptUpdate": (_I, (_P, _P, _P, _P, _I)),
    "EVP_EncryptFinal_ex": (_I, (_P, _P, _P)),
    "EVP_CIPHER_CTX_ctrl": (_I, (_P, _I, _I, _P)),
}


class FrameMac(Protocol):
    """Of one direction of a connection: `start` a frame, `update` with its bytes, `digest` at its end."""

    @property
    def size(self) -> int: ...

    def start(self, number: int) -> None: ...

    def update(self, data: Any) -> None:
        """Whatever supports the buffer protocol."""

    def digest(self) -> bytes: ...


class Sha256Seal:
    size = 32

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._state = hmac.new(key, b"", hashlib.sha256)

    def start(self, number: int) -> None:
        self._state = hmac.new(self._key, number.to_bytes(12, "little"), hashlib.sha256)

    def update(self, data: Any) -> None:
        self._state.update(data)

    def digest(self) -> bytes:
        return self._state.digest()


class GmacSeal:
    size = 16

    def __init__(self, key: bytes) -> None:
        library = _library()
        if library is None:
            raise ValueError("there is no OpenSSL here to make a GMAC")
        self._library = library
        self._written = ctypes.c_int()
        self._context = _P(library.EVP_CIPHER_CTX_new())
        self._must(library.EVP_EncryptInit_ex(self._context, library.EVP_aes_256_gcm(), None, key, None))

    def __del__(self) -> None:
        if hasattr(self, "_context"):
            self._library.EVP_CIPHER_CTX_free(self._context)

    def start(self, number: int) -> None:
        nonce = number.to_bytes(12, "little")
        self._must(self._library.EVP_EncryptInit_ex(self._context, None, None, None, nonce))

    def update(self, data: Any) -> None:
        view = np.frombuffer(data, np.uint8) if len(data) else np.empty(0, np.uint8)
        address, left = view.__array_interface__["data"][0], view.nbytes
        while left:
            size = min(left, _MOST)
            self._must(self._library.EVP_EncryptUpdate(self._context, None, ctypes.byref(self._written), address, size))
            address, left = address + size, left - size

    def digest(self) -> bytes:
        tag = ctypes.create_string_buffer(self.size)
        self._must(self._library.EVP_EncryptFinal_ex(self._context, tag, ctypes.byref(self._written)))
        self._must(self._library.EVP_CIPHER_CTX_ctrl(self._context, _GET_TAG, self.size, tag))
        return tag.raw

    @staticmethod
    def _must(done: int) -> None:
        if done != 1:
            raise OSError("OpenSSL cannot make a GMAC")


_SEALS: dict[str, Any] = {GMAC: GmacSeal, SHA256: Sha256Seal}


def available() -> list[str]:
    """The names of the seals that this process can make, the quickest first."""
    return [SHA256] if _library() is None else [GMAC, SHA256]


def choose(offered: Any) -> Optional[str]:
    """The quickest that both ends can make; None where there is none."""
    names = offered if isinstance(offered, list) else []
    return next((name for name in available() if name in names), None)


def make(name: str, key: bytes) -> FrameMac:
    seal: FrameMac = _SEALS[name](key)
    return seal


@functools.lru_cache(maxsize=1)
def _library() -> Any:
    """OpenSSL's libcrypto through the module of Python that is linked to it; None where that is not to be had."""
    try:
        import _hashlib

        library = ctypes.CDLL(_hashlib.__file__)
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (ImportError, AttributeError, OSError):
        return None
    return library
