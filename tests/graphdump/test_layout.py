"""Arrays laid out by an independent definition of each format come back bit-exact."""

from __future__ import annotations

import async_samples as samples
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msprobe.graphdump.files.layout import LayoutError, convert

small = st.integers(1, 5)
channels = st.integers(1, 40)


def numbered(*shape: int) -> np.ndarray:
    """No two elements alike, none zero: padding that survives is seen."""
    return np.arange(1, np.prod(shape) + 1, dtype=np.float32).reshape(shape)


def from_nchw(nchw: np.ndarray, target: str) -> np.ndarray:
    return np.einsum(f"nchw->{target.lower()}", nchw)


@settings(max_examples=40, deadline=None)
@given(small, channels, small, small, st.sampled_from([4, 16, 32]), st.sampled_from(["NCHW", "NHWC", "HWCN"]))
def test_nc1hwc0_comes_back_in_every_plain_format(n, c, h, w, c0, target):
    nchw = numbered(n, c, h, w)
    stored = samples.lay_out_nc1hwc0(nchw, c0)
    np.testing.assert_array_equal(convert(stored, "NC1HWC0", target, (n, c, h, w)), from_nchw(nchw, target))


@settings(max_examples=40, deadline=None)
@given(channels, channels, small, small, st.sampled_from(["NCHW", "HWCN", "NHWC"]))
def test_fractal_z_comes_back_in_every_plain_format(n, c, h, w, target):
    nchw = numbered(n, c, h, w)
    stored = samples.lay_out_fractal_z(nchw)
    np.testing.assert_array_equal(convert(stored, "FRACTAL_Z", target, (n, c, h, w)), from_nchw(nchw, target))


@settings(max_examples=25, deadline=None)
@given(small, channels, small, small, small, st.sampled_from(["NCDHW", "NDHWC", "DHWCN"]))
def test_five_dimensional_layouts_come_back(n, c, d, h, w, target):
    ncdhw = numbered(n, c, d, h, w)
    expected = np.einsum(f"ncdhw->{target.lower()}", ncdhw)
    for source, stored in (
        ("NDC1HWC0", samples.lay_out_ndc1hwc0(ncdhw)),
        ("FRACTAL_Z_3D", samples.lay_out_fractal_z_3d(ncdhw)),
    ):
        np.testing.assert_array_equal(convert(stored, source, target, ncdhw.shape), expected, err_msg=source)


@settings(max_examples=40, deadline=None)
@given(st.lists(small, max_size=2), channels, channels, st.sampled_from([16, 32]))
def test_fractal_nz_comes_back_as_the_matrix_it_was(batch, m, n, n0):
    matrix = numbered(*batch, m, n)
    stored = samples.lay_out_fractal_nz(matrix, n0)
    np.testing.assert_array_equal(convert(stored, "FRACTAL_NZ", "ND", matrix.shape), matrix)


def test_fractal_nz_of_an_image_comes_back_in_the_wanted_order():
    nhwc = numbered(2, 3, 20, 18)
    stored = samples.lay_out_fractal_nz(nhwc)
    np.testing.assert_array_equal(convert(stored, "FRACTAL_NZ", "NHWC", nhwc.shape, "NHWC"), nhwc)
    np.testing.assert_array_equal(convert(stored, "FRACTAL_NZ", "NCHW", nhwc.shape, "NHWC"), nhwc.transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(convert(stored, "FRACTAL_NZ", "NCHW", nhwc.shape), nhwc)


def test_fractal_nz_of_a_vector_comes_back_as_a_vector():
    row = numbered(20)
    stored = samples.lay_out_fractal_nz(row.reshape(1, 20))
    np.testing.assert_array_equal(convert(stored, "FRACTAL_NZ", "ND", (20,)), row)


@pytest.mark.parametrize("source", ["NCHW", "NHWC", "HWCN"])
@pytest.mark.parametrize("target", ["NCHW", "NHWC", "HWCN"])
def test_plain_formats_permute_into_each_other(source, target):
    nchw = numbered(2, 3, 4, 5)
    result = convert(from_nchw(nchw, source), source, target)
    np.testing.assert_array_equal(result, from_nchw(nchw, target))


def test_the_original_shape_may_be_in_the_format_of_the_network():
    nchw = numbered(2, 20, 3, 5)
    stored = samples.lay_out_nc1hwc0(nchw)
    np.testing.assert_array_equal(convert(stored, "NC1HWC0", "NCHW", (2, 3, 5, 20), "NHWC"), nchw)
    np.testing.assert_array_equal(convert(stored, "NC1HWC0", "NCHW", (2, 3, 5, 20)), nchw)


def test_a_bias_of_one_dimension_comes_back_in_four():
    bias = numbered(1, 20, 1, 1)
    stored = samples.lay_out_nc1hwc0(bias)
    np.testing.assert_array_equal(convert(stored, "NC1HWC0", "NCHW", (20,)), bias)


def test_without_an_original_shape_the_padding_stays():
    stored = samples.lay_out_nc1hwc0(numbered(1, 20, 2, 2))
    assert convert(stored, "NC1HWC0", "NCHW").shape == (1, 32, 2, 2)
    stored = samples.lay_out_fractal_nz(numbered(20, 30))
    assert convert(stored, "FRACTAL_NZ", "ND").shape == (32, 32)


def test_tensors_without_the_rank_of_their_format_stay_as_they_are():
    bias = numbered(7)
    assert convert(bias, "NCHW", "NHWC") is bias
    assert convert(bias, "ND", "NHWC") is bias


@pytest.mark.parametrize(
    ("stored", "source", "target", "original", "message"),
    [
        ((2, 2, 3, 3, 16), "NC1HWC0", "NCDHW", None, "NC1HWC0 cannot be converted to NCDHW"),
        ((2, 2, 3, 3, 16), "NC1HWC0", "ND", None, "NC1HWC0 cannot be converted to ND"),
        ((2, 3, 3, 16), "NC1HWC0", "NCHW", None, "NC1HWC0 has 5 dimensions"),
        ((2, 2, 3, 3, 16), "NC1HWC0", "NCHW", (2, 40, 3, 3), "cannot hold the original shape (2, 40, 3, 3)"),
        ((2, 2, 3, 3, 16), "NC1HWC0", "NCHW", (2, 1, 1, 32, 3, 3), "cannot hold the original shape"),
        (
            (9, 2, 16, 16),
            "FRACTAL_Z",
            "NCHW",
            None,
            "FRACTAL_Z needs the original shape: give it with -s",
        ),
        ((9, 2, 16, 16), "FRACTAL_Z", "NCHW", (17, 17, 3, 3), "cannot hold the original shape"),
        ((2, 16, 16), "FRACTAL_NZ", "ND", None, "FRACTAL_NZ has at least 4 dimensions"),
        ((2, 2, 16, 16), "FRACTAL_NZ", "ND", (33, 20), "cannot hold the original shape"),
        ((2, 3, 4, 5), "NCHW", "NCDHW", None, "NCHW cannot be converted to NCDHW"),
        ((0, 2, 0, 16), "FRACTAL_Z", "NCHW", (0, 0, 3, 3), "an empty tensor in FRACTAL_Z has no layout"),
    ],
)
def test_what_cannot_be_converted_says_why(stored, source, target, original, message):
    with pytest.raises(LayoutError) as error:
        convert(np.zeros(stored, np.float16), source, target, original)
    assert message in str(error.value)
