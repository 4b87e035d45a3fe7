"""The public face of msprobe.stats: the choice of backend, numpy arrays, CRC-32 and the table of dtypes."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from framework_versions import release
from msprobe import stats
from msprobe.stats import dtypes, python_kernel
from msprobe.stats.dtypes import COMPLEX, FLOAT, INT, UINT


@pytest.mark.parametrize(("forced", "expected"), [("1", "python"), ("", stats.BACKEND)])
def test_the_environment_can_select_the_python_version(forced: str, expected: str) -> None:
    code = "from msprobe import stats; import numpy; print(stats.BACKEND, stats.measure_array(numpy.ones(2)).norm)"
    environment = {**os.environ, "MSPROBE_PURE_PYTHON": forced}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"{expected} {2**0.5!r}\n"


def test_importing_it_imports_no_framework() -> None:
    code = "import sys, msprobe.stats; print('torch' in sys.modules, 'mindspore' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


@given(data=st.binary(max_size=2000), cut=st.integers(0, 2000))
def test_crc32_is_zlibs_and_can_be_continued(data: bytes, cut: int) -> None:
    for crc32 in (stats.crc32, python_kernel.crc32):
        assert crc32(data) == zlib.crc32(data)
        assert crc32(data[cut:], crc32(data[:cut])) == zlib.crc32(data)


def test_crc32_of_every_length_and_alignment() -> None:
    data = np.random.default_rng(0).integers(0, 256, 5000, dtype=np.uint8).tobytes()
    for size in (*range(700), 4096, 4999):
        for start in (0, 1, 7):
            part = memoryview(data)[start : start + size]
            assert stats.crc32(part) == zlib.crc32(part)


@pytest.mark.parametrize("row", [row for row in dtypes.TABLE if row.numpy], ids=lambda row: row.name)
def test_arrays_of_every_numpy_dtype(row: dtypes.Dtype) -> None:
    array = np.array([[1, 0.5], [1, 1]]).astype(row.numpy_dtype)
    found = stats.measure_array(array.T[::-1], want=stats.STATS | stats.CRC)
    assert (found.max, found.count) == (1, 4)
    assert found.crc == zlib.crc32(array.T[::-1].tobytes())
    assert stats.render_array(array)[0].startswith('"Max": ')


def test_bits_can_be_read_as_another_dtype_of_their_size() -> None:
    bits = np.array([0x3F80, 0x4000], np.uint16)
    assert stats.measure_array(bits, dtypes.BY_NAME["bfloat16"].code).max == 2.0
    with pytest.raises(TypeError, match="cannot read an array of 2-byte items as float32"):
        stats.measure_array(bits, dtypes.BY_NAME["float32"].code)


def test_arrays_that_have_no_statistics_are_named() -> None:
    with pytest.raises(TypeError, match="no statistics for numpy dtype dtype"):
        stats.measure_array(np.array(["text"]))
    with pytest.raises(TypeError, match="no statistics"):
        stats.measure_array(np.array([1.0], ">f4"))


def test_fields_of_records_and_odd_addresses() -> None:
    record = np.zeros(5, np.dtype([("a", "u1"), ("b", "f4")]))
    record["b"] = [1, 2, 3, 4, 5]
    assert stats.measure_array(record["b"])[:3] == (5.0, 1.0, 3.0)
    odd = np.frombuffer(b"x" + np.arange(5, dtype="f8").tobytes(), np.uint8)[1:].view("f8")
    assert stats.measure_array(odd)[:3] == (4.0, 0.0, 2.0)


def test_every_torch_name_is_torchs_own() -> None:
    for row in dtypes.TABLE:
        if row.torch is None or (row.name == "float8_e8m0fnu" and release("torch") < (2, 7)):
            continue
        dtype = getattr(torch, row.torch[len("torch.") :])
        assert str(dtype) == row.torch
        assert dtype.itemsize == row.itemsize
        if row.kind in (FLOAT, COMPLEX):
            info = torch.finfo(dtype)
            assert (info.max, info.smallest_normal) == (row.largest, row.smallest_normal)
        elif row.kind in (INT, UINT):
            assert torch.iinfo(dtype).max == row.largest


def test_codes_are_unique_and_found_by_every_name() -> None:
    assert [row.code for row in dtypes.TABLE] == list(range(len(dtypes.TABLE)))
    for row in dtypes.TABLE:
        assert dtypes.BY_CODE[row.code] is dtypes.BY_NAME[row.name] is row
        if row.numpy_dtype is not None:
            assert dtypes.of_numpy(row.numpy_dtype) is row
            assert row.numpy_dtype.itemsize == row.itemsize
    assert dtypes.BY_TORCH["torch.bfloat16"] is dtypes.BY_MINDSPORE["BFloat16"]


def test_mindspore_names_are_those_of_mindspore() -> None:
    mindspore = pytest.importorskip("mindspore")
    for row in dtypes.TABLE:
        if row.mindspore is not None:
            assert str(getattr(mindspore, "bool_" if row.name == "bool" else row.name)) == row.mindspore
