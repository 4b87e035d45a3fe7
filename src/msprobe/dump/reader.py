"""Opens a dump of any tool, finished or not.

`open_dump` takes a dump root, a step directory, a rank directory or a dump.json, of msprobe or of old and new
mindstudio-probe. A rank that has only a journal (after a crash, or while the run continues) reads like a finished one;
`unfinished` says so.

Everything is read at the first access. A damaged record, or a damaged file next to dump.json, affects only itself:
`troubles` names it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Optional

from msprobe.dump import journal, layout, write_errors
from msprobe.dump.errors import DumpError
from msprobe.dump.items import Record, items, leaves
from msprobe.dump.json_files import OPTIONAL_KEYS, events, made_values, sources
from msprobe.dump.made_values import MadeValues, read_made_values
from msprobe.dump.parallel import Parallel, read_parallel
from msprobe.dump.phases import Phase, read_runs
from msprobe.dump.record_keys import DAMAGED
from msprobe.dump.source_lines import Lines, read_lines
from msprobe.dump.stack_frames import frames_of, stacks_of
from msprobe.dump.tokens import Tokens, read_tokens
from msprobe.dump.untrusted.json_files import parse_json, read_json
from msprobe.dump.untrusted.json_values import HEAD, clean_head
from msprobe.dump.untrusted.parents import cut_loops
from msprobe.messages import Message

__all__ = ["Dump", "DumpError", "RankDump", "Record", "items", "leaves", "open_dump"]

_NAMED = 5
_NOTHING = "nothing can be read from it"


@dataclass(frozen=True)
class Dump:
    """The rank directories of a dump, ordered by step and rank. `unread` are those that cannot be read."""

    path: Path
    ranks: list[RankDump]
    unread: list[RankDump] = field(default_factory=list)

    @property
    def steps(self) -> list[Optional[int]]:
        return list(dict.fromkeys(rank.step for rank in self.ranks))

    @property
    def notes(self) -> list[str]:
        """Why the first of `unread` cannot be read, and how many more there are. Sentences without a full stop."""
        more = len(self.unread) - _NAMED
        rest = [Message("dump.more_unread", number=more)] if more > 0 else []
        return [*(str(rank.obstacle) for rank in self.unread[:_NAMED]), *rest]


def _all(value: dict[str, Any], file: Path) -> dict[str, Any]:
    return value


@dataclass(frozen=True)
class RankDump:
    """One process in one step. `rank` is None without ranks; `kind` is graph, pynative or None."""

    path: Path
    step: Optional[int] = None
    rank: Optional[int] = None
    kind: Optional[str] = None

    @property
    def label(self) -> str:
        """The name in reports: `step0/rank1`."""
        names = [self.path.name] if self.step is None else [layout.step_name(self.step), self.path.name]
        return "/".join([self.kind, *names] if self.kind else names)

    @property
    def unfinished(self) -> bool:
        """True if there is only a journal: the run crashed, or still runs."""
        return self._scan is not None

    def __getstate__(self) -> dict[str, Any]:
        """Without the cached data: another process reads it again."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    def forget(self) -> None:
        """Drops the cached data; it is read again at the next access."""
        kept = self.__getstate__()
        vars(self).clear()
        vars(self).update(kept)

    @property
    def troubles(self) -> list[str]:
        """Sentences about damage, left-out lines and failed writes; damaged records only after `records` was read."""
        problems = self._scan.troubles() if self._scan is not None else []
        _ = self.stacks, self.construct, self.training, self.run
        if (self.path / layout.DUMP).exists():
            _ = self.debug
        problems += self._damage.values()
        return problems if self.loss is None else [*problems, self.loss]

    @property
    def flow_trouble(self) -> Optional[str]:
        """What is damaged in flow.json, as far as it was read."""
        return self._damage.get(layout.FLOW)

    @functools.cached_property
    def loss(self) -> Optional[str]:
        """What is missing according to the log of this directory; None without a log."""
        return write_errors.trouble(self.path)

    @functools.cached_property
    def obstacle(self) -> Optional[str]:
        """Why nothing can be read from this directory; None if something can."""
        file = self.path / layout.JOURNAL
        if (self.path / layout.DUMP).exists():
            return None
        try:
            if file.is_file():
                return None if journal.has_head(file) else Message("dump.no_head", file=str(file))
        except OSError as error:
            return Message("dump.unreadable", file=str(file), error=error.strerror or str(error))
        if (self.path / layout.DEBUG).is_file():
            return None
        if self.loss is None:
            return Message("dump.empty", path=str(self.path), file=layout.DUMP)
        return Message("dump.empty_loss", path=str(self.path), file=layout.DUMP, loss=self.loss)

    @property
    def is_readable(self) -> bool:
        """Whether its main file has the expected content; `obstacle` checks only that there is one."""
        try:
            return self.head is not None
        except DumpError:
            return False

    @functools.cached_property
    def head(self) -> dict[str, Any]:
        """task, level, framework, dump_data_dir; flow if the tensors have the numbers of their values."""
        if self._scan is not None:
            if not self._scan.head:
                raise DumpError(f"{self.path / layout.JOURNAL} has lost its first line: {_NOTHING}.")
            head = self._scan.head
            return clean_head({key: head.get(key) for key in (*HEAD, *(key for key in OPTIONAL_KEYS if key in head))})
        return clean_head({key: value for key, value in self._main.items() if key != "data"})

    @functools.cached_property
    def records(self) -> dict[str, Record]:
        """Every record by its name, in completion order."""
        if self._scan is not None:
            found = self._scan
            return {_name(name): _parse(found.body(entry), self.path) for name, entry in found.records.items()}
        if not (self.path / layout.DUMP).exists():
            return {}
        return self._sound(_data(self._main, self.path / layout.DUMP))

    @functools.cached_property
    def debug(self) -> dict[str, Any]:
        """The entries of debug.json; empty without that file."""
        if self._scan is not None:
            found = self._scan
            return {_name(name): _parse(found.text(span), self.path) for name, span in found.debugs.items()}
        if (self.path / layout.DUMP).exists():
            return self._read_file(layout.DEBUG, _data)
        file = self.path / layout.DEBUG
        return _data(self._main, file) if file.exists() else {}

    @functools.cached_property
    def stacks(self) -> dict[str, list[str]]:
        """The stack frames of each name, innermost first."""
        if self._scan is not None:
            frames = {n: frames_of(_parse(self._scan.text(span), self.path)) for n, span in self._scan.stacks.items()}
            used = ((_name(name), entry.stack) for name, entry in self._scan.records.items())
            return {name: frames[stack] for name, stack in used if stack is not None and stack in frames}
        return stacks_of(self._read_file(layout.STACK))

    @functools.cached_property
    def sources(self) -> Lines:
        """The lines of the script around its calls; empty without source.json, as in dumps of other tools."""
        if self._scan is not None:
            return read_lines(_parse(b"{%b}" % b", ".join(sources(self._scan)), self.path))
        return read_lines(self._read_file(layout.SOURCE))

    @functools.cached_property
    def construct(self) -> dict[str, Optional[str]]:
        """The parent of every name; empty at L1."""
        if self._scan is not None:
            if self._scan.head.get("level") == "L1" or not self._scan.head.get("extra_info", True):
                return {}
            parents = {**self._scan.places, **{name: one.parent for name, one in self._scan.records.items()}}
            found = {_name(name): json.loads(parent) for name, parent in parents.items()}
        else:
            found = {
                name: up if isinstance(up, str) else None for name, up in self._read_file(layout.CONSTRUCT).items()
            }
        sound, cut = cut_loops(found)
        if cut:
            self._damage[layout.CONSTRUCT] = Message("dump.loops", number=cut, file=layout.CONSTRUCT)
        return sound

    @functools.cached_property
    def training(self) -> list[dict[str, Any]]:
        """The events of training.json; empty without it, as in dumps of other tools."""
        if self._scan is not None:
            found = json.loads(events(self._scan)) if self._scan.training else []
        else:
            found = self._read_file(layout.TRAINING).get("events")
        listed = found if isinstance(found, list) else []
        sound = [event for event in listed if _is_event(event)]
        if len(sound) < len(listed):
            bad = len(listed) - len(sound)
            self._damage[layout.TRAINING] = Message("dump.damaged_events", number=bad, file=layout.TRAINING)
        return sound

    @functools.cached_property
    def phases(self) -> dict[str, Phase]:
        """The phase and the micro-batch of each record; empty if they are not recorded. Reads `records`."""
        if self._scan is not None:
            found = ((_name(name), entry.phase) for name, entry in self._scan.records.items())
            return {name: phase for name, phase in found if phase is not None}
        try:
            return read_runs(self._read_file(layout.FLOW).get("phases", []), list(self.records), layout.FLOW)
        except DumpError as error:
            self._damage[layout.FLOW] = str(error).rstrip(".")
            return {}

    @functools.cached_property
    def made_values(self) -> Optional[MadeValues]:
        """Where values come from that no recorded call produced; None if this is not recorded."""
        if self._scan is not None:
            found = json.loads(made_values(self._scan)) if self._scan.made else None
        else:
            found = self._read_file(layout.FLOW).get("made")
        try:
            return None if found is None else read_made_values(found, layout.FLOW)
        except DumpError as error:
            self._damage[layout.FLOW] = str(error).rstrip(".")
            return None

    @functools.cached_property
    def run(self) -> dict[str, Any]:
        """run.json, the header of the run; empty without it, as in dumps of other tools."""
        return self._read_file(layout.RUN)

    @functools.cached_property
    def tokens(self) -> Optional[Tokens]:
        """tokens.json: the sequence and position of each row; None without it. Raises DumpError if it is damaged."""
        return read_tokens(self.path)

    @functools.cached_property
    def parallel(self) -> Parallel:
        """How the run is spread over ranks; empty on one device. Raises DumpError for invalid values: a guess would
        be worse."""
        return read_parallel(self.run.get("parallel"), self.path / layout.RUN)

    def tensor_path(self, data_name: str) -> Path:
        """The file of a `data_name`. The name comes from a file, so it must be a plain file name."""
        if not isinstance(data_name, str) or not layout.is_plain_file_name(data_name):
            raise DumpError(f"{self.path} names {data_name!r} as a tensor file, which is not a plain file name.")
        return self.path / layout.TENSORS / data_name

    def tensor(self, data_name: str, mmap: bool = True) -> Any:
        """The saved tensor as a numpy array; with `mmap` read-only and mapped."""
        from msprobe.dump.tensor_files import codec

        return codec.load(self.tensor_path(data_name), mmap)

    @functools.cached_property
    def _damage(self) -> dict[str, str]:
        """The damage found so far, by file name."""
        return {}

    def _sound(self, records: dict[str, Any]) -> dict[str, Record]:
        """The records. One that is not an object is replaced by a record that says so."""
        bad = [name for name, record in records.items() if not isinstance(record, dict)]
        if bad:
            self._damage[layout.DUMP] = Message("dump.damaged", number=len(bad), file=layout.DUMP, first=bad[0])
        return {**records, **{name: {DAMAGED: "the record is not a JSON object"} for name in bad}} if bad else records

    def _read_file(self, name: str, part: Callable[[dict[str, Any], Path], dict[str, Any]] = _all) -> dict[str, Any]:
        """The object in a file next to dump.json, or a part of it; empty if the file is missing or damaged."""
        file = self.path / name
        try:
            return part(_read_object(file), file) if file.exists() else {}
        except DumpError as error:
            self._damage[name] = str(error).rstrip(".")
            return {}

    @functools.cached_property
    def _main(self) -> dict[str, Any]:
        file = self.path / layout.DUMP
        return _read_object(file if file.exists() else self.path / layout.DEBUG)

    @functools.cached_property
    def _scan(self) -> Optional[journal.Scan]:
        """The journal, if the json files have not been made from it yet."""
        file = self.path / layout.JOURNAL
        if (self.path / layout.DUMP).exists() or not file.exists():
            return None
        try:
            found = journal.scan_file(file, check=True)
        except OSError as error:
            raise DumpError(f"{file} cannot be read: {error.strerror or error}.") from None
        finished = found.head.get("level") == "debug" and (self.path / layout.DEBUG).exists()
        return None if finished else found


def open_dump(path: Path) -> Dump:
    """The dump at a path. Raises DumpError with one sentence if there is none."""
    path = Path(path)
    if path.is_file():
        if path.name not in (*layout.RESULTS, layout.JOURNAL):
            raise DumpError(f"{path} is not a dump: give a dump directory, or the {layout.DUMP} in one.")
        path = path.parent
    if not path.is_dir():
        raise DumpError(f"{path} does not exist.")
    try:
        found = _find(path)
    except OSError as error:
        raise DumpError(f"{path} cannot be read: {error.strerror or error}.") from None
    ranks = [rank for rank in found if rank.obstacle is None]
    unread = [rank for rank in found if rank.obstacle is not None]
    if not ranks:
        if unread:
            what = "" if unread[0].path == path else f"{path} is an empty dump: "
            raise DumpError(f"{what}{unread[0].obstacle}.")
        if any(path.glob("rank_*/graphs")):
            raise DumpError(f"{path} is a Graph-mode Dump of MindSpore: see `msprobe graph --help`.")
        raise DumpError(f"{path} is not a dump: it holds no step directory, {layout.DUMP} or {layout.JOURNAL}.")
    return Dump(path, ranks, unread)


def _find(path: Path) -> list[RankDump]:
    if _has_dump(path):
        step, rank = layout.parse_step(path.parent.name), layout.parse_rank(path.name)
        return [RankDump(path, step, rank, _kind(path.parent))]
    found = _ranks_in(path)
    for base in (path, *(path / name for name in layout.MODE_PARENTS)):
        if base.is_dir():
            for child in base.iterdir():
                if layout.parse_step(child.name) is not None and child.is_dir():
                    found += _ranks_in(child)
    return sorted(found, key=_order)


def _kind(step_dir: Path) -> Optional[str]:
    above = step_dir.parent
    return above.name if layout.parse_step(step_dir.name) is not None and layout.is_mode_parent(above) else None


def _ranks_in(step_dir: Path) -> list[RankDump]:
    step, kind = layout.parse_step(step_dir.name), _kind(step_dir)
    inside = (child for child in step_dir.iterdir() if layout.is_rank_name(child.name) and child.is_dir())
    return [RankDump(child, step, layout.parse_rank(child.name), kind) for child in inside]


def _order(found: RankDump) -> tuple[Any, ...]:
    rank = -1 if found.rank is None else found.rank
    return (found.kind or "", -1 if found.step is None else found.step, rank, found.path.name)


def _has_dump(path: Path) -> bool:
    return any((path / name).is_file() for name in (layout.DUMP, layout.DEBUG, layout.JOURNAL))


def _name(quoted: bytes) -> str:
    return str(json.loads(quoted))


def _parse(text: bytes, where: Path) -> Any:
    try:
        return parse_json(text)
    except ValueError as error:
        raise DumpError(f"{where / layout.JOURNAL} holds a damaged record ({error}).") from None


def _is_event(event: Any) -> bool:
    """Whether it says what happened, and after which call: text, or null before the first call."""
    if not isinstance(event, dict) or not isinstance(event.get("event"), str):
        return False
    return event.get("after") is None or isinstance(event["after"], str)


def _read_object(file: Path) -> dict[str, Any]:
    try:
        value = read_json(file, file.parent)
    except OSError as error:
        raise DumpError(f"{file} cannot be read: {error.strerror or error}.") from None
    except json.JSONDecodeError as error:
        journal_too = (file.parent / layout.JOURNAL).exists()
        advice = f" Run `msprobe recover --all {file.parent}` to make it again." if journal_too else ""
        raise DumpError(f"{file} is not JSON: line {error.lineno}, {error.msg}.{advice}") from None
    except ValueError as error:
        raise DumpError(f"{file} is not JSON: {error}.") from None
    if not isinstance(value, dict):
        raise DumpError(f"{file} is not a JSON object.")
    return value


def _data(value: dict[str, Any], file: Path) -> dict[str, Any]:
    data = value.get("data")
    if not isinstance(data, dict):
        raise DumpError(f'{file} is not a dump: it has no "data" object.')
    return data
