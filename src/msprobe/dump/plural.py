"""Counts in messages."""

from __future__ import annotations


def count(number: int, word: str, plural: str = "") -> str:
    """A count with its word: 1 step, 2 steps."""
    return f"{number} {word if number == 1 else plural or f'{word}s'}"


def are(number: int) -> str:
    return "is" if number == 1 else "are"


def have(number: int) -> str:
    return "has" if number == 1 else "have"


def were(number: int) -> str:
    return "was" if number == 1 else "were"
