"""The sentences of msprobe: an id with named arguments, and from a table the text in English and in Chinese.

A `Message` is its English text, so it is printed, counted and compared like any text. Beside the text it keeps its id
and its arguments, for programs (`as_json`) and for other languages (`chinese`). sentences.json has both texts of each
id. In them `{name}` is an argument, `{name|call|calls}` the first word if the argument is 1 and else the second, and
`{name:, }` the items of a list with ", " between them. An argument may be a message itself.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional, Union

TABLE = Path(__file__).with_name("sentences.json")
PLACE = re.compile(r"\{(\w+)(?:\|([^|{}]*)\|([^|{}]*)|:([^{}]*))?\}")
ENGLISH, CHINESE = 0, 1
MOST_DEPTH, MOST_ITEMS = 8, 100
"""Of a message in a file."""

Argument = Union[str, int, Sequence[str]]


@functools.lru_cache(maxsize=1)
def sentences() -> Mapping[str, tuple[str, str]]:
    """The English and the Chinese text of each id."""
    table: dict[str, tuple[str, str]] = json.loads(TABLE.read_text(encoding="utf-8"))
    return table


class Message(str):
    """A sentence, or a part of one. The value is its English text."""

    __slots__ = ("args", "id")
    id: str
    args: Mapping[str, Argument]

    def __new__(cls, id: str, /, **args: Argument) -> Message:
        self = super().__new__(cls, _render(sentences()[id][ENGLISH], args, str))
        self.id = id
        self.args = args
        return self

    def __reduce__(self) -> tuple[Callable[..., Message], tuple[str, Mapping[str, Argument]]]:
        return _made, (self.id, self.args)

    def __deepcopy__(self, memo: object) -> Message:
        return self  # nothing in it changes

    @property
    def chinese(self) -> str:
        return _render(sentences()[self.id][CHINESE], self.args, in_chinese).replace("） ", "）")

    def as_json(self) -> dict[str, Any]:
        """`{"id": …, "arguments": {…}}`; an argument that is a message has its `text` too."""
        return {"id": self.id, "arguments": {name: _argument_as_json(value) for name, value in self.args.items()}}


def _made(id: str, args: Mapping[str, Argument]) -> Message:
    return Message(id, **args)


def _render(template: str, args: Mapping[str, Argument], text_of: Callable[[Any], str]) -> str:
    def fill(found: re.Match[str]) -> str:
        name, one, many, separator = found.groups()
        value = args[name]
        if one is not None:
            return one if value == 1 else many
        if separator is not None:
            assert not isinstance(value, (str, int))
            return str(separator).join(map(text_of, value))
        return text_of(value)

    return PLACE.sub(fill, template) if args else template


def in_chinese(text: object) -> str:
    """The Chinese text of a message; other text, such as a name, as it is."""
    return text.chinese if isinstance(text, Message) else str(text)


def _argument_as_json(value: Any) -> Any:
    if isinstance(value, Message):
        return {**value.as_json(), "text": str(value)}
    if isinstance(value, (list, tuple)):
        return [_argument_as_json(one) for one in value]
    return value


def beside(record: Mapping[str, Any], main: str, *more: str) -> dict[str, Any]:
    """The members of a JSON object that say its sentences to programs: `message` for the member `main`, and in
    `messages` those of further members, by their names. Text that is no message, such as the error of a library, has
    none; in a list it has null."""
    found: dict[str, Any] = {}
    if isinstance(record.get(main), Message):
        found["message"] = record[main].as_json()
    others = {name: _as_json(record[name]) for name in more if record.get(name)}
    messages = {name: value for name, value in others.items() if value is not None}
    return {**found, "messages": messages} if messages else found


def _as_json(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_as_json(one) for one in value]
    return value.as_json() if isinstance(value, Message) else None


def translations(texts: Iterable[str]) -> dict[str, str]:
    """The Chinese text of each message by its English text, for the page."""
    return {str(text): text.chinese for text in texts if isinstance(text, Message)}


def read_message(value: Any, longest: int, depth: int = 0) -> Optional[Message]:
    """A message in a file that is not trusted; None if it is not one that this version knows."""
    if not isinstance(value, dict) or depth > MOST_DEPTH:
        return None
    id, given = value.get("id"), value.get("arguments")
    if not isinstance(id, str) or id not in sentences() or not isinstance(given, dict):
        return None
    listed = {name: separator is not None for name, _, _, separator in _places(sentences()[id][ENGLISH])}
    args: dict[str, Argument] = {}
    for name, is_list in listed.items():
        values = given.get(name) if is_list else [given.get(name)]
        if not isinstance(values, list) or len(values) > MOST_ITEMS:
            return None
        read = [_read_argument(one, longest, depth) for one in values]
        texts = [one for one in read if one is not None]
        if len(texts) < len(read):
            return None
        args[name] = [str(one) if isinstance(one, int) else one for one in texts] if is_list else texts[0]
    return Message(id, **args)


def _places(template: str) -> list[tuple[str, Optional[str], Optional[str], Optional[str]]]:
    return [found.groups() for found in PLACE.finditer(template)]  # type: ignore[misc]


def _read_argument(value: Any, longest: int, depth: int) -> Union[str, int, None]:
    if isinstance(value, dict):
        return read_message(value, longest, depth + 1)
    if isinstance(value, str):
        return value if len(value) <= longest else None
    return value if type(value) is int and abs(value) < 1 << 53 else None
