"""The longest common order of two token sequences, in near-linear time.

Exact longest-common-subsequence is quadratic; the calls of a model are a long, repetitive sequence, mostly equal on
both sides. So this code strips the common ends, splits at tokens (then at runs of tokens) that occur once on each side,
solves small parts exactly, and pairs the rest by occurrence. The result is always strictly increasing on both sides; it
is the longest one only where the exact solver was used: inside one module, where it matters.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Sequence

_EXACT_CELLS = 4_096
_RUNS = (1, 4, 16)

Pairs = list[tuple[int, int]]


def common_order(left: Sequence[Hashable], right: Sequence[Hashable]) -> Pairs:
    """Index pairs (i, j), increasing in both, with left[i] == right[j]."""
    found: Pairs = []
    stack = [(0, len(left), 0, len(right))]
    while stack:
        a, a_end, b, b_end = stack.pop()
        while a < a_end and b < b_end and left[a] == right[b]:
            found.append((a, b))
            a += 1
            b += 1
        while a < a_end and b < b_end and left[a_end - 1] == right[b_end - 1]:
            a_end -= 1
            b_end -= 1
            found.append((a_end, b_end))
        if a >= a_end or b >= b_end:
            continue
        if (a_end - a) * (b_end - b) <= _EXACT_CELLS:
            found.extend(_exact(left, right, a, a_end, b, b_end))
            continue
        anchors = _anchors(left, right, a, a_end, b, b_end)
        if not anchors:
            found.extend(_by_occurrence(left, right, a, a_end, b, b_end))
            continue
        for i, j in anchors:
            found.append((i, j))
            stack.append((a, i, b, j))
            a, b = i + 1, j + 1
        stack.append((a, a_end, b, b_end))
    found.sort()
    return found


def _exact(left: Sequence[Hashable], right: Sequence[Hashable], a: int, a_end: int, b: int, b_end: int) -> Pairs:
    width = b_end - b
    lengths = [[0] * (width + 1)]
    for i in range(a_end - 1, a - 1, -1):
        below = lengths[-1]
        row = [0] * (width + 1)
        token = left[i]
        for j in range(width - 1, -1, -1):
            if token == right[b + j]:
                row[j] = below[j + 1] + 1
            else:
                row[j] = below[j] if below[j] >= row[j + 1] else row[j + 1]
        lengths.append(row)
    lengths.reverse()
    pairs: Pairs = []
    i = j = 0
    height = a_end - a
    while i < height and j < width:
        if left[a + i] == right[b + j]:
            pairs.append((a + i, b + j))
            i += 1
            j += 1
        elif lengths[i + 1][j] >= lengths[i][j + 1]:
            i += 1
        else:
            j += 1
    return pairs


def _anchors(left: Sequence[Hashable], right: Sequence[Hashable], a: int, a_end: int, b: int, b_end: int) -> Pairs:
    """Pairs at runs that occur once on each side, kept in order."""
    for run in _RUNS:
        first = _unique_runs(left, a, a_end, run)
        second = _unique_runs(right, b, b_end, run)
        pairs = sorted((i, second[token]) for token, i in first.items() if token in second)
        if pairs:
            return increasing(pairs)
    return []


def _unique_runs(tokens: Sequence[Hashable], start: int, end: int, run: int) -> dict[Hashable, int]:
    places: dict[Hashable, int] = {}
    for i in range(start, end - run + 1):
        token = tokens[i] if run == 1 else tuple(tokens[i : i + run])
        places[token] = -1 if token in places else i
    return {token: i for token, i in places.items() if i >= 0}


def _by_occurrence(
    left: Sequence[Hashable], right: Sequence[Hashable], a: int, a_end: int, b: int, b_end: int
) -> Pairs:
    """The k-th of a token with the k-th of the same token, as far as that keeps the order."""
    places: dict[Hashable, list[int]] = {}
    for j in range(b_end - 1, b - 1, -1):
        places.setdefault(right[j], []).append(j)
    pairs: Pairs = []
    for i in range(a, a_end):
        waiting = places.get(left[i])
        if waiting:
            pairs.append((i, waiting.pop()))
    return increasing(pairs)


def increasing(pairs: Pairs) -> Pairs:
    """The longest part of pairs (sorted by i) that also increases in j."""
    tails: list[int] = []
    at: list[int] = []
    back: list[int] = []
    for index, (_, j) in enumerate(pairs):
        place = bisect_left(tails, j)
        back.append(at[place - 1] if place else -1)
        if place == len(tails):
            tails.append(j)
            at.append(index)
        else:
            tails[place] = j
            at[place] = index
    chain: Pairs = []
    index = at[-1] if at else -1
    while index >= 0:
        chain.append(pairs[index])
        index = back[index]
    chain.reverse()
    return chain
