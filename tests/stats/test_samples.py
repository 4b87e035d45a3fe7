"""Samples: the C kernel and the Python version read the same elements and give the same sums."""

from __future__ import annotations

import numpy as np
import pytest

from msprobe.stats import dtypes, samples
from msprobe.watch.gauge import Samples

kernel = pytest.importorskip("msprobe.stats._kernel")
FLOATS = [row for row in dtypes.TABLE if row.kind == dtypes.FLOAT and row.numpy_dtype is not None]
SIZES = (1, 15, 16, 100, 4096, 4097, 70_001)


def places_of(arrays, code):
    return [(n, array.__array_interface__["data"][0], code, array.size) for n, array in enumerate(arrays)]


@pytest.mark.parametrize("row", FLOATS, ids=lambda row: row.name)
def test_both_read_the_same_and_give_the_same_sums(row):
    random = np.random.RandomState(0)
    arrays = [np.abs(random.randn(size)).astype(row.numpy_dtype) for size in SIZES]
    places = places_of(arrays, row.code)
    ours, theirs = (np.zeros(sum(min(size, samples.SAMPLE) for size in SIZES)) for _ in range(2))
    for _ in range(2):
        first, second = np.full((2, len(SIZES), 2), -1.0)
        kernel.advance(places, ours, first)
        samples.advance(places, theirs, second)
        assert (ours == theirs).all()
        assert first == pytest.approx(second, rel=1e-12)
        for array in arrays:
            array[:] = (array.astype(np.float32) * 2).astype(row.numpy_dtype)


@pytest.mark.parametrize(("code", "elements", "short"), [(3, 4, 0), (11, 0, 0), (18, 4, 0), (11, 4, 1)])
def test_what_cannot_be_sampled_is_refused(code, elements, short):
    array = np.ones(4, np.float32)
    places = [(0, array.__array_interface__["data"][0], code, elements)]
    with pytest.raises(ValueError, match=r"a place must have|too short"):
        kernel.advance(places, np.zeros(4 - short), np.zeros((1, 2)))


def test_the_norms_of_a_large_tensor_are_estimated_from_its_sample():
    array = np.ones(100_000, np.float32)
    sampled = Samples()
    sampled.take(places_of([array], 11))
    array += 0.5
    numbers, moved, before = sampled.changes(places_of([array], 11))
    assert numbers == [0]
    assert moved == pytest.approx([0.5 * 100_000**0.5])
    assert before == pytest.approx([100_000**0.5])


def test_a_parameter_that_appears_has_no_change_at_first_and_one_that_moves_in_memory_has():
    first, second = np.ones(10, np.float32), np.ones(20, np.float32)
    sampled = Samples()
    sampled.take(places_of([first], 11))
    assert sampled.changes(places_of([first, second], 11))[0] == []
    moved = second + 1
    numbers, changes, _ = sampled.changes(places_of([first, moved], 11))
    assert numbers == [0, 1]
    assert changes == pytest.approx([0, 20**0.5])
