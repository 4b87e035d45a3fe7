"""`msprobe prove`: is this call really the cause? Runs the target again with the golden result in place of its own.

The first run is recorded and compared with the golden dump, which gives the origin. In the next run the blamed call
gets the golden values. If the run then agrees with the golden run, the call is proved to be the cause; if a different
call differs now, that one is grafted too, and so on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Optional

from msprobe.compare import Comparison, Origin, UnitResult, compare
from msprobe.compare.origin.source import user_lines
from msprobe.config.directions import Directions, Graft
from msprobe.dump import layout
from msprobe.dump.errors import DumpError
from msprobe.dump.names import BACKWARD, FORWARD, PARAMETERS_GRAD, backward_of, forward_of, is_module, parse_name
from msprobe.dump.plural import count
from msprobe.dump.reader import Dump, RankDump, items, open_dump
from msprobe.dump.record_keys import INPUT_ARGS, INPUT_KWARGS
from msprobe.messages import Message, beside
from msprobe.rerun.launch import Script, run_script
from msprobe.rerun.printed import Printed
from msprobe.stats.shares import shares
from msprobe.system.collector import at_rest

PROVED, NOT_PROVED, NOT_THE_CAUSE = "proved", "not proved", "not the cause"
SAME = "same"
_PRINTED = "printed.txt"
_INPUTS = ("input", "received")
_DRAWN = ("weight", "input", "random")
"""What differs first if the seeds differ."""
_AROUND = ("missing call", "extra call", "replaced", "wiring", "swapped", "elsewhere")


class NeedsTensors(DumpError):
    """The golden dump has no tensors of a call that is to be grafted."""


@dataclass(frozen=True)
class Request:
    """`target` is a dump of the script that exists already; without it the script runs once more. `call` is grafted in
    place of the origin that compare finds. `tensors` is a second dump of the golden run, with tensors. `number` takes
    the place of the loss."""

    script: Script
    golden: Path
    directory: Path
    target: Optional[Path] = None
    tensors: Optional[Path] = None
    call: str = ""
    most: int = 3
    number: Optional[Printed] = None


@dataclass(frozen=True)
class Cause:
    """A call that was given the golden values. `ran` counts the grafts, `changed` the elements that were different.
    `calls` counts the calls of this line in a step, if more than the first of them had to be grafted: a loop, or the
    same layer many times, is one cause. `left` counts the rows of the comparison with the golden run that still
    differ."""

    name: str
    module: Optional[str]
    source: Optional[str]
    sentence: str
    ran: int
    changed: int
    share: Optional[float] = None
    calls: int = 1
    left: Optional[int] = None

    @property
    def title(self) -> str:
        more = self.calls - 1
        return self.name if not more else f"{self.name} and {count(more, 'more call')} of this line"


@dataclass(frozen=True)
class Proof:
    """The answer. `target`, `golden` and `after` are the loss of the target, of the golden run, and after each further
    graft, or what the script prints after `number`; `differing` counts the rows that differ without a graft."""

    verdict: str
    causes: tuple[Cause, ...]
    exact: bool
    step: Optional[int]
    target: Optional[float]
    golden: Optional[float]
    after: tuple[float, ...]
    rest: str = ""
    differing: int = 0
    number: str = ""

    def lines(self) -> list[str]:
        return list(_lines(self))

    def summary(self) -> dict[str, Any]:
        """The answer for programs, and for `msprobe view`."""
        return {
            "verdict": self.verdict, "exact": self.exact, "rest": self.rest, "step": self.step, "target": self.target,
            "golden": self.golden, "after": list(self.after), "differing": self.differing, "number": self.number,
            "causes": [{**vars(one), **beside(vars(one), "sentence")} for one in self.causes],
            **beside({"rest": self.rest}, "rest"),
        }  # fmt: skip


@at_rest()
def prove(request: Request, say: Callable[[str], None]) -> Proof:
    """Raises DumpError with one sentence if there is nothing to prove or nothing to graft."""
    if request.number is not None and request.target is not None:
        raise DumpError("a dump has no number that the script printed: leave out --target, or --number")
    golden = open_dump(request.golden)
    runs = _Runs(request, golden, say)
    target = request.target if request.target is not None else runs.record()
    runs.check_steps(target)
    found = _compare(target, request.golden, runs.steps)
    if request.call and not any(True for unit in found.units for _ in _find_calls(unit, request.call)):
        raise DumpError(f"{request.call} is not a call that both runs make; dump.json has the names of the calls")
    if found.origin is None:
        raise DumpError(f"there is nothing to prove: the target and {request.golden} have verdict {found.verdict!r}")
    _check_seeds(found, found.origin)
    blamed, differing = found.origin, _differing(found)
    grafts: list[Graft] = []
    causes: list[Cause] = []
    losses: list[Optional[float]] = []
    origin: Optional[Origin] = found.origin
    verdict = NOT_PROVED
    while origin is not None:
        wanted = _name_to_graft(origin, request.call if not causes else "")
        line = next((place for place, one in enumerate(causes) if _is_of_line(one, wanted, origin)), None)
        is_new = line is None and not any(_belongs_to(one, wanted) for one in causes)
        names = [wanted] if line is None else _calls_of_line(found, wanted, origin)
        new = [one for name in names for one in runs.plan(found, name, origin, line is not None)]
        new = [one for one in new if not any(_is_same_graft(one, other) for other in grafts)]
        if not new or (is_new and len(causes) == request.most):
            break  # the difference stays where a graft already is, or there are too many causes
        grafts += new
        place, fired = runs.graft(grafts, wanted if line is None else causes[line].name, names)
        found = _compare(place, request.golden, runs.steps)
        if is_new:
            causes.append(_describe(origin, wanted, fired))
            losses.append(None)
        elif line is not None:
            calls = len({causes[line].name, *names})
            causes[line] = replace(causes[line], ran=fired[0], changed=fired[1], calls=calls)
        losses[-1] = runs.number_of(place)
        causes[-1] = replace(causes[-1], left=_differing(found))
        if found.verdict == SAME:
            verdict = PROVED
            break
        origin = found.origin
        if origin is not None and origin.name == blamed.name and wanted != _name_to_graft(blamed, ""):
            verdict = NOT_THE_CAUSE
            break
    if not causes:
        raise DumpError(
            f"the golden run has no call in place of the origin, so nothing can be grafted: {blamed.sentence}"
        )
    return replace(_conclude(verdict, runs, target, causes, losses, found), differing=differing)


def _check_seeds(found: Comparison, origin: Origin) -> None:
    """Raises DumpError if a different seed explains the origin: everything that was drawn differs then."""
    notes = [note for note in found.notes if note.id == "header.seed"]
    if notes and origin.kind in _DRAWN:
        raise DumpError(f"{origin.sentence}, but {notes[0]}; start both runs with the same seed")


def _differing(found: Comparison) -> int:
    summary = found.summary()
    return int(summary["warning"]) + int(summary["error"])


def _compare(target: Path, golden: Path, steps: Sequence[int]) -> Comparison:
    return compare(target, golden, steps=list(steps) or None)


def _name_to_graft(origin: Origin, call: str) -> str:
    """The call of the origin; the module around it if the calls themselves do not correspond."""
    if call:
        return call
    if origin.kind == "training" or not origin.name:
        raise DumpError(f"this origin has no call that could be grafted: {origin.sentence}")
    name = origin.name.partition(".parameters.")[0]
    if origin.kind in _AROUND and origin.module:
        return origin.module if is_module(origin.module) else name
    return name


def _belongs_to(cause: Cause, name: str) -> bool:
    """Whether a call is part of a cause: its backward, or the module that got the same wrong input."""
    return forward_of(cause.name) == forward_of(name) or cause.module == parse_name(name).key


def _is_of_line(cause: Cause, name: str, origin: Origin) -> bool:
    """Whether this is a later call of the same API or module class at the same line: a loop, or a layer of a stack."""
    is_same = (
        _class_of(cause.name) == _class_of(name) and parse_name(cause.name).direction == parse_name(name).direction
    )
    return is_same and cause.source is not None and cause.source == origin.source and forward_of(cause.name) != name


def _calls_of_line(found: Comparison, name: str, origin: Origin) -> list[str]:
    """All calls of the target like this one, at the line of the origin."""
    direction = parse_name(name).direction
    names = {
        match.target.name: None
        for unit in found.units
        for match, _ in unit.groups
        if match.target is not None
        and parse_name(match.target.name).direction == direction
        and _class_of(match.target.name) == _class_of(name)
        and user_lines(unit.stacks, match)[0] == origin.source
    }
    return [name, *(one for one in names if one != name)]


def _class_of(name: str) -> str:
    """The API, or the class of the module: `Module.blocks.3.norm.LayerNorm.forward.0` is a LayerNorm."""
    key = parse_name(name).key
    return f"Module.{key.rpartition('.')[2]}" if is_module(name) else key


def _is_same_graft(one: Graft, other: Graft) -> bool:
    """Whether both give the same part of the same call golden values; `given` may differ."""
    return replace(one, given=()) == replace(other, given=())


def _describe(origin: Origin, name: str, fired: tuple[int, int]) -> Cause:
    blamed = origin.name.startswith(name) or origin.module == name
    sentence = origin.sentence if blamed else Message("proof.requested")
    return Cause(name, origin.module if blamed else None, origin.source if blamed else None, sentence, *fired)


def _conclude(
    verdict: str, runs: _Runs, target: Path, causes: list[Cause], losses: list[Optional[float]], found: Comparison
) -> Proof:
    wrong, right = runs.number_of(target), runs.number_of(None)
    after = [one for one in losses if one is not None]
    if wrong is not None and right is not None and len(after) == len(causes):
        parts = shares(wrong, right, after)
        causes = [replace(cause, share=share) for cause, share in zip(causes, parts)]
    exact = all(row.distance in (0, 0.0, None) for _, row in found.rows())
    rest = "" if found.origin is None else found.origin.sentence
    step = None if runs.number else max(runs.steps, default=None)
    return Proof(verdict, tuple(causes), exact, step, wrong, right, tuple(after), rest, number=runs.number)


class _Runs:
    """The runs of one request. All are recorded as the golden dump is: the same steps and the same level."""

    def __init__(self, request: Request, golden: Dump, say: Callable[[str], None]) -> None:
        self._request = request
        self._say = say
        self._count = 0
        self.golden = golden
        tensors = open_dump(request.tensors) if request.tensors is not None else golden
        self._golden = {(rank.step, rank.rank): rank for rank in golden.ranks}
        self._names: dict[str, str] = {}
        """The golden name of each grafted call."""
        self._tensors = {(rank.step, rank.rank): rank for rank in tensors.ranks}
        self.steps = [step for step in dict.fromkeys(rank.step for rank in tensors.ranks) if step is not None]
        head = golden.ranks[0].head
        self._level = str(head.get("level"))
        if self._level not in ("L0", "L1", "mix"):
            raise DumpError(f"{request.golden} has level {self._level}: prove needs a dump of level L0, L1 or mix")

    @property
    def number(self) -> str:
        return "" if self._request.number is None else self._request.number.text

    def number_of(self, dump: Optional[Path]) -> Optional[float]:
        """The loss of a run, or what its script printed; of the golden run without `dump`."""
        wanted = self._request.number
        if wanted is None:
            return _loss(self.golden if dump is None else open_dump(dump), self.steps)
        return wanted.golden if dump is None else wanted.read(dump.parent / _PRINTED)

    def check_steps(self, target: Path) -> None:
        """Raises DumpError if the target lacks a step of the golden dump: its loss would be that of a different one."""
        missing = [step for step in self.steps if step not in open_dump(target).steps]
        if missing:
            raise DumpError(f"the target has no step {missing[0]}, which the golden dump has: give both the same steps")

    def record(self) -> Path:
        return self._run(self._begin(""), ())

    def graft(self, grafts: Sequence[Graft], title: str, names: Sequence[str]) -> tuple[Path, tuple[int, int]]:
        """Runs the script with the grafts. Returns the dump, how often the grafts of this cause ran, and what they
        changed."""
        own = {title, *names}
        more = f" and {count(len(own) - 1, 'more call')} of its line" if len(own) > 1 else ""
        directory = self._begin(f", with {title}{more} replaced")
        dump = self._run(directory, tuple(grafts))
        self._accept(dump, grafts)
        done = changed = passed_over = 0
        for file in sorted((directory / "report").iterdir()):
            found = json.loads(file.read_text(encoding="utf-8"))
            for problem in found["problems"]:
                raise DumpError(f"the graft failed at {problem}")
            passed_over += len(found["passed_over"])
            done += sum(times for one, times in found["done"].items() if any(_is_of(one, name) for name in own))
            changed += sum(times for one, times in found["changed"].items() if any(_is_of(one, name) for name in own))
        if passed_over:
            self._say(f"{count(passed_over, 'call')} kept the own result: a different argument has a cause of its own")
        if not done:
            raise DumpError(f"the graft never ran: the script did not call {title} where msprobe sees it")
        return dump, (done, changed)

    def _accept(self, dump: Path, grafts: Sequence[Graft]) -> None:
        """Writes the golden run's plain arguments into the records of grafted calls, and its records of the calls
        inside grafted modules: the run no longer depends on them, so they are no difference of this run."""
        for rank in open_dump(dump).ranks:
            place = (rank.step, rank.rank)
            names = [one.name for one in grafts if (one.step, one.rank) == place]
            if place not in self._golden or not names:
                continue
            content = json.loads((rank.path / layout.DUMP).read_bytes())
            source = self._tensors[place]  # what a graft has is from there, and it is the smaller dump
            for name in names:
                record, golden = content["data"].get(name), source.records.get(self._names.get(name, name))
                for key in (INPUT_ARGS, INPUT_KWARGS):
                    if isinstance(record, dict) and isinstance(golden, dict) and key in record and key in golden:
                        record[key] = _with_plain(record[key], golden[key])
            modules = {
                one.name: self._names.get(one.name, one.name)
                for one in grafts
                if one.name in names and one.what == "output" and is_module(one.name)
            }
            if modules:
                whole = self._golden[place]
                content["data"] = _with_golden_inside(content["data"], rank, whole, modules)
                _add_places(rank.path, whole)
            layout.write_file(rank.path / layout.DUMP, [json.dumps(content).encode()])

    def plan(self, found: Comparison, name: str, origin: Origin, of_line: bool = False) -> Iterator[Graft]:
        """The grafts of one call: in every step and rank of the golden dump. `of_line`: a call that is grafted because
        it is of the same line as the blamed one, only if its arguments agree with the golden ones."""
        what = "output"
        if parse_name(name).direction == BACKWARD:
            what = "gradient"
        elif origin.kind in ("weight", "parameter") and origin.name.startswith(name):
            what = "parameters"
        elif origin.kind in _INPUTS and origin.name == name:
            what = "input"
        for unit in found.units:
            source = self._tensors.get((unit.step, unit.rank))
            if source is None or unit.step is None or (what == "parameters" and unit.step != min(self.steps)):
                continue
            for own_name, golden_name in _find_calls(unit, name):
                if golden_name not in source.records:
                    raise NeedsTensors(self._explain(golden_name, unit.step))
                self._names[forward_of(own_name)] = forward_of(golden_name)
                yield self._graft(forward_of(own_name), source, golden_name, what, of_line and what == "output")
                backward = backward_of(golden_name)
                if what == "output" and self._has_tensors(source, backward):
                    yield self._graft(own_name, source, backward, "gradient", with_given=True)
                if what == "output" and is_module(name):
                    yield from self._gradients_inside(source, parse_name(own_name).key, parse_name(golden_name).key)

    def _gradients_inside(self, source: RankDump, own: str, golden: str) -> Iterator[Graft]:
        """The gradients of all parameters of a module, and of the modules inside it."""
        own_path, golden_path = own.rpartition(".")[0], golden.rpartition(".")[0]
        for name in source.records:
            parsed = parse_name(name)
            is_inside = parsed.key == golden or parsed.key.startswith(f"{golden_path}.")
            if parsed.direction == PARAMETERS_GRAD and is_inside and self._has_tensors(source, name):
                slots, files = self._files(source, name, "parameters_grad.", False)
                names = tuple(slot.partition(".")[2] for slot in slots)
                assert source.step is not None
                title = own if parsed.key == golden else own_path + parsed.key[len(golden_path) :]
                yield Graft(title, source.step, source.rank, "parameter_gradients", files, names)

    def _has_tensors(self, source: RankDump, name: str) -> bool:
        found = [item for _, item in items(source.records.get(name) or {}) if isinstance(item, dict)]
        return bool(found) and all("dtype" not in item or isinstance(item.get("data_name"), str) for item in found)

    def _graft(self, name: str, source: RankDump, golden_name: str, what: str, with_given: bool = False) -> Graft:
        part = {"output": "output", "gradient": "output", "input": "input", "parameters": "parameters."}[what]
        slots, files = self._files(source, golden_name, part, what == "gradient")
        given = self._files(source, golden_name, "input", what == "gradient")[1] if with_given else ()
        names = tuple(slot.partition(".")[2] for slot in slots) if what == "parameters" else ()
        assert source.step is not None
        return Graft(name, source.step, source.rank, what, files, names, given)

    def _files(
        self, source: RankDump, name: str, part: str, with_gaps: bool
    ) -> tuple[list[str], tuple[Optional[str], ...]]:
        """The tensor files of one part of a record. `with_gaps`: a gradient that is missing keeps its place."""
        slots: list[str] = []
        files: list[Optional[str]] = []
        for slot, item in items(source.records[name]):
            is_tensor = isinstance(item, dict) and "dtype" in item
            if not slot.startswith(part) or not (is_tensor or with_gaps):
                continue
            data = item.get("data_name") if is_tensor else None
            slots.append(slot)
            if isinstance(data, str):
                files.append(str(source.tensor_path(data).resolve()))
            elif is_tensor:
                raise NeedsTensors(self._explain(name, source.step))
            else:
                files.append(None)
        return slots, tuple(files)

    def _explain(self, name: str, step: Optional[int]) -> str:
        """Which command collects just what is needed."""
        settings = {
            "task": "tensor",
            "dump_path": "./golden_call",
            "step": [step],
            "level": self._level,
            "tensor": {"list": list(dict.fromkeys((forward_of(name), backward_of(forward_of(name)))))},
        }
        words = self.golden.ranks[0].run.get("command")
        script = " ".join(map(str, words[1:])) if isinstance(words, list) else "GOLDEN_SCRIPT"
        return (
            f"the golden dump has no tensors of {name}. Collect them with `msprobe run --config call.json {script}` "
            f"and give --tensors golden_call; call.json is {json.dumps(settings)}"
        )

    def _begin(self, what: str) -> Path:
        self._count += 1
        directory = self._request.directory / f"run{self._count}"
        directory.mkdir(mode=0o750)
        self._say(f"run {self._count} of {self._request.script}{what}")
        return directory

    def _run(self, directory: Path, grafts: tuple[Graft, ...]) -> Path:
        config, dump, report = directory / "config.json", directory / "dump", directory / "report"
        report.mkdir(mode=0o750)
        settings = {
            "task": "statistics",
            "dump_path": str(dump),
            "step": self.steps,
            "level": self._level,
            "statistics": {"summary_mode": "md5"},
        }
        config.write_text(json.dumps(settings), encoding="utf-8")
        config.chmod(0o640)
        last = None if self.number else max(self.steps, default=0)
        directions = Directions(str(config), last, grafts=grafts, whole=False, report=str(report))
        kept = directory / _PRINTED if self.number else None
        code = run_script(self._request.script, directions, directory, dict(os.environ), kept)
        if code:
            raise DumpError(f"{self._request.script} failed with exit code {code} in run {self._count}")
        if not dump.is_dir():
            raise DumpError(f"run {self._count} of {self._request.script} recorded nothing: it called no model")
        if self._request.number is not None:
            self._request.number.read(directory / _PRINTED)  # raises if the script does not print it
        return dump


def _with_golden_inside(
    own: dict[str, Any], rank: RankDump, source: RankDump, modules: Mapping[str, str]
) -> dict[str, Any]:
    """The records of a step, in which the calls inside grafted modules are those of the golden run."""
    found: dict[str, Any] = {}
    for name, record in own.items():
        module = modules.get(forward_of(name))
        if module is not None:
            wanted = FORWARD if name in modules else BACKWARD
            inside = [one for one in source.records if _is_inside(source, one, module) and _phase(one) == wanted]
            found.update((one, _without_files(source.records[one])) for one in inside)
        if not any(_is_inside(rank, name, one) for one in modules):
            found[name] = record
    return found


def _phase(name: str) -> str:
    return FORWARD if parse_name(name).direction == FORWARD else BACKWARD


def _without_files(value: Any) -> Any:
    """A record that names no tensor files."""
    if isinstance(value, list):
        return [_without_files(one) for one in value]
    if isinstance(value, dict):
        return {key: _without_files(one) for key, one in value.items() if key != "data_name"}
    return value


def _is_inside(rank: RankDump, name: str, module: str) -> bool:
    """Whether a record belongs to a call inside a call of a module, forward or backward, or to its parameters."""
    parsed = parse_name(name)
    if parsed.direction == PARAMETERS_GRAD:
        path = parse_name(module).key
        return parsed.key == path or parsed.key.startswith(f"{path.rpartition('.')[0]}.")
    above = rank.construct.get(name)
    while above is not None:
        if forward_of(above) == module:
            return True
        above = rank.construct.get(above)
    return False


def _add_places(directory: Path, source: RankDump) -> None:
    """Adds the places of golden calls to construct.json."""
    file = directory / layout.CONSTRUCT
    if file.is_file():
        own = json.loads(file.read_bytes())
        layout.write_file(file, [json.dumps({**source.construct, **own}).encode()])


def _with_plain(own: Any, golden: Any) -> Any:
    """The arguments of a call with the golden plain values, and with its own tensors."""
    if isinstance(own, dict) and "dtype" in own:
        return own
    if isinstance(own, list) and isinstance(golden, list) and len(own) == len(golden):
        return [_with_plain(one, other) for one, other in zip(own, golden)]
    if isinstance(own, dict) and isinstance(golden, dict) and "type" not in own and own.keys() == golden.keys():
        return {key: _with_plain(own[key], golden[key]) for key in own}
    return golden


def _is_of(call: str, name: str) -> bool:
    return call == forward_of(name) or parse_name(call).key == name


def _find_calls(unit: UnitResult, name: str) -> Iterator[tuple[str, str]]:
    """The calls of the target with this name, or of the module with this name, and the golden calls that correspond."""
    for match, _ in unit.groups:
        if match.target is None or match.golden is None:
            continue
        parsed = parse_name(match.target.name)
        if match.target.name == name or (parsed.key == name and parsed.direction == FORWARD):
            yield match.target.name, match.golden.name


def _loss(dump: Dump, steps: Sequence[int]) -> Optional[float]:
    """The loss at the last step, on the first rank: the number from which the first backward pass began."""
    last = [rank for rank in dump.ranks if not steps or rank.step in steps]
    for rank in sorted(last, key=lambda one: (-(one.step or 0), one.rank or 0))[:1]:
        for event in rank.training:
            name = event.get("after")
            if event.get("event") != "backward" or not isinstance(name, str):
                continue
            record = rank.records.get(name) if parse_name(name).direction == FORWARD else None
            values = [item for slot, item in items(record or {}) if slot == "output.0"]
            if values and isinstance(values[0], dict) and values[0].get("shape") == []:
                found = values[0].get("Max")
                return float(found) if isinstance(found, (int, float)) else None
    return None


def _lines(proof: Proof) -> Iterator[str]:
    causes = proof.causes
    names = " and ".join(one.title for one in causes)
    how = "bit for bit" if proof.exact else "within rounding"
    what = proof.number or "loss"
    when = "" if proof.step is None else f" at step {proof.step}"
    loss = "" if proof.golden is None or not proof.after else f", {what} {proof.after[-1]:.6g}{when}"
    if proof.verdict == PROVED:
        yield f"Proved: with {names} replaced by the golden result, the run is the same ({how}{loss})"
    elif proof.verdict == NOT_THE_CAUSE:
        yield f"Not the cause: with {names} replaced by the golden result, the run still differs"
    else:
        yield f"Not proved: with {names} replaced by the golden result, the run still differs"
    for number, one in enumerate(causes, 1):
        head = f"cause {number}" if len(causes) > 1 else "cause"
        yield f"  {head:<8}{one.title}" + (f" in {one.module}" if one.module and one.module != one.name else "")
        yield f"  {'':<8}{one.sentence}"
        if one.source:
            yield f"  source  {one.source}"
        if one.share is not None and proof.target is not None and proof.golden is not None:
            yield (
                f"  share   {one.share:.0%} of the difference of {proof.number or 'the loss'}{when} "
                f"({proof.target:.6g}, golden {proof.golden:.6g})"
            )
        yield (
            f"  graft   ran {count(one.ran, 'time')} and changed {count(one.changed, 'value')}; grafting its own "
            "values changed no bit"
        )
    if proof.verdict != PROVED and proof.rest:
        yield f"  now     {proof.rest}"
