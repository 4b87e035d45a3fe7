"""The one error of this package: a sentence for the user, who can do something about it."""

from __future__ import annotations


class DumpError(Exception):
    """A dump, or a file in one, cannot be read; the message says which, why, and what to do."""
