"""The error of this package: a sentence for the user."""

from __future__ import annotations


class DumpError(Exception):
    """A dump, or a file in it, cannot be read. The message says which, why, and what to do."""


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its name if it has none: part of a sentence for the user."""
    lines = str(error).splitlines()
    return (lines[0] if lines else "") or type(error).__name__
