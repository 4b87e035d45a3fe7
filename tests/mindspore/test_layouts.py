"""How `mindspore.Layout` is written down, held against MindSpore's own cutting of a tensor."""

from __future__ import annotations

import numpy as np
import pytest
from mindspore import Layout, Tensor
from mindspore.parallel._tensor import _load_tensor

from msprobe.collect.parallel import ParallelRecord, RunHeader
from msprobe.dump.parallel import read_parallel
from msprobe.mindspore.parallel import Layouts


def described(layout, shape):
    """The layout as it is read back."""
    facts = {}
    made = Layouts(ParallelRecord(RunHeader(facts.update))).describe(layout.to_dict(), shape, is_part=False)
    assert made is not None
    parallel = read_parallel(facts["parallel"], "run.json")
    return parallel.layout_of({"layout": made})


def cut(array, layout, rank):
    """The part of a rank, by what was written down."""
    for placement, size, at in zip(layout.placements, layout.mesh.shape, layout.mesh.coordinate_of(rank)):
        if placement.kind == "S":
            chunks = np.split(array, placement.factor, axis=placement.dimension)
            pieces = [np.split(chunk, size, axis=placement.dimension)[at] for chunk in chunks]
            array = np.concatenate(pieces, axis=placement.dimension)
    return array


@pytest.mark.parametrize("where", [("dp", "mp"), ("mp", "dp"), ("None", "dp"), ("mp", "None"), ("None", "None")])
def test_each_rank_has_the_part_that_mindspore_gives_it(where):
    layout = Layout((2, 4), ("dp", "mp"))(*where)
    complete = np.arange(64, dtype=np.float32).reshape(8, 8)
    found = described(layout, complete.shape)
    known = layout.to_dict()
    for rank in range(8):
        theirs = _load_tensor(Tensor(complete), list(known["device_matrix"]), list(known["tensor_map"]), [8, 8], rank)
        np.testing.assert_array_equal(cut(complete, found, rank), np.asarray(theirs))


@pytest.mark.parametrize(
    ("where", "placements"), [(("dp", "mp"), ["S(0)", "S(0)"]), (("mp", "dp"), ["S(0,4)", "S(0)"])]
)
def test_two_names_on_one_dimension_cut_one_after_the_other(where, placements):
    found = described(Layout((2, 4), ("dp", "mp"))(where, "None"), (8, 8))
    assert [str(one) for one in found.placements] == placements


def test_interleaved_parallel_has_no_description():
    layout = Layout((2, 2), ("dp", "interleaved_parallel"))("dp", "interleaved_parallel")
    assert Layouts(ParallelRecord(RunHeader(print))).describe(layout.to_dict(), (4, 4), is_part=False) is None
