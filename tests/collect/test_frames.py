"""The C and the Python version of the stack walk distinguish the same stacks."""

from __future__ import annotations

import pytest

from msprobe.collect.records import stacks

_frames = pytest.importorskip(
    "msprobe.collect.records._frames", reason="the C part is not built: no compiler at installation"
)


def both(skip):
    return stacks._key(skip), _frames.key(skip)


def here(skip=1):
    return both(skip + 1)


def deep(depth):
    return deep(depth - 1) if depth else here()


def test_the_same_line_is_the_same_stack_and_another_line_is_not():
    first = [here() for _ in range(3)]
    other = here()
    for walk in range(2):
        assert len({one[walk] for one in first}) == 1
        assert first[0][walk] != other[walk]


def test_both_walks_see_the_same_frames():
    python, c = deep(20)
    words = [int.from_bytes(c[at : at + 8], "little") for at in range(0, len(c), 8)]
    assert words[2:] == list(python)[2:]  # the first frame is `both`, in which the two calls stand at two places


def test_skipping_more_frames_than_there_are_gives_an_empty_stack():
    assert _frames.key(100_000) == b""
