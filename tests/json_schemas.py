"""Checks JSON against the schemas of `msprobe schema`, with the package jsonschema."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema

from msprobe.messages import read_message
from msprobe.schemas import schema

MAIN = ("sentence", "reason", "detail")
"""The members that `message` says."""
EVERY_SENTENCE = ("rollout", "overflow", "weights", "api_precision_compare")
"""The verbs that have a message beside each of them, whatever they read."""


def check_schema(name: str, value: Any) -> None:
    """Raises jsonschema.ValidationError if the value does not fit."""
    jsonschema.Draft202012Validator(schema(name)).validate(value)


def check_messages(name: str, value: Any) -> None:
    """Each message says what its sentence says, and is one that a program can read."""
    for record in _objects(value):
        main = next((record[one] for one in MAIN if record.get(one)), None)
        if main is not None and "message" in record:
            assert read_message(record["message"], 1 << 20) == main
        else:
            assert main is None or name not in EVERY_SENTENCE, record
        for member, messages in record.get("messages", {}).items():
            texts = record[member] if isinstance(messages, list) else [record[member]]
            messages = messages if isinstance(messages, list) else [messages]
            assert len(texts) == len(messages)
            for text, message in zip(texts, messages):
                assert message is None or read_message(message, 1 << 20) == text


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _objects(one)
