"""The frames between a training run and its checker: typed, numbered, with a checked length and a code.

A frame is a header of 24 bytes (magic, version, kind, number, length), its body, and a code over both (`frame_mac.py`).
Until the peer has proved that it knows the secret, a frame has at most 64 kB and a deadline. Nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import socket
import ssl
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

from msprobe.check.online import frame_mac
from msprobe.dump.errors import DumpError

HEAD = struct.Struct("<4sBBHQQ")
MAGIC, VERSION = b"MSPF", 3
HELLO, PROOF, WELCOME, CALL, DONE, END = range(1, 7)
PROOF_BYTES = 32
SMALL = 1024
WELCOME_LIMIT = 64 << 10
LARGEST = 16 << 30
LARGEST_JSON = 64 << 20
CHUNK = 1 << 20
AHEAD = 4096
PIECE = 512 << 10  # piece of a file: it stays in the cache while it is signed and sent
SMALL_FILE = 16 << 10
HANDSHAKE_SECONDS = 10.0


class Refused(Exception):
    """The peer violated the protocol, or could not prove that it knows the secret."""


class Session(NamedTuple):
    """One training process, for as long as it lives, over any number of connections."""

    name: str
    rank: int


class Greeting(NamedTuple):
    """The session of the peer, the bytes of the handshake that both sides have seen, and the code of their frames."""

    session: Session
    seen: bytes
    code: str


def read_secret(path: Optional[Path]) -> bytes:
    """The shared secret. Raises DumpError if users other than the owner and the group can read the file."""
    if path is None:
        raise DumpError("The online check over TCP needs secret_file on both sides: a file with at least 16 bytes.")
    try:
        secret = path.read_bytes().strip()
        mode = path.stat().st_mode
    except OSError as error:
        raise DumpError(f"secret_file {path} cannot be read: {error.strerror or error}.") from None
    if mode & 0o007:
        raise DumpError(
            f"secret_file {path} can be read by every user of this machine: chmod 600 it, and change the secret."
        )
    if not 16 <= len(secret) <= 4096:
        raise DumpError(f"secret_file {path} must hold 16 to 4096 bytes, not {len(secret)}.")
    return secret


class Channel:
    """One end of a connection. `deadline` applies until the peer has proved that it knows the secret."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._more = 0 if isinstance(sock, ssl.SSLSocket) else getattr(socket, "MSG_MORE", 0)
        self._out: Optional[frame_mac.Code] = None
        self._in: Optional[frame_mac.Code] = None
        self.code = frame_mac.HMAC_SHA256
        self._sent = self._received = 0
        self._buffer = memoryview(bytearray(PIECE))
        self._ahead = b""  # bytes that were read ahead
        self._deadline: Optional[float] = time.monotonic() + HANDSHAKE_SECONDS

    def close(self) -> None:
        self._socket.close()

    # The handshake.

    def greet(self, secret: bytes, session: Session) -> dict[str, Any]:
        """The sender's part of the handshake. Returns the checker's wishes; raises Refused if the checker cannot prove
        itself."""
        theirs = self._expect(HELLO)
        if len(theirs) != 32:  # otherwise its end could be taken for the beginning of the next part of `seen`
            raise Refused("it does not speak this protocol")
        ours = os.urandom(32)
        about = {"session": session.name, "rank": session.rank, "codes": frame_mac.names()}
        about_us = json.dumps(about).encode()
        seen = theirs + ours + about_us
        self.send(PROOF, ours + _proof(secret, b"sender", seen) + about_us)
        answer = self._expect(WELCOME, WELCOME_LIMIT)
        seen += answer[PROOF_BYTES:]
        if not hmac.compare_digest(answer[:PROOF_BYTES], _proof(secret, b"checker", seen)):
            raise Refused("the checker does not know the secret")
        wishes = read_object(answer[PROOF_BYTES:])
        code = wishes.get("code", frame_mac.HMAC_SHA256)
        if code not in frame_mac.names():
            raise Refused("it wants a code of frames that was not offered")
        self._begin(secret, seen, code, b"sender", b"checker")
        return wishes

    def receive_greeting(self, secret: bytes) -> Greeting:
        """The first half of the checker's handshake: reads who the peer is. `welcome` is the second half."""
        ours = os.urandom(32)
        self.send(HELLO, ours)
        answer = self._expect(PROOF)
        theirs, proof, about_them = answer[:32], answer[32:64], answer[64:]
        seen = ours + theirs + about_them
        if not hmac.compare_digest(proof, _proof(secret, b"sender", seen)):
            raise Refused("it does not know the secret")
        said = read_object(about_them)
        name, rank = said.get("session"), said.get("rank")
        if not isinstance(name, str) or len(name) != 32 or set(name) - set("0123456789abcdef"):
            raise Refused("the name of its session is not valid")
        if type(rank) is not int or not 0 <= rank < 1 << 31:
            raise Refused("its rank is not valid")
        return Greeting(Session(name, rank), seen, frame_mac.choose(said.get("codes")))

    def welcome(self, secret: bytes, greeting: Greeting, wishes: dict[str, Any]) -> None:
        """The second half of the checker's handshake. `wishes` says which calls it wants."""
        text = json.dumps({**wishes, "code": greeting.code}).encode()
        seen = greeting.seen + text
        self.send(WELCOME, _proof(secret, b"checker", seen) + text)
        self._begin(secret, seen, greeting.code, b"checker", b"sender")

    def _begin(self, secret: bytes, seen: bytes, code: str, out: bytes, into: bytes) -> None:
        """Signs every later frame with a key of this connection and direction."""
        self.code = code
        self._out = frame_mac.make(code, _proof(secret, b"key " + out, seen))
        self._in = frame_mac.make(code, _proof(secret, b"key " + into, seen))
        self._sent = self._received = 0
        self._deadline = None
        self._socket.settimeout(None)

    def _expect(self, kind: int, limit: int = SMALL) -> bytes:
        found, length = self.head(limit)
        if found != kind:
            raise Refused(f"a frame of kind {found}, expected kind {kind}")
        return self.take_body(length)

    # Frames.

    def send(self, kind: int, body: bytes, files: Sequence[tuple[int, int]] = ()) -> None:
        """Sends a frame. `files` are (descriptor, size): their content follows the body and is signed while it is in
        the cache."""
        number = self._sent
        self._sent += 1  # first: a frame that fails in the middle has used its number
        head = HEAD.pack(MAGIC, VERSION, kind, 0, number, len(body) + sum(size for _, size in files))
        self._keep_deadline()
        out, small = self._out, bytearray(head + body)
        if out is None:
            self._socket.sendall(small)
        else:
            out.start(number)
            for descriptor, size in files:
                if size <= SMALL_FILE:
                    small += _read_piece(os.pread(descriptor, size, 0), size)
                    continue
                self._send_signed(out, small)
                small.clear()
                for start in range(0, size, PIECE):
                    piece = self._buffer[: min(PIECE, size - start)]
                    _read_piece(piece, os.preadv(descriptor, [piece], start))
                    self._send_signed(out, piece)
            out.update(small)
            self._socket.sendall(small + out.digest())

    def _send_signed(self, out: frame_mac.Code, data: Union[bytearray, memoryview]) -> None:
        if data:
            out.update(data)
            self._socket.sendall(data, self._more)

    def head(self, limit: int) -> tuple[int, int]:
        """Kind and length of the next frame. Then `take` reads its body and `finish` its end."""
        raw = self._read_exactly(HEAD.size)
        magic, version, kind, zero, number, length = HEAD.unpack(raw)
        if magic != MAGIC or version != VERSION or zero:
            raise Refused("it does not speak this protocol")
        if number != self._received:
            raise Refused(f"frame {number}, expected frame {self._received}")
        if length > limit:
            raise Refused(f"a frame of {length} bytes, at most {limit} are allowed")
        if self._in is not None:
            self._in.start(number)
            self._in.update(raw)
        return kind, length

    def take(self, size: int) -> bytearray:
        """The next bytes of the body, at most CHUNK."""
        part = self._read_exactly(min(size, CHUNK))
        if self._in is not None:
            self._in.update(part)
        return part

    def finish(self) -> None:
        """Checks the code after the body. Raises Refused if it is wrong."""
        self._received += 1
        if self._in is not None and not hmac.compare_digest(self._read_exactly(self._in.size), self._in.digest()):
            raise Refused("a frame was changed in transit")

    def take_body(self, length: int) -> bytes:
        """The body of a frame that fits in memory. Also checks its code."""
        parts = []
        while length:
            parts.append(self.take(length))
            length -= len(parts[-1])
        self.finish()
        return b"".join(parts)

    def _keep_deadline(self) -> None:
        """Until the peer has proved itself: limits the next read to the deadline, and raises Refused after it."""
        if self._deadline is not None:
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise Refused("it did not prove in time that it knows the secret")
            self._socket.settimeout(left)

    def _read_exactly(self, size: int) -> bytearray:
        """Reads `size` bytes. Reads ahead small pieces, so that a frame without files is one system call."""
        found = bytearray(max(size, AHEAD))
        have = len(self._ahead)
        found[:have] = self._ahead
        with memoryview(found) as view:
            while have < size:
                self._keep_deadline()
                try:
                    done = self._socket.recv_into(view[have:])
                except socket.timeout:
                    self._keep_deadline()
                    raise
                if not done:
                    raise EOFError
                have += done
        self._ahead = bytes(found[size:have])
        del found[size:]
        return found


def keep_alive(sock: socket.socket) -> None:
    """Turns on keep-alive: if the machine of the peer is gone, this side notices within two minutes."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 6)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _read_piece(data: Any, wanted: int) -> Any:
    if len(data) != wanted:
        raise DumpError("a tensor file became shorter while it was sent")  # sending it again would not help
    return data


def _proof(secret: bytes, label: bytes, seen: bytes) -> bytes:
    return hmac.new(secret, b"msprobe online 3 " + label + b"\0" + seen, hashlib.sha256).digest()


def read_object(text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise Refused("a message is not JSON") from None
    if not isinstance(value, dict):
        raise Refused("a message is not a JSON object")
    return value
