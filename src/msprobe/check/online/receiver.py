"""The checker's end of TCP connections: who may connect, and how many calls may wait for their verdict.

A call is answered when its result is on disk, in the order in which the calls came.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import threading
from collections import deque
from typing import Callable

from msprobe.check.online import frames, parcel, tls
from msprobe.check.online.frames import Channel, Refused, Session
from msprobe.check.online.inbox import Arrival, Inbox
from msprobe.config.settings import RunUtSettings
from msprobe.dump.errors import DumpError

MOST_CONNECTIONS = 256  # peers that know the secret
MOST_STRANGERS = 64  # peers that have not proved it yet


class Listener:
    """Listens on TCP, with one thread per connection. It serves a peer after that peer has proved that it knows the
    secret.

    Few peers without proof may wait at a time, and a new one replaces the oldest: silent strangers cannot keep a sender
    out.
    """

    def __init__(self, settings: RunUtSettings, inbox: Inbox) -> None:
        self._inbox, self._ranks = inbox, settings.rank_list
        self._lists = {"white_list": list(settings.white_list), "black_list": list(settings.black_list)}
        if len(json.dumps(self._lists)) > frames.WELCOME_LIMIT // 2:
            self._lists = {}  # then the sender sends everything, and this side selects
        self._secret = frames.read_secret(settings.secret_file)
        self._tls = tls.server_context(settings.tls_cert, settings.tls_key, settings.tls_ca)
        try:
            self._socket = socket.create_server((settings.host, settings.port or 0), backlog=64)
        except OSError as error:
            raise DumpError(f"Cannot listen on {settings.host}:{settings.port}: {error.strerror or error}.") from None
        self.address = self._socket.getsockname()[:2]
        self._open = threading.Semaphore(MOST_CONNECTIONS)
        self._lock = threading.Lock()
        self._strangers: dict[int, socket.socket] = {}  # by connection number, the oldest first
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def protection(self) -> str:
        """How the connection is protected, for the log."""
        return tls.describe(self._tls is not None)

    def close(self) -> None:
        self._inbox.stopped.set()
        self._socket.close()

    def _accept(self) -> None:
        number = 0
        while not self._inbox.stopped.is_set():
            try:
                sock, peer = self._socket.accept()
            except OSError:
                return
            number += 1
            self._admit(number, sock)
            threading.Thread(target=self._serve, args=(number, sock, peer[0]), daemon=True).start()

    def _admit(self, number: int, sock: socket.socket) -> None:
        with self._lock:
            while len(self._strangers) >= MOST_STRANGERS:
                oldest = next(iter(self._strangers))
                with contextlib.suppress(OSError):  # its thread wakes up and ends
                    socket.socket.shutdown(self._strangers.pop(oldest), socket.SHUT_RDWR)
            self._strangers[number] = sock

    def _serve(self, number: int, sock: socket.socket, peer: str) -> None:
        try:
            sock.settimeout(frames.HANDSHAKE_SECONDS)
            if self._tls is not None:
                secure = self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
                sock = secure
                with self._lock:
                    if number not in self._strangers:
                        raise Refused("too many other peers have not proved yet that they know the secret")
                    self._strangers[number] = secure
                secure.do_handshake()
            channel = Channel(sock)
            greeting = channel.receive_greeting(self._secret)
            self._forget(number)
            self._serve_known(channel, sock, greeting, peer)
        except Refused as error:
            self._inbox.log(f"{peer} was refused: {error}.")
        except (OSError, EOFError) as error:
            self._inbox.log(f"The connection from {peer} ended: {str(error) or 'closed by the sender'}.")
        finally:
            self._forget(number)
            sock.close()

    def _serve_known(self, channel: Channel, sock: socket.socket, greeting: frames.Greeting, peer: str) -> None:
        if not self._open.acquire(blocking=False):
            raise Refused(f"there are {MOST_CONNECTIONS} connections already")
        try:
            wanted = greeting.session.rank in self._ranks
            channel.welcome(self._secret, greeting, {"wanted": wanted, **self._lists})
            if wanted:
                protection = tls.describe(sock, channel.code)
                self._inbox.log(f"Rank {greeting.session.rank} is connected from {peer}; {protection}.")
                frames.keep_alive(sock)
                self._receive_frames(channel, greeting.session)
        finally:
            self._open.release()

    def _forget(self, number: int) -> None:
        with self._lock:
            self._strangers.pop(number, None)

    def _receive_frames(self, channel: Channel, session: Session) -> None:
        answers = _Answers(channel)
        kept = parcel.KeptFiles(self._inbox.new_spool())
        try:
            while True:
                kind, length = channel.head(frames.LARGEST)
                if kind == frames.END:
                    channel.take_body(length)
                    self._inbox.put(Arrival(session, None, answers.slot()))
                elif kind == frames.CALL:
                    task = self._receive(channel, length, kept)
                    self._inbox.put(Arrival(session, task, answers.slot()))
                else:
                    raise Refused(f"a frame of kind {kind}, expected a call")
        finally:
            kept.close()

    def _receive(self, channel: Channel, length: int, kept: parcel.KeptFiles) -> parcel.Task:
        spool = self._inbox.new_spool()
        try:
            task, last = parcel.unpack(length, channel.take, spool, kept)
            channel.finish()
            kept.settle(last)
        except BaseException:
            shutil.rmtree(spool, ignore_errors=True)
            raise
        return task


class _Answers:
    """Sends answers in the order of the calls, in whatever order the results come."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._lock = threading.Lock()
        self._open: deque[list[bool]] = deque()

    def slot(self) -> Callable[[], None]:
        mine = [False]
        with self._lock:
            self._open.append(mine)

        def answer() -> None:
            with self._lock:
                mine[0] = True
                while self._open and self._open[0][0]:
                    self._open.popleft()
                    with contextlib.suppress(OSError, ValueError):  # the reader notices the lost connection
                        self._channel.send(frames.DONE, b"")

        return answer
