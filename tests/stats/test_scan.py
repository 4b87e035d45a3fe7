"""The C loops and their numpy versions give the same result for every bit pattern."""

from __future__ import annotations

import math
import sys
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from msprobe.stats import dtypes
from msprobe.stats import scan as module

NAMES = tuple(module.FORMATS)


def bits(name: str, seed: int, count: int) -> np.ndarray:
    kind = {2: np.uint16, 4: np.uint32, 8: np.uint64}[dtypes.BY_NAME[name].itemsize]
    random = np.random.default_rng(seed)
    values = random.integers(0, np.iinfo(kind).max, count, kind, endpoint=True)
    values[random.random(count) < 0.2] = 0
    return values


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(NAMES), st.integers(0, 2**32), st.integers(0, 5000))
def test_scan_equals_the_python_version(name, seed, count):
    values = bits(name, seed, count)
    code = module.FORMATS[name]
    assert module.scan(values.ctypes.data, code, count) == module._scan(values.ctypes.data, code, count)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(NAMES), st.sampled_from(NAMES), st.integers(0, 2**32), st.integers(1, 3000))
def test_ratio_equals_the_python_version(first, second, seed, count):
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


def test_an_address_without_memory_is_refused():
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
def test_look_agrees_with_scan(dtype, seed, shape):
    name, parts = TORCH[dtype]
    values = bits(name, seed, int(np.prod(shape)) * parts)
    if seed % 2:
        values &= values >> 3  # finite, and in the middle
    tensor = torch.from_numpy(values.view(np.uint8)).view(dtype).reshape(shape)
    code, count = module.FORMATS[name], len(values)
    top, tiny = module.scan(values.ctypes.data, code, count)
    logged = module.look(EXCHANGE, tensor.permute(tuple(range(tensor.ndim))[::-1]))
    assert logged == ((code, count, top, tiny) if tiny or top >= module.NEAR[code] else 0)


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


class Watching:
    """What `run` watches, and what it has reported."""

    def __init__(self, limit=64):
        self.known, self.logged, self.remembered = {}, [], []
        simple = frozenset({type(None), bool, int, float})
        self.watch = (EXCHANGE, frozenset({torch.Tensor}), simple, self.known, limit, self.remember, self.trouble)

    def remember(self, tensor, version):
        self.remembered.append(version)
        self.known[id(tensor)] = (weakref.ref(tensor), version)

    def trouble(self, *logged):
        self.logged.append(logged)

    def run(self, func, *args, writes=False, **kwargs):
        return module.run(self.watch, func, args, kwargs, writes, "api", 7)


@pytest.mark.skipif(EXCHANGE is None, reason="torch describes its tensors so since 2.10")
def test_run_makes_the_call_and_reports_values_that_are_not_finite():
    of, x, y = Watching(), torch.tensor([1.0, 2.0]), torch.tensor([1.0, 0.0])
    assert torch.equal(of.run(torch.add, x, y, alpha=2), torch.tensor([3.0, 2.0]))
    assert of.run(torch.Tensor.mul_, x, 2.0, writes=True) is x
    assert of.run(torch.Tensor.mul_, x, 2.0, writes=True) is x
    assert (of.logged, of.remembered, of.known[id(x)][1]) == ([], [1], x._version)
    result = of.run(torch.Tensor.div_, x, y, writes=True)
    ((api, number, args, kwargs, output, logged, versions, given, before),) = of.logged
    assert (api, number, kwargs, given) == ("api", 7, {}, 0)
    assert result is output is x
    assert args[0] is x
    assert args[1] is y
    assert logged == (2, 2, module.TOP[2], 0)
    assert [(id(one), version) for one, version in versions] == [(id(x), 2), (id(y), 0)]
    assert before == np.float32([4.0, 8.0]).tobytes()
    assert of.known[id(x)][1] == 2  # as it was when it was last seen to be finite
    of.run(torch.Tensor.add_, x, 1.0, writes=True)
    assert of.logged[-1][-2] == (2, 2, module.TOP[2], 0)  # it was looked at: that version is not known
    large = torch.full((100,), 3e38)
    of.run(torch.Tensor.mul_, large, 10.0, writes=True)
    assert of.logged[-1][-2:] == ((2, 100, of.logged[-1][-2][2], 0), False)
    of.run(torch.frexp, y)
    assert of.logged[-1][5] is None


@pytest.mark.skipif(EXCHANGE is None, reason="torch describes its tensors so since 2.10")
def test_run_leaves_what_is_not_simple_and_raises_what_the_call_raises():
    of, x = Watching(), torch.tensor([1.0, math.inf])
    with torch.inference_mode():
        inferred = torch.ones(2)
    left = [
        of.run(torch.cat, [x, x]),
        of.run(torch.add, x, x, out=torch.empty(2)),
        of.run(torch.exp, inferred),
        of.run(torch.Tensor.mul_, x[::2].expand(3), 1.0, writes=True),
        of.run(torch.Tensor.mul_, torch.ones(2, dtype=torch.complex64), 1.0, writes=True),
        of.run(torch.Tensor.add_, 1.0, x, writes=True),
        of.run(torch.broadcast_tensors, *[x] * 17),
    ]
    assert [one is module.NOT_RUN for one in left] == [True] * len(left)
    assert x.tolist() == [1.0, math.inf]
    with pytest.raises(RuntimeError, match="size of tensor"):
        of.run(torch.add, torch.ones(2), torch.ones(3))
    assert of.logged == []

    def stop(*logged):
        raise KeyboardInterrupt

    of.trouble = stop
    of.watch = (*of.watch[:-1], stop)
    with pytest.raises(KeyboardInterrupt):
        of.run(torch.add, x, x)


@pytest.mark.skipif(EXCHANGE is None, reason="torch describes its tensors so since 2.10")
def test_run_keeps_nothing():
    of, x, bad = Watching(), torch.ones(4), torch.tensor([math.nan])
    of.watch = (*of.watch[:-1], lambda *logged: None)
    counts = []
    for _ in range(3):
        for _ in range(100):
            of.run(torch.Tensor.mul_, x, 1.0, writes=True)
            of.run(torch.add, x, x, alpha=1)
            of.run(torch.Tensor.add_, bad, 1.0, writes=True)
            of.run(torch.cat, [x])
        counts.append((sys.getrefcount(x), sys.getrefcount(bad), len(of.known)))
    assert counts[0] == counts[1] == counts[2]
