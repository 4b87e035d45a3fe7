"""The sending side of the online check: a process beside the training run, which it cannot slow or break.

It is told on standard input which rank directories were opened, waits until each is finished, and sends its calls. What
has not been answered is sent again after a reconnect; memory holds one call at a time, because the rest lies in the
dump. When the run has ended it sends what is left and goes.
"""

from __future__ import annotations

import json
import os
import select
import socket
import ssl
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

from msprobe.check import frames, parcel
from msprobe.check.frames import Channel, Refused, Session
from msprobe.dump import layout
from msprobe.dump.errors import DumpError
from msprobe.dump.reader import RankDump

AHEAD = 32
RETRY_SECONDS = 1.0
PATIENCE_AFTER_END = 60.0
NFS_FILES = 64


class _Run:
    """The directories of the training run, as they are named to us."""

    def __init__(self) -> None:
        self.directories: list[Path] = []
        self.ended_at = 0.0  # 0: it goes on
        self._rest = b""

    @property
    def ended(self) -> bool:
        return self.ended_at > 0

    def listen(self, seconds: float) -> None:
        """Takes in what the run says; end of file is its end, however it came."""
        if self.ended:
            time.sleep(seconds)
            return
        if not select.select([0], [], [], seconds)[0]:
            return
        part = os.read(0, 65536)
        if not part:
            self.ended_at = time.monotonic()
        *lines, self._rest = (self._rest + part).split(b"\n")
        self.directories += [Path(json.loads(line)) for line in lines]

    def calls(self, directory: Path) -> Iterator[parcel.Task]:
        rank = RankDump(directory)
        yield from parcel.tasks_of(rank, layout.parse_step(directory.parent.name))

    def wait_for(self, number: int) -> Optional[Path]:
        """The directory of this number when it is finished; None when there will not be one."""
        while True:
            if number < len(self.directories) and (self.directories[number] / layout.DUMP).exists():
                return self.directories[number]
            if self.ended:  # a run that was killed leaves a journal, which reads the same
                return self.directories[number] if number < len(self.directories) else None
            self.listen(0.2)


def main() -> int:
    with open(0, "rb", buffering=0, closefd=False) as unbuffered:  # what follows is for select
        settings = json.loads(unbuffered.readline())
    session = Session(settings["session"], settings["rank"])
    run = _Run()
    try:
        if settings["nfs_path"] is not None:
            _share(run, session, Path(settings["nfs_path"]))
        else:
            _Tcp(run, session, settings).send_everything()
    except (DumpError, Refused) as error:
        print(f"[msprobe] WARNING: the online check ended: {error}", file=sys.stderr)
        return 1
    return 0


class _Tcp:
    def __init__(self, run: _Run, session: Session, settings: dict[str, Any]) -> None:
        self._run, self._session, self._settings = run, session, settings
        self._secret = frames.read_secret(Path(settings["secret_file"]) if settings["secret_file"] else None)
        self._told = False

    def send_everything(self) -> None:
        directory, call = 0, 0  # the first call that has not been answered
        lost = time.monotonic()
        while True:
            try:
                channel = self._connect()
            except Refused:
                raise
            except (OSError, EOFError) as error:
                if not self._told:
                    self._told = True
                    print(f"[msprobe] WARNING: no checker at {self._address()} yet ({error}).", file=sys.stderr)
                self._run.listen(RETRY_SECONDS)
                if self._run.ended and time.monotonic() - max(lost, self._run.ended_at) > PATIENCE_AFTER_END:
                    raise DumpError(f"no checker answered at {self._address()}; the dump is complete") from None
                continue
            if channel is None:
                return
            try:
                while True:
                    here = self._run.wait_for(directory)
                    if here is None:
                        channel.send(frames.END, b"")
                        channel.wait(None)
                        channel.rest(channel.head(frames.SMALL)[1])
                        return
                    call = self._send_directory(channel, here, call)
                    directory, call = directory + 1, 0
            except _Interrupted as interrupted:
                call = interrupted.answered
            except (OSError, EOFError, socket.timeout):
                pass
            finally:
                channel.close()
                lost = time.monotonic()

    def _send_directory(self, channel: Channel, directory: Path, first: int) -> int:
        """Sends the calls from `first` on; at most AHEAD of them are unanswered at a time."""
        rank = RankDump(directory)
        answered = sent = first
        try:
            for number, task in enumerate(self._run.calls(directory)):
                if number < first:
                    continue
                text, paths = parcel.pack(task, rank)
                files = [path.open("rb") for path in paths]
                try:
                    channel.send(frames.CALL, text, tuple(files))
                finally:
                    for file in files:
                        file.close()
                sent += 1
                while sent - answered >= AHEAD:
                    answered += self._answers(channel)
            while answered < sent:
                answered += self._answers(channel)
        except (OSError, EOFError) as error:
            raise _Interrupted(answered) from error
        return answered

    def _answers(self, channel: Channel) -> int:
        """Waits for one answer: the checker has the result of the oldest call on its disk."""
        channel.wait(None)
        kind, length = channel.head(frames.SMALL)
        channel.rest(length)
        if kind != frames.DONE:
            raise Refused(f"a frame of kind {kind} where an answer belongs")
        return 1

    def _connect(self) -> Optional[Channel]:
        """A channel to a checker that proved itself; None where it does not want this rank."""
        sock = socket.create_connection((self._settings["host"], self._settings["port"]), timeout=10)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if self._settings["tls_ca"] is not None:
            context = ssl.create_default_context(cafile=self._settings["tls_ca"])
            if self._settings["tls_cert"] is not None:
                context.load_cert_chain(self._settings["tls_cert"], self._settings["tls_key"])
            sock = context.wrap_socket(sock, server_hostname=self._settings["host"])
        channel = Channel(sock)
        try:
            told = channel.greet(self._secret, self._session)
        except BaseException:
            channel.close()
            raise
        if not told.get("wanted"):
            print(f"[msprobe] INFO: the checker does not want rank {self._session.rank}.", file=sys.stderr)
            channel.close()
            return None
        return channel

    def _address(self) -> str:
        return f"{self._settings['host']}:{self._settings['port']}"


class _Interrupted(Exception):
    def __init__(self, answered: int) -> None:
        super().__init__()
        self.answered = answered


def _share(run: _Run, session: Session, root: Path) -> None:
    """Through a shared directory: a parcel is a file, which the checker takes away when it has the result."""
    home = root / f"{session.name}-{session.rank}"
    layout.make_directory(home)
    number = directory = 0
    while True:
        here = run.wait_for(directory)
        if here is None:
            layout.write_file(home / f"{number:012d}.end", [b""])
            return
        rank = RankDump(here)
        for task in run.calls(here):
            _wait_for_room(run, home)
            text, paths = parcel.pack(task, rank)
            layout.write_file(home / f"{number:012d}.parcel", _parts(text, paths))
            number += 1
        directory += 1


def _wait_for_room(run: _Run, home: Path) -> None:
    """A checker that takes nothing away holds us up, and the run not at all: its dump has everything."""
    waited = time.monotonic()
    before = 0
    while (waiting := sum(1 for _ in home.glob("*.parcel"))) >= NFS_FILES:
        if waiting != before:
            before, waited = waiting, time.monotonic()
        if run.ended and time.monotonic() - max(waited, run.ended_at) > PATIENCE_AFTER_END:
            raise DumpError(f"no checker takes parcels out of {home}; the dump is complete")
        run.listen(0.05)


def _parts(text: bytes, paths: list[Path]) -> Iterator[bytes]:
    yield text
    for path in paths:
        with path.open("rb") as file:
            yield from iter(lambda: file.read(frames.CHUNK), b"")


if __name__ == "__main__":
    raise SystemExit(main())
