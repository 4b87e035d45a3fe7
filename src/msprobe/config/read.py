"""From a file to JSON values, with errors that give line and column and say what to do.

Python's own parser keeps the last of two equal keys and raises on numbers of thousands of digits. This one records
repeated keys, and turns long numbers into floats, which no key accepts.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections import Counter
from pathlib import Path

from msprobe.config.errors import ConfigError, Problem, show_found

LARGEST_FILE = 4 * 1024 * 1024
PACKAGED = Path(__file__).parent.parent / "config.json"
_WORDS = {"True": "true", "False": "false", "None": "null is not allowed; leave the key out"}


class Members(dict[str, object]):
    """A JSON object that knows which of its keys the file has more than once."""

    repeated: tuple[str, ...] = ()


def read(config_path: str | os.PathLike[str] | None, forgiven: list[str] | None = None) -> tuple[str, object]:
    """The name to use in messages, and the file's JSON value. Raises ConfigError.

    With `forgiven`, a comma after the last item is noted there and is not an error.
    """
    if config_path is None:
        config_path = PACKAGED
    if not isinstance(config_path, (str, os.PathLike)):
        raise ConfigError(
            "argument config_path", [Problem("argument config_path", show_found(config_path), "allowed: a path")]
        )
    source = os.fsdecode(config_path).encode("utf-8", "backslashreplace").decode("utf-8")
    path = Path(os.fsdecode(config_path))
    with contextlib.suppress(RuntimeError):  # ~name of an unknown user
        path = path.expanduser()
    return source, parse(source, _text(source, path), forgiven)


def parse(source: str, text: str, forgiven: list[str] | None = None) -> object:
    """JSON text to values, as `read`."""
    if text.startswith("\ufeff"):
        raise ConfigError(source, [_at(text, 0, "a byte order mark", "save the file as UTF-8 without one")])
    if not text.strip():
        raise ConfigError(source, [_at(text, 0, "the file is empty", "write at least {}, or give no file")])
    try:
        while True:
            try:
                return json.loads(text, object_pairs_hook=_members, parse_int=_number)
            except json.JSONDecodeError as error:
                comma = _last_comma(text, error.pos)
                if comma is None or forgiven is None:
                    raise ConfigError(source, [_syntax(text, error)]) from None
                forgiven.append(f"{_at(text, comma, '', '').path}: a comma after the last item is ignored; remove it")
                text = f"{text[:comma]} {text[comma + 1 :]}"
    except RecursionError:
        raise ConfigError(source, [Problem("file", "nested too deeply", "allowed: two levels of objects")]) from None


def _text(source: str, path: Path) -> str:
    def refuse(what: str, remedy: str) -> ConfigError:
        return ConfigError(source, [Problem("file", what, remedy)])

    try:
        mode = path.stat().st_mode
        data = b""
        if stat.S_ISREG(mode):
            with path.open("rb") as stream:
                data = stream.read(LARGEST_FILE + 1)
    except FileNotFoundError:
        raise refuse("this file does not exist", f"check the path (working directory: {_cwd()})") from None
    except (OSError, ValueError) as error:
        raise refuse(f"cannot read the file ({error})", "check the path and its permissions") from None
    if stat.S_ISDIR(mode):
        raise refuse("this is a directory", "name the config.json in it")
    if not stat.S_ISREG(mode):
        raise refuse("this is not a regular file", "name a JSON file")
    if len(data) > LARGEST_FILE:
        raise refuse(
            f"the file is larger than {LARGEST_FILE} bytes", "this is not a configuration file; check the path"
        )
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        what = f"byte {error.start} (line {line}) is not UTF-8"
        raise refuse(what, "save the file as UTF-8 without a byte order mark") from None


def _cwd() -> str:
    try:
        return str(Path.cwd())
    except OSError:
        return "it no longer exists"


def _members(pairs: list[tuple[str, object]]) -> Members:
    members = Members(pairs)
    if len(members) < len(pairs):
        members.repeated = tuple(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
    return members


def _number(digits: str) -> int | float:
    return int(digits) if len(digits) < 20 else float(digits)


def _at(text: str, position: int, what: str, remedy: str) -> Problem:
    line = text.count("\n", 0, position) + 1
    column = position - text.rfind("\n", 0, position)
    return Problem(f"line {line}, column {column}", what, remedy)


def _last_comma(text: str, position: int) -> int | None:
    """Where a comma before a closing bracket is, if that is what is wrong here."""
    rest = text[position:].lstrip()
    before = text[:position].rstrip()
    if rest[:1] == "," and rest[1:].lstrip()[:1] in ("}", "]"):
        return len(text) - len(rest)
    if before[-1:] == "," and rest[:1] in ("}", "]"):
        return len(before) - 1
    return None


def _syntax(text: str, error: json.JSONDecodeError) -> Problem:
    """Python versions differ in the message and the position. This reads the text itself, so ours never change."""
    position = error.pos
    rest = text[position:].lstrip()
    comma = _last_comma(text, position)
    position = len(text) - len(rest)
    if comma is not None:
        return _at(text, comma, "a comma after the last item", "remove it")
    if rest[:2] in ("//", "/*") or rest[:1] == "#":
        return _at(text, position, "a comment", "JSON has no comments; remove it")
    if rest[:1] == "'":
        return _at(text, position, "a single quote", 'use double quotes (")')
    for word, instead in _WORDS.items():
        if rest.startswith(word):
            return _at(text, position, word, f"write {instead}" if instead == word.lower() else instead)
    if not rest:
        return _at(text, len(text), "the file ends too early", "a closing bracket or quote is missing")
    return _at(text, error.pos, f"not JSON ({error.msg})", "correct it there or just before")
