"""The C kernel and the Python version give the same result for every tensor, with every CPU instruction set."""

from __future__ import annotations

import math
import zlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.stats.tensors import RAW, Tensor, random_tensor, raw_of, tensors

from msprobe.stats import CRC, LOW_PRECISION, ORDER, STATS, XOR, Stats, dtypes, python_kernel
from msprobe.stats.dtypes import FLOAT, Dtype

kernel = pytest.importorskip("msprobe.stats._kernel", reason="the C kernel is not built: nothing to compare")

ROWS = pytest.mark.parametrize("row", dtypes.TABLE, ids=lambda row: row.name)
LEVELS = (0, 1, 2)


def _same(ours: float, theirs: float, allowed: float) -> bool:
    if math.isnan(ours) or math.isnan(theirs):
        return math.isnan(ours) and math.isnan(theirs)
    return ours == theirs or abs(ours - theirs) <= allowed


def assert_same(c: Stats, python: Stats, row: Dtype, low_precision: bool = False) -> None:
    """Equal except for rounding: of float64 sums, or (LOW_PRECISION) of the last place of the dtype."""
    assert c[4:-1] == python[4:-1]
    assert (c.order is None) == (python.order is None)
    assert (c.mean is None) == (python.mean is None)
    assert (c.norm is None) == (python.norm is None)
    assert type(c.max) is type(python.max)
    if c.max is None or isinstance(c.max, bool):
        assert c == python
        return
    assert python.max is not None
    assert python.min is not None
    assert c.min is not None
    is_complex = row.kind == dtypes.COMPLEX
    assert _same(c.max, python.max, abs(python.max) * 4e-16 if is_complex else 0)
    assert _same(c.min, python.min, abs(python.min) * 4e-16 if is_complex else 0)
    assert c.norm is not None
    assert python.norm is not None
    assert c.mean is not None
    assert python.mean is not None
    relative = 2.0**-row.mantissa if low_precision and row.mantissa else 1e-13
    tiny = row.smallest_normal * relative if low_precision and row.smallest_normal else 1e-322
    scale = python.norm if math.isfinite(python.norm) else row.largest
    assert _same(c.norm, python.norm, python.norm * relative + tiny)
    if c.order is not None and python.order is not None:
        assert _same(c.order, python.order, 3 * c.count**0.5 * python.norm * 1e-15 + 1e-322)
    if row.kind in (dtypes.INT, dtypes.UINT):
        assert c.mean == python.mean
    else:
        assert _same(c.mean, python.mean, scale * relative + tiny)


@ROWS
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_bits_in_any_layout(row: Dtype, data: st.DataObject) -> None:
    tensor = data.draw(tensors(row))
    for level in LEVELS:
        kernel.select(level)
        c = kernel.measure(*tensor.args, STATS | ORDER | CRC | XOR)
        assert_same(c, python_kernel.measure(*tensor.args, STATS | ORDER | CRC | XOR), row)
        assert c.crc == zlib.crc32(tensor.raw.tobytes())
        for want in (STATS, STATS | ORDER):
            assert_same(kernel.measure(*tensor.args, want), python_kernel.measure(*tensor.args, want), row)
        assert kernel.render(*tensor.args, CRC) == python_kernel.render(*tensor.args, CRC)


@ROWS
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_low_precision(row: Dtype, data: st.DataObject) -> None:
    tensor = data.draw(tensors(row))
    want = STATS | LOW_PRECISION
    assert_same(kernel.measure(*tensor.args, want), python_kernel.measure(*tensor.args, want), row, low_precision=True)


@ROWS
@pytest.mark.parametrize("count", [15, 16, 17, 4095, 4096, 4097, 10_000, 2**18 - 1, 2**18, 2**18 + 5, 700_001])
def test_around_the_ends_of_lanes_tiles_and_chunks(row: Dtype, count: int) -> None:
    tensor = random_tensor(row, count, seed=count)
    want = STATS | ORDER | CRC | XOR
    python = python_kernel.measure(*tensor.args, want)
    first = None
    for level in LEVELS:
        kernel.select(level)
        c = kernel.measure(*tensor.args, want)
        assert_same(c, python, row)
        first = first or c
        assert c == first, "the levels differ in the last bit"


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float64", "int64", "complex64", "bool"])
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "every second", "reversed"])
def test_the_number_of_threads_changes_nothing(name: str, layout: str) -> None:
    row = dtypes.BY_NAME[name]
    raw = random_tensor(row, 2100 * 2100).raw.reshape(2100, 2100)
    raw = {"contiguous": raw, "transposed": raw.T, "every second": raw[:, ::2], "reversed": raw[::-1]}[layout]
    tensor = Tensor(row, raw)
    for want in (STATS | ORDER | CRC | XOR, STATS | ORDER):
        alone = kernel.measure(*tensor.args, want, 1)
        assert alone.crc == (zlib.crc32(raw.tobytes()) if want & CRC else None)
        assert_same(alone, python_kernel.measure(*tensor.args, want), row)
        for threads in (0, 2, 3, 64):
            assert kernel.measure(*tensor.args, want, threads) == alone


NARROW = [row for row in dtypes.TABLE if row.kind == FLOAT and row.itemsize <= 2]


@pytest.mark.parametrize("row", NARROW, ids=lambda row: row.name)
def test_every_narrow_float_is_decoded(row: Dtype) -> None:
    for level in LEVELS:
        kernel.select(level)
        for start in range(0, 256**row.itemsize, 16):
            raw = np.arange(start, start + 16).astype(RAW[row.itemsize])
            for one in (raw, *raw.reshape(16, 1)) if row.itemsize == 1 else (raw,):
                tensor = Tensor(row, one)
                assert_same(kernel.measure(*tensor.args, STATS), python_kernel.measure(*tensor.args, STATS), row)


@pytest.mark.parametrize("where", [0, 7, 4096, 2**18, 2**18 + 4100])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"])
def test_one_bad_value_is_found_wherever_it_is(name: str, bad: float, where: int) -> None:
    row = dtypes.BY_NAME[name]
    values = np.ones(2**18 + 5000, np.complex128 if row.kind == dtypes.COMPLEX else np.float64)
    values[where] = bad
    tensor = raw_of(row, values)  # holds the memory
    c = kernel.measure(*tensor.args, STATS)
    found = (c.nan, c.posinf, c.neginf)
    if row.kind == dtypes.COMPLEX and bad < 0:
        bad = math.inf  # the magnitude's
    assert found == (int(math.isnan(bad)), int(bad == math.inf), int(bad == -math.inf))
    assert c.norm is not None
    assert c.mean is not None
    if math.isnan(bad):
        assert all(math.isnan(value) for value in c[:4])
    else:
        assert c.mean == bad
        assert c.norm == math.inf


@pytest.fixture(autouse=True)
def _best_level_afterwards():
    yield
    kernel.select(9)
