"""Statistics from arrays and from rows of statistic.csv agree, and never claim more than is known."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest

from msprobe.graphdump.dumping.saving import statistics_of
from msprobe.graphdump.files.statistics import Statistics, of_array, of_row


def test_an_arrays_statistics_are_complete():
    found = of_array(np.float32([1, 0, -3, np.nan, np.inf]))
    assert (found.count, found.nan, found.posinf, found.neginf, found.zero) == (5, 1, 1, 0, 1)
    assert (found.finite, found.shape, found.dtype) == (False, (5,), "float32")


def test_types_without_an_order_have_only_a_shape():
    assert of_array(np.array(["a", "b"])) == Statistics("str32", (2,), 2)


def test_complex_tensors_have_a_count_and_a_digest_in_statistic_csv():
    array = np.array([1 + 2j, 3], np.complex64)
    categories = ("max", "min", "avg", "count", "l2norm", "nan count", "md5")
    digest = hashlib.md5(array.tobytes()).hexdigest()
    assert statistics_of(array, categories) == ["", "", "", 2, "", "", digest]


ROW = {
    "Data Type": "Float32",
    "Shape": "(2,3)",
    "Max Value": "3.5",
    "Min Value": "-1",
    "Avg Value": "0.5",
    "L2Norm Value": "4",
    "Count": "6",
    "NaN Count": "0",
    "Positive Inf Count": "0",
    "Negative Inf Count": "0",
    "Zero Count": "2",
    "MD5": "abc",
}


def test_a_full_row_is_read():
    assert of_row(ROW) == Statistics("Float32", (2, 3), 6, 3.5, -1, 0.5, 4, 0, 0, 0, 2, "abc")


@pytest.mark.parametrize("shape", ["(4,)", "()", "( 1 , 2 )"])
def test_shapes_are_read_as_they_are_written(shape):
    assert of_row({"Shape": shape}).shape == tuple(int(part) for part in shape.strip("() ").split(",") if part.strip())


@pytest.mark.parametrize("cells", [{}, {"Shape": "many", "Max Value": "?"}, {"Shape": None, "Count": "nan"}])
def test_a_missing_column_is_unknown(cells):
    found = of_row(cells)
    assert (found.shape, found.max, found.finite, found.largest) == (None, None, None, None)


@pytest.mark.parametrize(
    ("known", "finite"),
    [
        ({"max": 1.0, "min": 0.0}, True),
        ({"max": math.inf, "min": 0.0}, False),
        ({"max": 1.0, "min": 0.0, "norm": math.nan}, False),
        ({"max": 1.0, "min": 0.0, "norm": math.inf}, True),
        ({"norm": 2.0}, True),
        ({"norm": math.inf}, None),
        ({"nan": 0, "posinf": 0, "neginf": 0}, True),
        ({"nan": 1}, False),
        ({"mean": 1.0}, None),
        ({}, None),
    ],
)
def test_finite_is_unknown_unless_the_statistics_decide_it(known, finite):
    assert Statistics("float32", None, **known).finite is finite
