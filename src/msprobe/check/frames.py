"""What travels between a training run and its checker: typed, counted, length-checked frames, each with a proof.

A frame is a head of 24 bytes (magic, version, kind, number, length), its body, and an HMAC-SHA256 over both. Before the
peer has proved that it knows the secret, a frame is at most a kilobyte and has a deadline. Nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import socket
import struct
import time
from pathlib import Path
from typing import Any, NamedTuple, Optional

from msprobe.dump.errors import DumpError

HEAD = struct.Struct("<4sBBHQQ")
MAGIC, VERSION = b"MSPF", 1
HELLO, PROOF, WELCOME, CALL, DONE, END = range(1, 7)
PROOF_BYTES = 32
SMALL = 1024
LARGEST = 16 << 30
LARGEST_JSON = 64 << 20
CHUNK = 1 << 20
HANDSHAKE_SECONDS = 10.0


class Refused(Exception):
    """The peer did not keep to the protocol, or could not prove who it is."""


class Session(NamedTuple):
    """One training process, for as long as it lives, over any number of connections."""

    name: str
    rank: int


def read_secret(path: Optional[Path]) -> bytes:
    """The shared secret; refused where others than its owner and group could have read it."""
    if path is None:
        raise DumpError("The online check over TCP needs secret_file on both sides: a file with at least 16 bytes.")
    try:
        secret = path.read_bytes().strip()
        mode = path.stat().st_mode
    except OSError as error:
        raise DumpError(f"secret_file {path} cannot be read: {error.strerror or error}.") from None
    if mode & 0o007:
        raise DumpError(f"secret_file {path} can be read by everybody here: chmod 600 it, and change the secret.")
    if not 16 <= len(secret) <= 4096:
        raise DumpError(f"secret_file {path} must hold 16 to 4096 bytes, not {len(secret)}.")
    return secret


class Channel:
    """One end of a connection. `deadline` holds while the peer is unknown."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._out = self._in = b""
        self._sent = self._received = 0
        self._deadline: Optional[float] = time.monotonic() + HANDSHAKE_SECONDS

    def close(self) -> None:
        self._socket.close()

    # The handshake.

    def greet(self, secret: bytes, session: Session) -> dict[str, Any]:
        """The sender's part. Returns what the checker says to it; raises Refused where that cannot prove itself."""
        theirs = self._expect(HELLO)
        ours = os.urandom(32)
        told = json.dumps({"session": session.name, "rank": session.rank}).encode()
        seen = theirs + ours + told
        self.send(PROOF, ours + _proof(secret, b"sender", seen) + told)
        answer = self._expect(WELCOME)
        if not hmac.compare_digest(answer[:PROOF_BYTES], _proof(secret, b"checker", seen)):
            raise Refused("the checker does not know the secret")
        self._begin(secret, seen, b"sender", b"checker")
        return _object(answer[PROOF_BYTES:])

    def receive_greeting(self, secret: bytes) -> tuple[Session, bytes]:
        """The checker's part, first half: who is there. `welcome` is the second."""
        ours = os.urandom(32)
        self.send(HELLO, ours)
        answer = self._expect(PROOF)
        theirs, proof, told = answer[:32], answer[32:64], answer[64:]
        seen = ours + theirs + told
        if not hmac.compare_digest(proof, _proof(secret, b"sender", seen)):
            raise Refused("it does not know the secret")
        said = _object(told)
        name, rank = said.get("session"), said.get("rank")
        if not isinstance(name, str) or len(name) != 32 or set(name) - set("0123456789abcdef"):
            raise Refused("its session has no proper name")
        if type(rank) is not int or not 0 <= rank < 1 << 31:
            raise Refused("its rank is no rank")
        return Session(name, rank), seen

    def welcome(self, secret: bytes, seen: bytes, **told: Any) -> None:
        self.send(WELCOME, _proof(secret, b"checker", seen) + json.dumps(told).encode())
        self._begin(secret, seen, b"checker", b"sender")

    def _begin(self, secret: bytes, seen: bytes, out: bytes, into: bytes) -> None:
        """From here on every frame carries a proof with a key of this connection and this direction."""
        self._out, self._in = _proof(secret, b"key " + out, seen), _proof(secret, b"key " + into, seen)
        self._sent = self._received = 0
        self._deadline = None

    def _expect(self, kind: int) -> bytes:
        found, length = self.head(SMALL)
        if found != kind:
            raise Refused(f"a frame of kind {found} where {kind} belongs")
        return self.rest(length)

    # Frames.

    def send(self, kind: int, body: bytes, files: tuple[Any, ...] = ()) -> None:
        """`files` are open files whose whole content follows the body."""
        sizes = [os.fstat(file.fileno()).st_size for file in files]
        head = HEAD.pack(MAGIC, VERSION, kind, 0, self._sent, len(body) + sum(sizes))
        proof = hmac.new(self._out, head, hashlib.sha256)
        proof.update(body)
        self._socket.settimeout(self._left(None))
        self._socket.sendall(head + body)
        for file, size in zip(files, sizes):
            while size:
                part = file.read(min(CHUNK, size))
                if not part:
                    raise OSError("a tensor file became shorter while it was sent")
                proof.update(part)
                self._socket.sendall(part)
                size -= len(part)
        self._sent += 1
        if self._out:
            self._socket.sendall(proof.digest())

    def head(self, limit: int) -> tuple[int, int]:
        """Kind and length of the next frame; its body is read with `take`, its end with `finish`."""
        raw = self._exactly(HEAD.size)
        magic, version, kind, zero, number, length = HEAD.unpack(raw)
        if magic != MAGIC or version != VERSION or zero:
            raise Refused("it does not speak this protocol")
        if number != self._received:
            raise Refused(f"frame {number} where {self._received} belongs")
        if length > limit:
            raise Refused(f"a frame of {length} bytes, at most {limit} are allowed")
        self._check = hmac.new(self._in, raw, hashlib.sha256)
        return kind, length

    def take(self, size: int) -> bytes:
        """The next bytes of the body, at most CHUNK at a time."""
        part = self._exactly(min(size, CHUNK))
        self._check.update(part)
        return part

    def finish(self) -> None:
        """After the body: raises Refused unless the proof holds."""
        self._received += 1
        if self._in and not hmac.compare_digest(self._exactly(PROOF_BYTES), self._check.digest()):
            raise Refused("a frame whose proof is wrong")

    def rest(self, length: int) -> bytes:
        """The body and the end of a frame that may be held in memory."""
        parts = []
        while length:
            parts.append(self.take(length))
            length -= len(parts[-1])
        self.finish()
        return b"".join(parts)

    def wait(self, seconds: Optional[float]) -> None:
        """How long the next reads may stay without a byte; None: for ever."""
        self._patience = seconds

    _patience: Optional[float] = 60.0

    def _left(self, otherwise: Optional[float]) -> Optional[float]:
        if self._deadline is None:
            return otherwise
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise Refused("it took too long to say who it is")
        return left

    def _exactly(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            self._socket.settimeout(self._left(self._patience))
            try:
                part = self._socket.recv(size - len(found))
            except socket.timeout:
                self._left(None)
                raise
            if not part:
                raise EOFError
            found += part
        return bytes(found)


def _proof(secret: bytes, label: bytes, seen: bytes) -> bytes:
    return hmac.new(secret, b"msprobe online 1 " + label + b"\0" + seen, hashlib.sha256).digest()


def _object(text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise Refused("a message that is no JSON") from None
    if not isinstance(value, dict):
        raise Refused("a message that is no JSON object")
    return value
