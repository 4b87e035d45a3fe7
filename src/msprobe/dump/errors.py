"""The error of this package: a sentence for the user."""

from __future__ import annotations


class DumpError(Exception):
    """A dump, or a file in it, cannot be read. The message says which, why, and what to do."""
