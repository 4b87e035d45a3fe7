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
from typing import Any, Union

TABLE = Path(__file__).with_name("sentences.json")
PLACE = re.compile(r"\{(\w+)(?:\|([^|{}]*)\|([^|{}]*)|:([^{}]*))?\}")
ENGLISH, CHINESE = 0, 1

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
        return _render(sentences()[self.id][CHINESE], self.args, in_chinese)

    def as_json(self) -> dict[str, Any]:
        """`{"id": …, "args": {…}}`; an argument that is a message has its `text` too."""
        return {"id": self.id, "args": {name: _argument_as_json(value) for name, value in self.args.items()}}


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


def messages_of(record: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """The member `messages` of a JSON object: for each of its sentences, and each list of sentences, id and arguments.
    Text that is no message, such as the error of a library, has null."""
    return {name: _beside(record[name]) for name in names if record.get(name)}


def _beside(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_beside(one) for one in value]
    return value.as_json() if isinstance(value, Message) else None


def translations(texts: Iterable[str]) -> dict[str, str]:
    """The Chinese text of each message by its English text, for the page."""
    return {str(text): text.chinese for text in texts if isinstance(text, Message)}
