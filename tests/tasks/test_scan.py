"""The C loops and their numpy twins say the same of every bit pattern."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from msprobe.stats import dtypes
from msprobe.tasks import scan as module

NAMES = tuple(module.FORMATS)


def bits(name: str, seed: int, count: int) -> np.ndarray:
    kind = {2: np.uint16, 4: np.uint32, 8: np.uint64}[dtypes.BY_NAME[name].itemsize]
    random = np.random.default_rng(seed)
    values = random.integers(0, np.iinfo(kind).max, count, kind, endpoint=True)
    values[random.random(count) < 0.2] = 0
    return values


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(NAMES), st.integers(0, 2**32), st.integers(0, 5000))
def test_scan_is_its_twin(name, seed, count):
    values = bits(name, seed, count)
    code = module.FORMATS[name]
    assert module.scan(values.ctypes.data, code, count) == module._scan(values.ctypes.data, code, count)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(NAMES), st.sampled_from(NAMES), st.integers(0, 2**32), st.integers(1, 3000))
def test_ratio_is_its_twin(first, second, seed, count):
    random = np.random.default_rng(seed)
    plain = random.standard_normal(count) * 10.0 ** random.integers(-3, 3)
    moved = plain * (1 + 1e-3 * random.standard_normal(count)) * np.where(random.random(count) < 0.01, -1, 1)
    a = plain.astype(dtypes.BY_NAME[first].numpy_dtype)
    b = moved.astype(dtypes.BY_NAME[second].numpy_dtype)
    if seed % 3 == 0:
        a[0] = np.nan
    if seed % 5 == 0:
        b[-1] = np.inf
    given_ = (a.ctypes.data, module.FORMATS[first], b.ctypes.data, module.FORMATS[second], count, 1e-2)
    found, twin = module.ratio(*given_), module._ratio(*given_)
    assert found[1:] == twin[1:]
    assert found[0] == pytest.approx(twin[0], rel=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_the_ends_of_a_dtype_are_known(name):
    row = dtypes.BY_NAME[name]
    code = module.FORMATS[name]

    def top(value):
        array = np.array([0.5, value, -1.0]).astype(row.numpy_dtype)
        return module.scan(array.ctypes.data, code, 3)[0]

    assert module.NEAR[code] <= top(row.largest) < module.TOP[code]
    assert top(row.largest / 2.1) < module.NEAR[code]
    assert top(-np.inf) == module.TOP[code] < top(np.nan)


def test_what_is_no_memory_is_refused():
    for function in (module.scan, module._scan):
        with pytest.raises(ValueError, match="unknown dtype, or no memory"):
            function(0, 0, 5)
        with pytest.raises(ValueError, match="unknown dtype, or no memory"):
            function(0, 9, 0)


EXCHANGE = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
TORCH = {**{getattr(torch, name): (name, 1) for name in NAMES}, torch.complex64: ("float32", 2)}


@pytest.mark.skipif(EXCHANGE is None, reason="torch describes its tensors so since 2.10")
@settings(deadline=None, max_examples=80)
@given(st.sampled_from(sorted(TORCH, key=str)), st.integers(0, 2**32), st.sampled_from([(0,), (), (7,), (3, 5, 2)]))
def test_look_says_what_scan_says(dtype, seed, shape):
    name, parts = TORCH[dtype]
    values = bits(name, seed, int(np.prod(shape)) * parts)
    if seed % 2:
        values &= values >> 3  # finite, and in the middle
    tensor = torch.from_numpy(values.view(np.uint8)).view(dtype).reshape(shape)
    code, count = module.FORMATS[name], len(values)
    top, tiny = module.scan(values.ctypes.data, code, count)
    told = module.look(EXCHANGE, tensor.permute(tuple(range(tensor.ndim))[::-1]))
    assert told == ((code, count, top, tiny) if tiny or top >= module.NEAR[code] else 0)


@pytest.mark.skipif(EXCHANGE is None, reason="torch describes its tensors so since 2.10")
def test_look_leaves_what_it_cannot_read():
    plain = torch.tensor([1.0, math.inf])
    assert module.look(EXCHANGE, torch.nn.Parameter(plain)) == (2, 2, module.TOP[2], 0)
    assert module.look(EXCHANGE, torch.arange(3)) == module.look(EXCHANGE, torch.ones(2) > 1) == 0
    unreadable = [
        plain.repeat(4)[::2],
        plain[:1].expand(3),
        plain.to_sparse(),
        plain.to("meta"),
        plain.to(torch.float8_e4m3fn),
        5,
    ]
    assert [module.look(EXCHANGE, one) for one in unreadable] == [None] * len(unreadable)
    assert torch.func.vmap(lambda row: row * (module.look(EXCHANGE, row) is None))(plain[None, :1]).tolist() == [[1.0]]
    with pytest.raises(ValueError, match="PyCapsule"):
        module.look(object(), plain)
