"""The sender of the online check: a separate process that cannot slow down or break the training run.

It reads from standard input which rank directories were opened, waits until each is finished, and sends its calls.
After a reconnect it sends calls without an answer again. The tensors stay in the files of the dump: the system sends
them from there, or makes links to them. When the run has ended, it sends the rest and ends. It needs no framework.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, Optional

from msprobe.check.online import frames, parcel, tls
from msprobe.check.online.frames import Channel, Refused, Session
from msprobe.check.online.shared_directory import MOST_PARCELS, Outbox
from msprobe.dump import layout
from msprobe.dump.errors import DumpError
from msprobe.dump.reader import RankDump

AHEAD = 32
RETRY_SECONDS = 1.0
PATIENCE_AFTER_END = 60.0
Lists = tuple[list[str], list[str]]  # the checker's white_list and black_list


class _TrainingRun:
    """The directories of the training run, in the order in which the run names them.

    A thread reads the input at once: however long a checker takes, the run never waits for a full pipe.
    """

    def __init__(self) -> None:
        self.directories: list[Path] = []
        self.ended_at = 0.0  # 0: the run continues
        self._news = threading.Event()

    @property
    def ended(self) -> bool:
        return self.ended_at > 0

    def follow(self) -> None:
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        """Reads the names of directories. The run has ended at the end of the file, for whatever reason."""
        rest = b""
        while part := os.read(0, 65536):
            *lines, rest = (rest + part).split(b"\n")
            self.directories += [Path(json.loads(line)) for line in lines]
            self._news.set()
        self.ended_at = time.monotonic()
        self._news.set()

    def listen(self, seconds: float) -> None:
        """Waits for new input, at most this long."""
        if self.ended:
            time.sleep(seconds)
        else:
            self._news.wait(seconds)
            self._news.clear()

    def wait_for(self, number: int) -> Optional[Path]:
        """The directory with this number when it is finished; None if there will be none."""
        while True:
            if number < len(self.directories) and (self.directories[number] / layout.DUMP).exists():
                return self.directories[number]
            if self.ended:  # a killed run leaves a journal, which is read in the same way
                return self.directories[number] if number < len(self.directories) else None
            self.listen(0.2)


def main() -> int:
    with open(0, "rb", buffering=0, closefd=False) as unbuffered:  # _TrainingRun reads the rest
        settings = json.loads(unbuffered.readline())
    session = Session(settings["session"], settings["rank"])
    run = _TrainingRun()
    run.follow()
    try:
        if settings["nfs_path"] is not None:
            _send_through_directory(run, session, Path(settings["nfs_path"]))
        else:
            _TcpSender(run, session, settings).send_everything()
    except (DumpError, Refused) as error:
        print(f"[msprobe] WARNING: the online check ended: {error}", file=sys.stderr)
        return 1
    return 0


class _TcpSender:
    def __init__(self, run: _TrainingRun, session: Session, settings: dict[str, Any]) -> None:
        self._run, self._session, self._settings = run, session, settings
        self._secret = frames.read_secret(Path(settings["secret_file"]) if settings["secret_file"] else None)
        self._tls = tls.client_context(*(settings[key] for key in ("tls_cert", "tls_key", "tls_ca")))
        self._said_missing = self._said_connected = False
        self._directory, self._call = 0, 0  # the first call without an answer

    def send_everything(self) -> None:
        lost = time.monotonic()
        while True:
            try:
                connected = self._connect()
            except Refused:
                raise
            except (OSError, EOFError) as error:
                if not self._said_missing:
                    self._said_missing = True
                    print(f"[msprobe] WARNING: no checker at {self._address()} yet ({error}).", file=sys.stderr)
                self._run.listen(RETRY_SECONDS)
                if self._run.ended and time.monotonic() - max(lost, self._run.ended_at) > PATIENCE_AFTER_END:
                    raise DumpError(f"no checker answered at {self._address()}; the dump is complete") from None
                continue
            if connected is None:
                return
            channel, lists = connected
            try:
                self._send_all(channel, lists)
                return
            except (OSError, EOFError):  # the connection is lost: calls without an answer are sent again
                self._run.listen(RETRY_SECONDS)
            finally:
                channel.close()
                lost = time.monotonic()

    def _send_all(self, channel: Channel, lists: Lists) -> None:
        contents = 0
        while True:
            here = self._run.wait_for(self._directory)
            if here is None:
                channel.send(frames.END, b"")
                channel.take_body(channel.head(frames.SMALL)[1])
                return
            contents = self._send_directory(channel, here, lists, contents)
            self._directory, self._call = self._directory + 1, 0

    def _send_directory(self, channel: Channel, directory: Path, lists: Lists, contents: int) -> int:
        """Sends the calls without an answer; at most AHEAD of them wait for one at a time.

        Returns the number of contents sent so far on this connection.
        """
        rank = RankDump(directory)
        every = parcel.tasks_of(rank, layout.parse_step(directory.parent.name))
        wanted = {task["call"] for task in parcel.tasks_of(rank, None, *lists)} if any(lists) else None
        numbers = [n for n in range(self._call, len(every)) if wanted is None or every[n]["call"] in wanted]
        tasks = [every[number] for number in numbers]
        shipment = parcel.Shipment(rank, tasks, contents)
        under_way: deque[int] = deque()
        for number, task, (files, last, new) in zip(numbers, tasks, shipment):
            while len(under_way) >= AHEAD:
                self._take_answer(channel, under_way)
            self._send_call(channel, parcel.text_of(task, files, last), shipment, new)
            under_way.append(number)
        while under_way:
            self._take_answer(channel, under_way)
        return shipment.number

    def _send_call(self, channel: Channel, text: bytes, shipment: parcel.Shipment, new: list[parcel.File]) -> None:
        with contextlib.ExitStack() as stack:
            files = []
            for file in new:
                descriptor = shipment.open(file.name)
                stack.callback(os.close, descriptor)
                files.append((descriptor, file.size))
            channel.send(frames.CALL, parcel.LENGTH.pack(len(text)) + text, files)

    def _take_answer(self, channel: Channel, under_way: deque[int]) -> None:
        """Waits for one answer: the checker has the result of the oldest call on its disk."""
        kind, length = channel.head(frames.SMALL)
        channel.take_body(length)
        if kind != frames.DONE:
            raise Refused(f"a frame of kind {kind}, expected an answer")
        self._call = under_way.popleft() + 1

    def _connect(self) -> Optional[tuple[Channel, Lists]]:
        """Connects to a checker that proves itself. Returns the channel and its wishes, None if it does not want this
        rank."""
        sock = socket.create_connection((self._settings["host"], self._settings["port"]), timeout=10)
        frames.keep_alive(sock)
        if self._tls is not None:
            sock = self._secure(self._tls, sock)
        channel = Channel(sock)
        try:
            wishes = channel.greet(self._secret, self._session)
        except BaseException:
            channel.close()
            raise
        if not self._said_connected:
            self._said_connected = True
            protection = tls.describe(sock, channel.code)
            print(f"[msprobe] INFO: sending calls to {self._address()}; {protection}.", file=sys.stderr)
        if not wishes.get("wanted"):
            print(f"[msprobe] INFO: the checker does not want rank {self._session.rank}.", file=sys.stderr)
            channel.close()
            return None
        return channel, (_names(wishes.get("white_list")), _names(wishes.get("black_list")))

    def _secure(self, context: ssl.SSLContext, sock: socket.socket) -> socket.socket:
        try:
            return context.wrap_socket(sock, server_hostname=self._settings["host"])
        except ssl.SSLCertVerificationError as error:
            sock.close()
            raise Refused(f"the checker's certificate is not accepted: {error.verify_message}") from None
        except BaseException:
            sock.close()
            raise

    def _address(self) -> str:
        return f"{self._settings['host']}:{self._settings['port']}"


def _names(value: Any) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def _send_through_directory(run: _TrainingRun, session: Session, root: Path) -> None:
    """Sends through a shared directory. A parcel is a directory; the checker removes it when it has the result."""
    outbox = Outbox(root, session)
    directory = 0
    while (here := run.wait_for(directory)) is not None:
        rank = RankDump(here)
        tasks = parcel.tasks_of(rank, layout.parse_step(here.parent.name))
        for task, (files, _, _) in zip(tasks, parcel.Shipment(rank, tasks)):
            _wait_for_room(run, outbox)
            outbox.put(task, files, here / layout.TENSORS)
        directory += 1
    outbox.end()


def _wait_for_room(run: _TrainingRun, outbox: Outbox) -> None:
    """Waits while too many parcels are in the directory. The training run does not wait: its dump has everything."""
    waited = time.monotonic()
    before = 0
    while (waiting := outbox.waiting()) >= MOST_PARCELS:
        if waiting != before:
            before, waited = waiting, time.monotonic()
        if run.ended and time.monotonic() - max(waited, run.ended_at) > PATIENCE_AFTER_END:
            raise DumpError(f"no checker reads the parcels in {outbox.home}; the dump is complete")
        run.listen(0.05)
