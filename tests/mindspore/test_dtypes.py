"""Every dtype, shape and layout: statistics as numpy computes them in float64, files bit for bit."""

from __future__ import annotations

import zlib

import mindspore as ms
import ml_dtypes
import numpy as np
import pytest
from mindspore import Tensor, ops
from mscollecting import STATISTICS, assert_same, collecting
from msmodels import tensor

FLOATS = [ms.float16, ms.float32, ms.float64]
INTEGERS = [ms.int8, ms.int16, ms.int32, ms.int64, ms.uint8, ms.uint16, ms.uint32, ms.uint64]


def recorded(tmp_path, value, **config):
    """The record of `value` as the argument of an API, and its dump."""
    with collecting(tmp_path, **config) as dump:
        ops.is_tensor(value)
        ops.shape(value)
        ops.stop_gradient(value)
    return dump["Functional.stop_gradient.0.forward"]["input_args"][0], dump


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
def test_numbers_of_every_type(tmp_path, dtype):
    numbers = np.array([[1, 2, 3], [100, 5, 0]])
    record, _ = recorded(tmp_path, Tensor(numbers, dtype))
    assert record["dtype"] == str(dtype)
    assert_same(record, numbers)


def test_half_precision_is_summed_in_more(tmp_path):
    record, _ = recorded(tmp_path / "a", Tensor(np.full(4, 6e4), ms.float16))
    assert record["Norm"] == pytest.approx(2 * np.float16(6e4))
    record, _ = recorded(tmp_path / "b", Tensor([1.0, 2.0], ms.bfloat16))
    assert record["dtype"] == "BFloat16"
    assert record["Norm"] == pytest.approx(5**0.5, rel=1e-6)


def test_bool_complex_and_single_values(tmp_path):
    record, _ = recorded(tmp_path / "a", Tensor([True, False, True, True]))
    assert (record["Max"], record["Min"], record["Mean"], record["Norm"]) == (True, False, 0.75, None)
    numbers = np.array([3 + 4j, 0, 1j], np.complex64)
    record, _ = recorded(tmp_path / "b", Tensor(numbers))
    assert record["dtype"] == "Complex64"
    assert_same(record, numbers)
    record, _ = recorded(tmp_path / "c", Tensor(-3.0, ms.float32))
    assert [record[key] for key in STATISTICS] == [-3, -3, -3, 3]
    assert record["shape"] == []


def test_empty_tensors_have_no_statistics(tmp_path):
    value = Tensor(np.zeros((0, 3), np.float32))
    record, dump = recorded(tmp_path, value, task="tensor", section={"summary_mode": "md5"})
    assert record["shape"] == [0, 3]
    assert [record[key] for key in STATISTICS] == [None] * 4
    assert record["md5"] == "00000000"
    assert dump.tensor(record).shape == (0, 3)


def test_nan_and_infinity_are_recorded(tmp_path):
    record, _ = recorded(tmp_path / "a", Tensor([1.0, np.nan]))
    assert all(record[key] != record[key] for key in STATISTICS)
    record, _ = recorded(tmp_path / "b", Tensor([1.0, np.inf, -2.0]))
    assert (record["Max"], record["Min"], record["Norm"]) == (np.inf, -2.0, np.inf)


@pytest.mark.parametrize("dtype", [*FLOATS, ms.int32, ms.bool_, ms.complex64], ids=str)
@pytest.mark.parametrize("layout", ["plain", "transposed", "sliced", "single"])
def test_files_and_digests_hold_the_values_in_logical_order(tmp_path, dtype, layout):
    whole = np.arange(24).reshape(4, 6) % 7
    value = Tensor(whole.astype(np.complex64)) if dtype is ms.complex64 else Tensor(whole, dtype)
    value = {"plain": value, "transposed": value.T, "sliced": value[1:, 2:4], "single": value[0, 1]}[layout]
    expected = value.asnumpy()
    record, dump = recorded(tmp_path, value, task="tensor", section={"summary_mode": "md5"})
    saved = dump.tensor(record)
    assert saved.dtype == expected.dtype
    assert np.array_equal(saved, expected)
    assert record["md5"] == f"{zlib.crc32(np.ascontiguousarray(expected).tobytes()):08x}"
    assert record["data_name"] == "Functional.stop_gradient.0.forward.input.0.npy"


@pytest.mark.parametrize("strided", [False, True])
def test_bf16_files_keep_every_bit_and_load_anywhere(tmp_path, strided):
    value = tensor(5, 7, dtype=ms.bfloat16)
    value = value.T if strided else value
    record, dump = recorded(tmp_path, value, task="tensor")
    saved = dump.tensor(record)
    assert saved.dtype == ml_dtypes.bfloat16
    expected = value.asnumpy().view(np.uint16)
    assert np.array_equal(saved.view(np.uint16), expected)
    raw = np.load(dump.directory / "dump_tensor_data" / record["data_name"])
    assert raw.dtype.itemsize == 2
    assert np.array_equal(np.ascontiguousarray(raw).view(np.uint16), expected)


def test_values_are_those_after_the_runtime_has_finished(tmp_path):
    """Operators are launched asynchronously: reading an output waits for it."""
    big = tensor(700, 700)
    with collecting(tmp_path) as dump:
        result = big
        for _ in range(6):
            result = ops.matmul(result, big) * 0.01
    assert_same(dump["Tensor.__mul__.5.forward"]["output"][0], result)


def test_other_arguments_are_named(tmp_path):
    x = tensor(4, 4)
    with collecting(tmp_path) as dump:
        x.astype(ms.float16)
        ops.cast(x, ms.int32)
        ops.stack([x, x], axis=0)
        x[1:3, ..., None]
    assert dump["Tensor.astype.0.forward"]["input_args"][1] == {"type": "mindspore.dtype", "value": "Float16"}
    assert dump["Functional.cast.0.forward"]["input_args"][1] == {"type": "mindspore.dtype", "value": "Int32"}
    assert len(dump["Functional.stack.0.forward"]["input_args"][0]) == 2
    assert dump["Functional.stack.0.forward"]["input_kwargs"]["axis"] == {"type": "int", "value": 0}
    index = dump["Tensor.__getitem__.0.forward"]["input_args"][1]
    assert index == [{"type": "slice", "value": [1, 3, None]}, {"type": "ellipsis", "value": "..."}, None]
