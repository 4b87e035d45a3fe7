"""What each figure means, dtype by dtype, for both backends; the expected values are worked out by hand."""

from __future__ import annotations

import json
import math
import threading
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from msprobe.stats import CRC, LOW_PRECISION, STATS, XOR, Stats, dtypes, python_kernel

try:
    from msprobe.stats import _kernel
except ImportError:
    BACKENDS: list[Any] = [python_kernel]
else:
    BACKENDS = [_kernel, python_kernel]

BOTH = pytest.mark.parametrize("backend", BACKENDS, ids=lambda module: module.__name__.rsplit(".", 1)[-1])


def measure(backend: ModuleType, tensor: torch.Tensor, want: int = STATS) -> Stats:
    row = dtypes.BY_TORCH[str(tensor.dtype)]
    return backend.measure(tensor.data_ptr(), row.code, tensor.shape, tensor.stride(), want)


def render(backend: ModuleType, tensor: torch.Tensor, want: int = STATS) -> tuple[str, Any, int]:
    row = dtypes.BY_TORCH[str(tensor.dtype)]
    return backend.render(tensor.data_ptr(), row.code, tensor.shape, tensor.stride(), want)


@BOTH
def test_four_halves_of_60000_have_a_finite_norm(backend: ModuleType) -> None:
    found = measure(backend, torch.full((4,), 6e4, dtype=torch.float16))
    assert found[:4] == (6e4, 6e4, 6e4, 1.2e5)


@BOTH
def test_bf16_norm_is_not_rounded_to_bf16(backend: ModuleType) -> None:
    assert measure(backend, torch.tensor([1, 2], dtype=torch.bfloat16)).norm == math.sqrt(5)


@BOTH
def test_int64_is_exact_where_float64_is_not(backend: ModuleType) -> None:
    big = 2**63 - 1
    found = measure(backend, torch.tensor([big, -big, 3, 0]))
    assert found[:3] == (big, -big, 0.75)
    assert found.norm == pytest.approx(math.sqrt(2) * 2.0**63, rel=1e-15)
    assert found.zero == 1


@BOTH
def test_uint64_extremes_are_unsigned(backend: ModuleType) -> None:
    found = measure(backend, torch.tensor([2**64 - 1, 1], dtype=torch.uint64))
    assert found[:3] == (2**64 - 1, 1, 2.0**63)
    assert render(backend, torch.tensor([2**64 - 1], dtype=torch.uint64))[0].startswith(f'"Max": {2**64 - 1}, ')


@BOTH
def test_bool_has_a_share_of_true_and_no_norm(backend: ModuleType) -> None:
    tensor = torch.tensor([True, False, True, True])
    assert measure(backend, tensor)[:4] == (True, False, 0.75, None)
    assert render(backend, tensor)[0] == '"Max": true, "Min": false, "Mean": 0.75, "Norm": null'


@BOTH
def test_complex_is_measured_by_magnitude(backend: ModuleType) -> None:
    for dtype in (torch.complex32, torch.complex64, torch.complex128):
        tensor = torch.tensor([3 + 4j, -6 - 8j, 0], dtype=torch.complex64).to(dtype)
        found = measure(backend, tensor)
        assert found[:4] == (10.0, 0.0, 5.0, pytest.approx(math.sqrt(125)))
        assert found.zero == 1


@BOTH
def test_a_complex_with_an_infinite_and_a_nan_part_is_nan(backend: ModuleType) -> None:
    for dtype in (torch.complex64, torch.complex128):
        found = measure(backend, torch.tensor([complex(math.inf, math.nan)], dtype=dtype))
        assert (found.nan, found.posinf) == (1, 0)


@BOTH
def test_a_scalar(backend: ModuleType) -> None:
    assert measure(backend, torch.tensor(-3.0))[:4] == (-3.0, -3.0, -3.0, 3.0)


@BOTH
def test_an_empty_tensor(backend: ModuleType) -> None:
    tensor = torch.empty(3, 0)
    assert measure(backend, tensor, STATS | CRC | XOR) == (None, None, None, None, 0, 0, 0, 0, 0, 0, 0, None)
    text = '"Max": null, "Min": null, "Mean": null, "Norm": null'
    assert render(backend, tensor, STATS | CRC) == (text, "00000000", 0)
    assert render(backend, tensor, XOR) == ("", "0x0000000000000000", 0)


@BOTH
def test_not_a_number_and_infinities(backend: ModuleType) -> None:
    tensor = torch.tensor([1.0, math.nan, math.inf, -math.inf])
    assert render(backend, tensor) == ('"Max": NaN, "Min": NaN, "Mean": NaN, "Norm": NaN', None, 3)
    tensor = torch.tensor([1.0, -math.inf])
    assert render(backend, tensor)[0] == '"Max": 1.0, "Min": -Infinity, "Mean": -Infinity, "Norm": Infinity'
    assert math.isnan(measure(backend, torch.tensor([math.inf, -math.inf])).mean)


@BOTH
def test_minus_zero_is_written_zero(backend: ModuleType) -> None:
    assert render(backend, torch.tensor([-0.0]))[0] == '"Max": 0.0, "Min": 0.0, "Mean": 0.0, "Norm": 0.0'


@BOTH
@pytest.mark.parametrize("size", [1e308, 1e-308, 5e-324, 1e200, 1e-200])
def test_float64_norm_and_mean_neither_overflow_nor_vanish(backend: ModuleType, size: float) -> None:
    found = measure(backend, torch.tensor([size, size, size, -size], dtype=torch.float64))
    assert found.mean == pytest.approx(size / 2, rel=1e-15)
    assert found.norm == (math.inf if size * 2 == math.inf else size * 2)


@BOTH
def test_low_precision_rounds_to_the_dtype(backend: ModuleType) -> None:
    want = STATS | LOW_PRECISION
    assert measure(backend, torch.full((4,), 6e4, dtype=torch.float16), want).norm == math.inf
    third = measure(backend, torch.tensor([1, 0, 0], dtype=torch.bfloat16), want)
    assert third.mean == float(torch.tensor(1 / 3, dtype=torch.bfloat16))
    tiles = measure(backend, torch.ones(5 * 4096, dtype=torch.bfloat16), want)
    assert tiles.mean == 1.0
    ones = torch.cat([torch.full((4096,), 256.0), torch.ones(4096)]).to(torch.float16)
    assert measure(backend, ones, want).mean == math.inf
    assert math.isnan(measure(backend, torch.full((4,), 448.0).to(torch.float8_e4m3fn), want).mean)
    assert measure(backend, torch.tensor([1, 2, 2]), want)[:4] == (2, 1, 5 / 3, 3.0)


@BOTH
def test_expanded_tensors_count_every_repetition(backend: ModuleType) -> None:
    tensor = torch.tensor([[0.0, 3.0]]).expand(4, 2)
    found = measure(backend, tensor, STATS | CRC)
    assert found[:4] == (3.0, 0.0, 1.5, 6.0)
    assert (found.zero, found.count) == (4, 8)
    assert found.crc == measure(backend, tensor.contiguous(), CRC).crc


@BOTH
def test_permuted_views_share_all_but_the_hash(backend: ModuleType) -> None:
    tensor = torch.randn(7, 300, 11)
    view = tensor.permute(2, 0, 1)
    one, two = measure(backend, tensor, STATS | CRC), measure(backend, view, STATS | CRC)
    assert one[:9] == two[:9]
    assert one.crc != two.crc
    assert two.crc == measure(backend, view.contiguous(), CRC).crc


@BOTH
def test_xor_is_of_little_endian_words_padded_with_zeros(backend: ModuleType) -> None:
    tensor = torch.tensor([1, 2, 3, 4, 5, 6, 7, 8, 0x10, 0x20], dtype=torch.uint8)
    assert measure(backend, tensor, XOR).xor == 0x0807060504032211
    assert render(backend, tensor, XOR) == ("", "0x0807060504032211", 0)


@BOTH
def test_xor_equals_that_of_mindstudio_probe(backend: ModuleType) -> None:
    """Values seen in its dump.json; the last tensor is a transposed view."""
    seen = {
        "0x400000007fc00000": torch.tensor([1.0, 2, 3]),
        "0x008000007fc00000": torch.tensor([1.0, 2, 3, 4]),
        "0x4080404040007f20": torch.tensor([1, 2, 3, 4, 5], dtype=torch.bfloat16),
        "0x40a000003fe00000": torch.tensor([[1.0, 2], [3, 5], [6, 7]]).t(),
    }
    for digest, tensor in seen.items():
        assert render(backend, tensor, XOR) == ("", digest, 0)


@BOTH
def test_subnormals_count_even_if_the_process_flushes_them(backend: ModuleType) -> None:
    tensor = torch.tensor([1e-40, -1e-40])
    expected = measure(backend, tensor)
    assert expected.zero == 0
    if backend is python_kernel:
        return
    assert torch.set_flush_denormal(True)
    try:
        assert measure(backend, tensor) == expected
        assert float(torch.tensor([1e-40]) * 1) == 0.0, "the process's own setting must be back"
    finally:
        torch.set_flush_denormal(False)


@BOTH
@given(value=st.floats())
def test_numbers_are_written_as_json_writes_them(backend: ModuleType, value: float) -> None:
    array = np.array([value + 0.0])
    text, _, _ = backend.render(array.__array_interface__["data"][0], 12, (1,), (1,), STATS)
    assert text.startswith(f'"Max": {json.dumps(float(array[0]))}, "Min": {json.dumps(float(array[0]))}, ')


@BOTH
def test_hard_numbers_are_written_as_json_writes_them(backend: ModuleType) -> None:
    powers = [2.0**e for e in range(-1074, 1024)]
    below = [math.nextafter(value, 0) for value in powers] if hasattr(math, "nextafter") else []
    tens = [10.0**e for e in range(-323, 309)] + [e / 10 for e in range(1000)] + [float(e) for e in range(100)]
    bits = np.random.default_rng(0).integers(0, 0x7FF0000000000000, 20_000, dtype=np.uint64)
    for array in np.array([*powers, *below, *tens, *bits.view(np.float64)])[:, None]:
        text, _, _ = backend.render(array.__array_interface__["data"][0], 12, (1,), (1,), STATS)
        assert text.startswith(f'"Max": {float(array[0])!r}, ')


@BOTH
@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((64, 99, (1,), (1,), 1), "unknown dtype code"),
        ((64, -1, (1,), (1,), 1), "unknown dtype code"),
        ((64, 11, (1,), (1,), 64), "unknown flags"),
        ((64, 11, (1, 1), (1,), 1), "at most 64"),
        ((64, 11, (1,) * 65, (1,) * 65, 1), "at most 64"),
        ((64, 11, (-1,), (1,), 1), "negative size"),
        ((64, 11, (2**62, 2), (1, 1), 1), "overflows"),
        ((64, 11, (2,), (2**62,), 1), "overflows"),
        ((0, 11, (1,), (1,), 1), "address"),
        ((64, 11, (2,), (-1000,), 1), "address"),
    ],
)
def test_nonsense_is_refused_before_memory_is_touched(backend: ModuleType, args: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        backend.measure(*args)


@BOTH
def test_render_writes_one_digest_only(backend: ModuleType) -> None:
    with pytest.raises(ValueError, match="one digest"):
        render(backend, torch.ones(1), CRC | XOR)


@pytest.mark.skipif(len(BACKENDS) == 1, reason="the C kernel is not built")
def test_other_threads_run_during_a_long_measurement() -> None:
    tensor = torch.zeros(20_000, dtype=torch.uint8).as_strided((10_000, 10_000), (1, 1))
    ticks, done = [0], threading.Event()

    def tick() -> None:
        while not done.is_set():
            ticks[0] += 1

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        before = ticks[0]
        measure(BACKENDS[0], tensor, STATS | CRC)
        during = ticks[0] - before
    finally:
        done.set()
        thread.join()
    assert during > 0
