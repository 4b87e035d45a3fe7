"""Checks JSON against the schemas of `msprobe schema`, with the package jsonschema."""

from __future__ import annotations

from typing import Any

import jsonschema

from msprobe.schemas import schema


def check_schema(name: str, value: Any) -> None:
    """Raises jsonschema.ValidationError if the value does not fit."""
    jsonschema.Draft202012Validator(schema(name)).validate(value)
