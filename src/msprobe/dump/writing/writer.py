"""Writes one rank directory of one step; collecting calls this.

Every method returns at once and never raises. Lines go to the deque of the worker, the bytes of a tensor to its limited
queue. The worker thread renders, writes, links and makes the json files, in the order of the calls: a tensor file is
complete before the line that names it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Optional, Union

from msprobe.dump import archive, journal, layout, write_errors
from msprobe.dump.archive import archive_older_run
from msprobe.dump.cells import lines_of
from msprobe.dump.journal import Head
from msprobe.dump.json_files import join_members, write_results
from msprobe.dump.source_lines import LONGEST, SourceLines, user_frame_of
from msprobe.dump.stack_frames import frame_text
from msprobe.dump.tensor_files.codec import Payload
from msprobe.dump.tensor_files.store import TensorStore
from msprobe.dump.writing.descriptors import Descriptor
from msprobe.dump.writing.worker import BATCH, Worker

__all__ = ["Finished", "Head", "Payload", "RankWriter", "Worker", "archive_older_run"]


@dataclass(frozen=True)
class Finished:
    """The result of a finished rank directory. `errors` is the number of lost records and files.

    With `unmade`, only files without own records are missing (the json files, run.json): the journal has every record,
    and `msprobe recover` makes the json files.
    """

    records: int = 0
    tensors: int = 0
    links: int = 0
    bytes: int = 0
    errors: int = 0
    unmade: bool = False


class RankWriter:
    """Writes one (step, rank) directory. Writing may continue after `finish`: then the json files are made again."""

    def __init__(self, directory: Path, head: Head, worker: Worker) -> None:
        self.directory = directory
        self.head = head
        self._worker = worker
        self._pending = worker.pending
        self._lines: list[str] = []
        self._sources = SourceLines()
        self._run: Optional[Mapping[str, Any]] = None
        self._written_run: Optional[Mapping[str, Any]] = None
        """The content of run.json. Only the worker uses it: a newer header that comes meanwhile is not lost."""
        self._fd: Optional[Descriptor] = None
        self._broken = False
        self._finished: Optional[Finished] = None
        self._errors = 0
        self._unmade = False
        self._here: set[str] = set()  # bytes that calling threads wrote themselves
        self._store = TensorStore(directory / layout.TENSORS, self._fail)
        worker.run(self._open)  # before we write there: the files there are of an older run

    def begin(self, call: int, name: str, parent: Optional[str], stack: Optional[int], text: str) -> None:
        """A call was entered. `text`: its members as JSON without braces."""
        pending = self._pending
        pending.append((self, journal.begin_line, call, name, parent, stack, text))
        if len(pending) >= BATCH:
            self._worker.hand_over()

    def end(self, call: int, text: str) -> None:
        """The call returned. Its record has the members of the begin and these."""
        pending = self._pending
        pending.append((self, journal.end_line, call, text))
        if len(pending) >= BATCH:
            self._worker.hand_over()

    def drop(self, call: int) -> None:
        """The call ended without a record."""
        self._add(journal.drop_line, call)

    def record(self, name: str, parent: Optional[str], stack: Optional[int], text: str) -> None:
        """A record with one event."""
        pending = self._pending
        pending.append((self, journal.record_line, name, parent, stack, text))
        if len(pending) >= BATCH:
            self._worker.hand_over()

    def place(self, name: str, parent: Optional[str]) -> None:
        """A call without a record that contains calls with one: an entry of construct.json."""
        self._add(journal.place_line, name, parent)

    def debug(self, name: str, text: str) -> None:
        """An entry of debug.json; `text` is a complete JSON value."""
        self._add(journal.debug_line, name, text)

    def phase(self, text: str) -> None:
        """A phase of the training begins. `text`: its members as JSON without braces."""
        self._add(journal.phase_line, text)

    def made(self, text: str, place: Optional[tuple[str, int]] = None) -> None:
        """Where a value comes from that no recorded call produced. `text`: members as JSON without braces. `place`: the
        file and the line of the call, whose source text is added."""
        self._add(_made_line, text, place)

    def training(self, text: str, frames: Optional[Callable[[], Sequence[str]]] = None) -> None:
        """What the training loop did, an event of training.json. `text`: its members as JSON without braces. `frames`
        gives the stack of what the script did itself: the event has its line."""
        if frames is None:
            self._add(journal.training_line, text)
        else:
            self._add(self._placed_line, text, frames)

    def stack(self, number: int, frames: Union[Sequence[str], Callable[[], Sequence[str]]]) -> None:
        """A distinct stack. A callable is called on the writer thread, where source lines may be read."""
        self._add(self._stack_line, number, frames)

    def tensor(self, name: str, payload: Payload) -> str:
        """Saves a tensor. Returns the `data_name` for its record. Repeated content becomes a hard link.

        A borrowed payload is written before this returns; the worker writes one that owns its bytes.
        """
        file_name = layout.tensor_file_name(name, payload.suffix)
        if payload.borrowed and not self._worker.inert:
            self._here.add(file_name)
            self._store.save(name, file_name, payload)
        else:
            self._here.discard(file_name)
            self._worker.submit(payload.nbytes, lambda: self._store.save(name, file_name, payload))
        return file_name

    def link(self, name: str, existing_data_name: str) -> str:
        """Gives a file of this directory a second name."""
        file_name = layout.tensor_file_name(name, existing_data_name[existing_data_name.rfind(".") :])
        if existing_data_name in self._here:
            self._here.add(file_name)
            self._store.link(name, file_name, existing_data_name)
        else:
            self._worker.submit(0, lambda: self._store.link(name, file_name, existing_data_name))
        return file_name

    def error(self, name: str, text: str) -> None:
        """An error of msprobe at one record: appended to dump_error_info.log with the time."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        self._worker.submit(0, lambda: self._append_error(f"{stamp} {name}\n{text.rstrip()}\n\n"))

    def run_header(self, run: Mapping[str, Any]) -> None:
        """Writes run.json with the next lines. The caller must not change the mapping afterwards."""
        self._run = run

    def flush(self) -> None:
        """When this returns, everything so far has been passed to the operating system."""
        self._worker.run(self.write_lines)

    def finish(self) -> Finished:
        """Waits for the queue and makes the json files from the journal."""
        self._worker.run(self.finish_now)
        return self._finished or Finished()

    def _add(self, *line: Any) -> None:
        pending = self._pending
        pending.append((self, *line))
        if len(pending) >= BATCH:
            self._worker.hand_over()

    # From here on: the writer thread.

    def _open(self) -> None:
        try:
            archive.move_old_rank_directory(self.directory, self._worker.log_once)
            layout.make_directory(self.directory)
            path = self.directory / layout.JOURNAL
            fd = layout.open_file(str(path), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL)
            self._fd = Descriptor(fd)
            layout.lock(fd)
            try:
                layout.write_all(fd, journal.head_line(self.head).encode())
            except OSError:
                self._close()
                path.unlink()  # without its first line nobody can read it
                raise
        except OSError as error:
            self._break(error)
        self._worker.opened(self)

    def _stack_line(self, number: int, frames: Union[Sequence[str], Callable[[], Sequence[str]]]) -> str:
        """The line of a stack; new lines of the script around its call are added before it."""
        listed = frames() if callable(frames) else frames
        file, text = self._sources.add(listed)
        if text:
            self._lines.append(journal.source_line(file, text))
        return journal.stack_line(number, listed)

    def _placed_line(self, text: str, frames: Callable[[], Sequence[str]]) -> str:
        """The line of an event of the script; new lines of the script around it are added before it."""
        listed = frames()
        file, lines = self._sources.add(listed)
        if lines:
            self._lines.append(journal.source_line(file, lines))
        frame = user_frame_of(tuple(listed))
        return journal.training_line(text if frame is None else f'{text}, "at": {json.dumps(frame_text(*frame))}')

    def take_line(self, line: tuple[Any, ...]) -> None:
        if self._broken:
            self._errors += 1
            return
        text = line[1](*line[2:])
        if text.find("\n") != len(text) - 1:  # white space between JSON tokens; inside a string it is escaped
            text = text[:-1].replace("\n", " ") + "\n"
        self._lines.append(text)
        if self._finished is not None:
            self._resume()

    def write_lines(self) -> None:
        run = self._run
        if run is not None and run is not self._written_run and not self._broken and self._write_run(run):
            self._written_run = run
        if not self._lines or self._fd is None:
            return
        text = "".join(self._lines)
        count = len(self._lines)
        self._lines.clear()
        try:
            if not self._fd.is_ours():
                self._reopen()
            layout.write_all(self._fd.number, text.encode("utf-8", "backslashreplace"))
        except OSError as error:
            self._errors += count
            self._break(error)

    def finish_now(self) -> None:
        self.write_lines()
        records = 0
        self._unmade = self._run is not self._written_run
        if self._fd is not None or self._finished is not None:
            try:
                found = journal.scan_file(self.directory / layout.JOURNAL, ours=True)
                records = len(found.records) + len(found.debugs)
                for trouble in found.troubles():
                    self._worker.log_once("journal", f"{self.directory}: {trouble}.")
                write_results(self.directory, found)
            except OSError as error:
                self._unmade = True
                self._worker.fail("the json files", self.directory, error)
        self._close()
        kept = self._store.counts
        errors = self._errors + kept.dropped
        if errors and (self._finished is None or self._finished.errors != errors):
            self._append_error(write_errors.entry(errors))
        self._finished = Finished(records, kept.files, kept.links, kept.bytes, errors, self._unmade)
        self._worker.closed(self)

    def _resume(self) -> None:
        """Lines come after `finish`: the json files are incomplete from now on, the journal is not."""
        self._finished = None
        try:
            for name in layout.RESULTS:
                (self.directory / name).unlink(missing_ok=True)
            if not self._broken:
                self._reopen()
        except OSError as error:
            self._break(error)
        self._worker.opened(self)

    def _reopen(self) -> None:
        """Opens the journal again, to append to it."""
        if self._fd is not None:
            self._worker.log_once(
                "descriptors",
                "The script has closed file descriptors of msprobe (with os.closerange?). "
                "msprobe has opened them again; nothing is lost.",
            )
        self._fd = Descriptor(layout.open_file(str(self.directory / layout.JOURNAL), os.O_WRONLY | os.O_APPEND))
        layout.lock(self._fd.number)

    def _write_run(self, run: Mapping[str, Any]) -> bool:
        """Writes run.json. Returns False if there is no space now: it is tried again with the next lines."""
        try:
            members = (f"{json.dumps(key)}: {json.dumps(value, default=str)}".encode() for key, value in run.items())
            layout.write_file(self.directory / layout.RUN, join_members(members, ""))
        except OSError as error:
            self._worker.fail(layout.RUN, self.directory, error)
            return False
        except (ValueError, TypeError) as error:
            self._fail(layout.RUN, error)
        return True

    def _append_error(self, text: str) -> None:
        try:
            path = str(self.directory / layout.ERRORS)
            fd = layout.open_file(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            try:
                layout.write_all(fd, text.encode("utf-8", "backslashreplace"))
            finally:
                os.close(fd)
        except OSError as error:
            self._fail(layout.ERRORS, error)

    def _fail(self, what: str, error: BaseException) -> None:
        self._errors += 1
        self._worker.fail(what, self.directory, error)

    def _break(self, error: OSError) -> None:
        self._broken = True
        self._lines.clear()
        self._worker.fail("the journal", self.directory, error)
        self._errors += 1

    def _close(self) -> None:
        self._store.close()
        if self._fd is not None:
            if self._fd.is_ours():
                layout.unlock(self._fd.number)
            self._fd.close()
            self._fd = None


def _made_line(text: str, place: Optional[tuple[str, int]]) -> str:
    lines = [] if place is None else lines_of(place[0])
    source = lines[place[1] - 1].strip() if place is not None and 1 <= place[1] <= len(lines) else ""
    return journal.made_line(text, source[:LONGEST])
