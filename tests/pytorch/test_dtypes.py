"""Every row of the format's statistics table, in a record and in its tensor file."""

from __future__ import annotations

import contextlib
import math
import zlib
from typing import Any

import pytest
import torch
from collecting import assert_same, close, collecting

from msprobe.frameworks.pytorch.tensors import CODES
from msprobe.pytorch.tensors.tensor_text import EXCHANGE
from msprobe.stats import CRC, STATS, XOR, python_kernel

INTS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]
WIDE = [torch.uint16, torch.uint32, torch.uint64]
FP8 = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]


def recorded(tmp_path, tensor, **config):
    """The record of `tensor` as an argument; clone() takes every dtype."""
    with collecting(tmp_path, **config) as dump:
        torch.clone(tensor)
    return dump["Torch.clone.0.forward"]["input_args"][0]


def test_four_fp16_values_of_60000_have_a_finite_norm(tmp_path):
    found = recorded(tmp_path, torch.full((4,), 6e4, dtype=torch.float16))
    assert found["Norm"] == pytest.approx(120000, rel=1e-4)
    assert found["Mean"] == 60000


def test_one_and_two_in_bf16_have_the_norm_of_float32(tmp_path):
    found = recorded(tmp_path, torch.tensor([1, 2], dtype=torch.bfloat16))
    assert found["Norm"] == pytest.approx(math.sqrt(5), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, *FP8])
def test_floating_point_statistics_are_those_of_float64(tmp_path, dtype):
    tensor = torch.randn(7, 5).to(dtype)
    assert_same(recorded(tmp_path, tensor), tensor)


@pytest.mark.parametrize("dtype", INTS + WIDE)
def test_whole_numbers_have_all_four(tmp_path, dtype):
    tensor = torch.tensor([0, 1, 2, 100], dtype=dtype)
    found = recorded(tmp_path, tensor)
    assert (found["Max"], found["Min"], found["Mean"]) == (100, 0, 25.75)
    assert found["Norm"] == pytest.approx(math.sqrt(1 + 4 + 10000))
    assert found["dtype"] == str(dtype)


def test_bool_has_its_share_of_true(tmp_path):
    found = recorded(tmp_path, torch.tensor([True, False, False, True, True]))
    assert (found["Max"], found["Min"], found["Mean"], found["Norm"]) == (True, False, 0.6, None)


@pytest.mark.parametrize("view", [lambda t: t, torch.conj, lambda t: torch.conj(t).imag], ids=["plain", "conj", "neg"])
def test_complex_is_measured_by_its_magnitude(tmp_path, view):
    tensor = view(torch.tensor([3 + 4j, -1 - 1j, 2j]))
    found = recorded(tmp_path, tensor)
    size = tensor.resolve_conj().resolve_neg()
    size = size.abs().double() if tensor.is_complex() else size.double()
    for key, value in zip(("Max", "Min", "Mean", "Norm"), (size.max(), size.min(), size.mean(), size.norm())):
        assert close(found[key], float(value))


def test_a_scalar_tensor(tmp_path):
    found = recorded(tmp_path, torch.tensor(-3.0))
    assert (found["Max"], found["Min"], found["Mean"], found["Norm"]) == (-3, -3, -3, 3)
    assert found["shape"] == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.complex64])
def test_an_empty_tensor_has_nothing_and_a_hash_of_zeros(tmp_path, dtype):
    found = recorded(tmp_path, torch.empty(0, 3, dtype=dtype), section={"summary_mode": "md5"})
    assert (found["Max"], found["Min"], found["Mean"], found["Norm"]) == (None,) * 4
    assert found["md5"] == "00000000"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e5m2])
def test_a_nan_anywhere_shows_in_all_four(tmp_path, dtype):
    tensor = torch.ones(50)
    tensor[37] = math.nan
    found = recorded(tmp_path, tensor.to(dtype))
    assert all(math.isnan(found[key]) for key in ("Max", "Min", "Mean", "Norm"))


def test_infinities_are_as_ieee_gives_them(tmp_path):
    found = recorded(tmp_path / "one", torch.tensor([1.0, math.inf]))
    assert (found["Max"], found["Min"], found["Mean"], found["Norm"]) == (math.inf, 1, math.inf, math.inf)
    found = recorded(tmp_path / "two", torch.tensor([-math.inf, math.inf]))
    assert (found["Max"], found["Min"], found["Norm"]) == (math.inf, -math.inf, math.inf)
    assert math.isnan(found["Mean"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool])
def test_the_hash_is_zlibs_crc_of_the_raw_bytes(tmp_path, dtype):
    tensor = torch.randn(3, 5).to(dtype).t()
    found = recorded(tmp_path, tensor, section={"summary_mode": "md5"})
    raw = tensor.contiguous().view(torch.uint8).numpy().tobytes()
    assert found["md5"] == f"{zlib.crc32(raw):08x}"


def test_xor_has_a_64_bit_xor_and_no_statistics(tmp_path):
    tensor = torch.tensor([1, 2, 7], dtype=torch.int64)
    found = recorded(tmp_path, tensor, section={"summary_mode": "xor"})
    assert found["md5"] == f"0x{1 ^ 2 ^ 7:016x}"
    assert "Max" not in found


def test_low_precision_accumulates_in_the_tensors_own_dtype(tmp_path):
    tensor = torch.full((4,), 6e4, dtype=torch.float16)
    assert recorded(tmp_path, tensor, precision="low")["Norm"] == math.inf


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, *FP8, *INTS, *WIDE, torch.complex64])
def test_the_file_of_a_tensor_holds_exactly_its_bytes(tmp_path, dtype):
    tensor = (torch.rand(4, 3) * 10).to(dtype)
    found = recorded(tmp_path, tensor.t(), task="tensor")
    path = tmp_path / "dump" / "step0" / "rank" / "dump_tensor_data" / found["data_name"]
    loaded = torch.load(path, weights_only=True)
    assert loaded.dtype == dtype
    assert loaded.shape == (3, 4)
    assert torch.equal(loaded.contiguous().view(torch.uint8), tensor.t().contiguous().view(torch.uint8))


def test_a_strided_view_is_measured_where_it_is(tmp_path):
    base = torch.randn(6, 8, 4)
    view = base[::2, 1:7:3].transpose(0, 2)
    assert_same(recorded(tmp_path, view), view)


@pytest.mark.parametrize(
    "exchange", [None, *filter(None, [EXCHANGE])], ids=lambda table: "asked" if table is None else "exchanged"
)
@pytest.mark.parametrize("want", [STATS, STATS | CRC, XOR])
def test_the_c_kernel_and_the_python_version_describe_a_tensor_alike(want: int, exchange: Any) -> None:
    kernel = pytest.importorskip("msprobe.stats._kernel", reason="the C kernel is not built: nothing to compare")
    heads = {torch.float32: (CODES[torch.float32], "{f32 "), torch.complex64: (CODES[torch.complex64], "{c64 ")}
    made = torch.arange(-30.0, 30.0).reshape(3, 4, 5)  # sums without rounding: the order of adding does not show
    many_dims = torch.ones([1] * 62 + [2])
    imaginary = torch.view_as_complex(torch.tensor([[3.0, 4.0], [0.0, 1.0], [5.0, 12.0]]))
    for tensor in (
        made,
        made.T,
        made[:, ::2],
        made[0, 0, 0],
        torch.empty(0, 7),
        torch.full((2,), float("nan")),
        many_dims,
        imaginary,
    ):
        said = kernel.describe(tensor, exchange, heads, torch.strided, want)
        assert said is not None
        assert said == python_kernel.describe(tensor, None, heads, torch.strided, want)
    for other in (imaginary.conj(), imaginary.conj().imag, made.to_sparse(), made.double(), made.to("meta")):
        with contextlib.suppress(RuntimeError):  # some say so when their address is asked for
            assert kernel.describe(other, exchange, heads, torch.strided, want) is None
        assert python_kernel.describe(other, None, heads, torch.strided, want) is None
    with pytest.raises(TypeError):
        kernel.describe(made, exchange, [], torch.strided, want)
    with pytest.raises((ValueError, AttributeError)):
        kernel.describe(made, 5, heads, torch.strided, want)
