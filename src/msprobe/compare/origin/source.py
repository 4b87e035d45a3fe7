"""Where a call is in the user's code, and in the library that made it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Optional

from msprobe.compare.calls import Call, Match, forward_name
from msprobe.dump.names import general_name
from msprobe.dump.stack_frames import Frame, frame_text, is_debugger, is_library, parse_frame

Stacks = tuple[Mapping[str, list[str]], Mapping[str, list[str]]]


Function = tuple[str, str]
"""Its file and its name."""
Lines = tuple[Optional[str], Optional[str]]
"""The line of the target and that of the golden run; None where a run does not make the call."""


Made = tuple[Mapping[str, str], Mapping[str, str]]
"""The frames of the lines that make the modules, in each run, by the general names of the modules."""


def made_in(run: Mapping[str, Any]) -> Mapping[str, str]:
    """From run.json; empty in dumps of other tools."""
    found = run.get("made")
    return {} if not isinstance(found, dict) else {name: one for name, one in found.items() if isinstance(one, str)}


def made_frames(made: Made, module: str) -> tuple[Optional[Frame], Optional[Frame]]:
    """The lines that make a module. The golden run may have a different class at its place."""
    name = general_name(module)
    start = f"{name.rpartition('.')[0]}."
    found = []
    for known in made:
        key = (
            name
            if name in known
            else next((k for k in known if k.startswith(start) and "." not in k[len(start) :]), "")
        )
        found.append(parse_frame(known[key]) if key else None)
    return found[0], found[1]


def model_frames(made: Made, module: str) -> tuple[Optional[Frame], Optional[Frame]]:
    """The lines of the scripts that make the model with this module."""
    first, _, rest = module.partition(".")
    keys = (first, f"{first}.{rest.partition('.')[0]}")  # one model, or several with numbers
    target, golden = (next((parse_frame(known[key]) for key in keys if key in known), None) for known in made)
    return target, golden


def made_lines(made: Made, module: str) -> Lines:
    """`train.py:14: self.norm = nn.LayerNorm(width)`."""
    target, golden = map(_statement, made_frames(made, module))
    return target, golden


def model_lines(made: Made, module: str) -> Lines:
    """`train.py:20: model = LlamaForCausalLM(config)`, where no line of the user's code makes the module itself."""
    own = made_frames(made, module)
    if any(frame is not None and not is_library(frame.file) for frame in own):
        return None, None
    target, golden = map(_statement, model_frames(made, module))
    return target, golden


def _statement(frame: Optional[Frame]) -> Optional[str]:
    if frame is None:
        return None
    return f"{_file_name(frame.file) if is_library(frame.file) else frame.file}:{frame.line}: {frame.text}"


def _file_name(path: str) -> str:
    return path.replace("\\", "/").rpartition("/")[2]


def user_lines(stacks: Stacks, match: Match) -> Lines:
    """`train.py:14 in forward`: the innermost frame outside installed packages."""
    target, golden = _frames(stacks, match)
    return _user_line(target), _user_line(golden)


def user_frames(stacks: Stacks, match: Match) -> tuple[Optional[Frame], Optional[Frame]]:
    """The innermost frames outside installed packages, of the target and of the golden run."""
    target, golden = map(_user_frame, _frames(stacks, match))
    return target, golden


MOST_CALLERS = 3
Callers = tuple[tuple[str, ...], tuple[str, ...]]
"""The lines that call the function with the line, in the target and in the golden run, innermost first."""


def caller_lines(stacks: Stacks, match: Match, lines: Lines) -> Callers:
    """`train.py:79 in write: self.policy(position + 1)`: the user's lines that call the function in which the call is
    made. `lines` are those that are shown of this function."""
    target, golden = (_callers(frames, line) for frames, line in zip(_frames(stacks, match), lines))
    return target, golden


def _callers(frames: list[Frame], line: Optional[str]) -> tuple[str, ...]:
    own = [frame for frame in frames if not is_library(frame.file)]
    top = next((place for place, one in enumerate(own) if one.function == "<module>"), len(own))
    own = own[: top + 1]  # what starts the script, as bin/msprobe does, calls nothing of it
    inside = [
        line is not None and line.startswith(f"{one.file}:") and line.endswith(f" in {one.function}") for one in own
    ]
    around = own[inside.index(True) + 1 :] if True in inside else []
    return tuple(
        f"{one.file}:{one.line} in {one.function}" + (f": {one.text}" if one.text else "")
        for one in around[:MOST_CALLERS]
    )


def library_lines(stacks: Stacks, match: Match) -> Lines:
    """`adam.py:345: param.mul_(1 - lr * weight_decay)`: the innermost frame, if it is in an installed package."""
    target, golden = _frames(stacks, match)
    return _library_line(target), _library_line(golden)


def _user_line(frames: list[Frame]) -> Optional[str]:
    return _text(_user_frame(frames))


def line_of(frame: str) -> Optional[str]:
    """`train.py:14 in forward`, from a recorded frame."""
    return _text(parse_frame(frame))


def frame_of(line: str) -> list[str]:
    """The recorded frame that `line_of` has read, without its text, as a stack."""
    place, _, function = line.rpartition(" in ")
    file, _, number = place.rpartition(":")
    return [frame_text(file, int(number), function, "")] if number.isdecimal() else []


def _text(frame: Optional[Frame]) -> Optional[str]:
    return None if frame is None else f"{frame.file}:{frame.line} in {frame.function}"


def _user_frames(stacks: Mapping[str, list[str]], name: str) -> list[Frame]:
    return [frame for frame in _frames_of(stacks.get(name) or []) if not is_library(frame.file)]


def _user_frame(frames: Iterable[Frame]) -> Optional[Frame]:
    return next((frame for frame in frames if not is_library(frame.file)), None)


def function_of(stacks: Mapping[str, list[str]], call: Optional[Call]) -> Optional[Function]:
    """The innermost function of the user's code in which a call is made."""
    frame = _user_frame(_parsed(stacks, call))
    return None if frame is None else (frame.file, frame.function)


def user_frames_of(stacks: Mapping[str, list[str]], call: Call) -> list[Frame]:
    """The frames of the user's code, innermost first."""
    return [frame for frame in _parsed(stacks, call) if not is_library(frame.file)]


def is_inside(stacks: Mapping[str, list[str]], call: Call, function: Optional[Function]) -> bool:
    """Whether a call is made in a function, or in one that it calls. Everything is made in a script itself, so there it
    must be the innermost."""
    if function is not None and function[1] != "<module>":
        return any((frame.file, frame.function) == function for frame in _parsed(stacks, call))
    return function_of(stacks, call) == function


def span(stacks: Mapping[str, list[str]], names: Sequence[str]) -> Optional[str]:
    """`train.py:14-18 in forward`: the lines of several calls in the innermost function that makes all of them."""
    known = [{(one.file, one.function): one.line for one in reversed(_user_frames(stacks, name))} for name in names]
    inner = next((place for place in reversed(known[-1]) if all(place in lines for lines in known)), None)
    if inner is None:
        return None
    lines = sorted({found[inner] for found in known})
    shown = str(lines[0]) if len(lines) == 1 else f"{lines[0]}-{lines[-1]}"
    return f"{inner[0]}:{shown} in {inner[1]}"


def library_frame(frames: Iterable[Frame]) -> Optional[Frame]:
    """The innermost frame that does more than pass a call on, if it is in an installed package."""
    inner = next((frame for frame in frames if not _passes_on(frame)), None)
    return inner if inner is not None and is_library(inner.file) else None


def _library_line(frames: list[Frame]) -> Optional[str]:
    inner = library_frame(frames)
    if inner is None:
        return None
    return f"{_file_name(inner.file)}:{inner.line}: {inner.text or f'in {inner.function}'}"


def _frames(stacks: Stacks, match: Match) -> Iterator[list[Frame]]:
    """The frames of the target and of the golden run."""
    for call, known in zip((match.target, match.golden), stacks):
        yield _parsed(known, call)


def _parsed(stacks: Mapping[str, list[str]], call: Optional[Call]) -> list[Frame]:
    return _frames_of([] if call is None else stacks.get(call.name) or stacks.get(forward_name(call)) or [])


def _frames_of(texts: Iterable[object]) -> list[Frame]:
    return [frame for text in texts if isinstance(text, str) and (frame := parse_frame(text)) is not None]


def _passes_on(frame: Frame) -> bool:
    """Whether the frame only passes a call on."""
    dispatching = "handle_torch_function" in f"{frame.function} {frame.text}"
    path = frame.file.replace("\\", "/")
    return dispatching or is_debugger(path) or path.endswith(("nn/modules/module.py", "overrides.py"))
