"""The receiving ends of the online check: who may come in, and how far ahead of the verdicts it may run.

Both ways in put calls into one bounded queue; a full queue stops the reading, which stops the sender. A call is
answered only when its result is on disk, and in the order in which it came.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import shutil
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from msprobe.check import frames, parcel
from msprobe.check.frames import Channel, Refused, Session
from msprobe.config.settings import RunUtSettings
from msprobe.dump.errors import DumpError

MOST_CONNECTIONS = 256
WAITING = 64
_HOME = re.compile(r"([0-9a-f]{32})-(\d{1,9})\Z")
_PARCEL = re.compile(r"\d{12}\.parcel\Z")
Log = Callable[[str], None]


@dataclass(frozen=True)
class Arrival:
    """A call that came, or with `task` None the end of a session. `answer` is to be called once, when it is done."""

    session: Session
    task: Optional[dict[str, Any]]
    answer: Callable[[], None]


class Inbox:
    """What has come and is not yet being checked."""

    def __init__(self, spool: Path, log: Log) -> None:
        self.log = log
        self.stopped = threading.Event()
        self._queue: queue.Queue[Arrival] = queue.Queue(WAITING)
        self._spool = spool
        self._count = 0
        self._lock = threading.Lock()

    def put(self, arrival: Arrival) -> None:
        while not self.stopped.is_set():
            with contextlib.suppress(queue.Full):
                self._queue.put(arrival, timeout=0.5)
                return

    def take(self) -> Optional[Arrival]:
        with contextlib.suppress(queue.Empty):
            return self._queue.get_nowait()
        return None

    def new_spool(self) -> Path:
        with self._lock:
            self._count += 1
            return self._spool / f"{self._count:012d}"


class Listener:
    """TCP. A thread a connection; nobody is heard before it has proved that it knows the secret."""

    def __init__(self, settings: RunUtSettings, inbox: Inbox) -> None:
        self._inbox, self._ranks = inbox, settings.rank_list
        self._secret = frames.read_secret(settings.secret_file)
        self._tls = _server_tls(settings)
        try:
            self._socket = socket.create_server((settings.host, settings.port or 0), backlog=64)
        except OSError as error:
            raise DumpError(
                f"{settings.host}:{settings.port} cannot be listened at: {error.strerror or error}."
            ) from None
        self.address = self._socket.getsockname()[:2]
        self._open = threading.Semaphore(MOST_CONNECTIONS)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._inbox.stopped.set()
        self._socket.close()

    def _accept(self) -> None:
        while not self._inbox.stopped.is_set():
            try:
                sock, peer = self._socket.accept()
            except OSError:
                return
            if not self._open.acquire(blocking=False):
                self._inbox.log(f"{peer[0]} was refused: there are {MOST_CONNECTIONS} connections already.")
                sock.close()
                continue
            threading.Thread(target=self._serve, args=(sock, peer[0]), daemon=True).start()

    def _serve(self, sock: socket.socket, peer: str) -> None:
        try:
            sock.settimeout(frames.HANDSHAKE_SECONDS)
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_side=True)
            channel = Channel(sock)
            session, seen = channel.receive_greeting(self._secret)
            wanted = session.rank in self._ranks
            channel.welcome(self._secret, seen, wanted=wanted)
            if wanted:
                self._hear(channel, session)
        except Refused as error:
            self._inbox.log(f"{peer} was refused: {error}.")
        except (OSError, EOFError) as error:
            self._inbox.log(f"The connection from {peer} ended: {str(error) or 'closed by it'}.")
        finally:
            sock.close()
            self._open.release()

    def _hear(self, channel: Channel, session: Session) -> None:
        channel.wait(None)
        answers = _Answers(channel)
        while True:
            kind, length = channel.head(frames.LARGEST)
            if kind == frames.END:
                channel.rest(length)
                self._inbox.put(Arrival(session, None, answers.slot()))
            elif kind == frames.CALL:
                spool = self._inbox.new_spool()
                try:
                    task = parcel.unpack(length, channel.take, spool)
                    channel.finish()
                except BaseException:
                    shutil.rmtree(spool, ignore_errors=True)
                    raise
                self._inbox.put(Arrival(session, task, answers.slot()))
            else:
                raise Refused(f"a frame of kind {kind} where a call belongs")


class _Answers:
    """Answers leave in the order of the calls, whatever the order in which results come."""

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
                    with contextlib.suppress(OSError, ValueError):  # a lost connection is the reader's to find
                        self._channel.send(frames.DONE, b"")

        return answer


class SharedDirectory:
    """nfs_path: parcels are files. Who may write there is the file system's to say; what they hold is checked."""

    def __init__(self, settings: RunUtSettings, inbox: Inbox) -> None:
        assert settings.nfs_path is not None
        self._root, self._inbox, self._ranks = settings.nfs_path, inbox, settings.rank_list
        if not self._root.is_dir():
            raise DumpError(f"nfs_path {self._root} is no directory.")
        self._taken: set[Path] = set()
        threading.Thread(target=self._look, daemon=True).start()

    def close(self) -> None:
        self._inbox.stopped.set()

    def _look(self) -> None:
        while not self._inbox.stopped.is_set():
            found = 0
            try:
                for home in sorted(self._root.iterdir()):
                    named = _HOME.match(home.name)
                    if named and int(named[2]) in self._ranks and home.is_dir() and not home.is_symlink():
                        found += self._take_all(home, Session(named[1], int(named[2])))
            except OSError as error:
                self._inbox.log(f"{self._root} cannot be read: {error.strerror or error}.")
            if not found:
                time.sleep(0.05)

    def _take_all(self, home: Path, session: Session) -> int:
        found = 0
        for path in sorted(home.iterdir()):
            if path in self._taken:
                continue
            if _PARCEL.match(path.name):
                self._taken.add(path)
                found += self._take(path, session)
            elif path.suffix == ".end" and not any(_PARCEL.match(one.name) for one in home.iterdir()):
                self._taken.add(path)
                self._inbox.put(Arrival(session, None, lambda home=home: shutil.rmtree(home, ignore_errors=True)))  # type: ignore[misc]
        return found

    def _take(self, path: Path, session: Session) -> int:
        spool = self._inbox.new_spool()
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with os.fdopen(fd, "rb") as file:
                length = os.fstat(file.fileno()).st_size
                task = parcel.unpack(length, _reader(file), spool)
        except (Refused, OSError, EOFError) as error:
            shutil.rmtree(spool, ignore_errors=True)
            self._inbox.log(f"{path} was refused: {error}.")
            with contextlib.suppress(OSError):
                path.rename(path.with_suffix(".refused"))
            return 0

        def answer() -> None:
            path.unlink(missing_ok=True)
            self._taken.discard(path)

        self._inbox.put(Arrival(session, task, answer))
        return 1


def _reader(file: Any) -> Callable[[int], bytes]:
    def take(size: int) -> bytes:
        part: bytes = file.read(min(size, frames.CHUNK))
        if not part:
            raise EOFError("it is cut short")
        return part

    return take


def _server_tls(settings: RunUtSettings) -> Optional[ssl.SSLContext]:
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
        if settings.tls_ca is not None:
            context.load_verify_locations(settings.tls_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise DumpError(f"The TLS files cannot be used: {error}.") from None
    return context
