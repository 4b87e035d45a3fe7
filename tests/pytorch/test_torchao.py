"""The formats are those of torchao, element by element and scale by scale; the printed configuration runs with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from msprobe.cli import main
from msprobe.compare.comparison import compare
from msprobe.pytorch import PrecisionDebugger
from msprobe.stats.formats import (
    BY_NAME,
    E2M1,
    Format,
    block_scales,
    cast,
    emulate,
    largest_of_blocks,
    scale,
    whole_scale,
)

pytest.importorskip("torchao")
pytestmark = pytest.mark.slow
Array = np.ndarray[Any, Any]
MX = [f"{name}{mode}" for name in ("mxfp8", "mxfp4") for mode in ("", "-rceil", "-ceil", "-even")]
FP8 = [f"fp8-{name}{rows}{power}" for name in ("e4m3", "e5m2") for rows in ("", "-row") for power in ("", "-pow2")]
LEAST_NVFP4 = 2.0**-6
"""torchao uses no smaller scale of a block, although the type has some."""


def matrices() -> Iterator[Array]:
    random = np.random.default_rng(0)
    shape = (512, 256)
    yield random.normal(size=shape)
    yield random.normal(size=shape) * np.exp(4 * random.normal(size=shape))
    yield random.normal(size=shape) * np.exp(6 * random.normal(size=(512, 1)))
    yield random.normal(size=shape) * 1e37
    bits = random.integers(0, 1 << 32, shape, dtype=np.uint32).view(np.float32)
    yield np.where(np.isfinite(bits), bits, 0)
    yield np.where(random.random(size=(512, 1)) < 0.2, 0, random.normal(size=shape))


def narrow() -> list[Array]:
    return [np.asarray(one, np.float32) for one in matrices()]


def mx(values: Array, form: Format) -> Any:
    from torchao.prototype.mx_formats import ScaleCalculationMode
    from torchao.prototype.mx_formats.mx_tensor import MXTensor

    element = torch.float4_e2m1fn_x2 if form.element is E2M1 else torch.float8_e4m3fn
    return MXTensor.to_mx(torch.from_numpy(values), element, 32, ScaleCalculationMode[str(form.mode).upper()])


@pytest.mark.parametrize("name", MX)
def test_an_mx_tensor_is_that_of_torchao(name: str) -> None:
    form = BY_NAME[name]
    for values in (*narrow(), narrow()[0] * np.float32(1e-30), powers()):
        wanted = mx(values, form)
        with np.errstate(over="ignore"):
            found = emulate(values, form).astype(np.float32)
        assert np.array_equal(found, wanted.dequantize(torch.float32).numpy())
        most = largest_of_blocks(np.abs(values), 1, 32)
        exponents = wanted.scale.view(torch.uint8).numpy().astype(int) - 127
        assert np.array_equal(np.log2(block_scales(most, form))[most > 0], exponents[most > 0])


def powers() -> Array:
    return np.ldexp(1.0, np.random.default_rng(1).integers(-20, 20, (256, 256))).astype(np.float32)


@pytest.mark.parametrize(("name", "largest"), [("mxfp8-rceil", 448), ("mxfp4-rceil", 6)])
def test_rceil_is_exact_where_a_logarithm_in_float32_is_not(name: str, largest: int) -> None:
    """torchao rounds up log2 of float32 without its own kernel: a block just above a power of two saturates there."""
    form = BY_NAME[name]
    values = np.full((1, 32), 0.01, np.float32)
    values[0, 0] = np.nextafter(np.float32(largest), np.float32(np.inf)) * 2.0**7
    assert np.log2(block_scales(np.array([values.max()]), form)) == 8
    assert mx(values, form).scale.view(torch.uint8).item() - 127 == 7


@pytest.mark.parametrize("name", FP8)
def test_an_fp8_tensor_is_that_of_torchao(name: str) -> None:
    from torchao.float8.config import ScalingGranularity
    from torchao.float8.float8_utils import tensor_to_scale, to_fp8_saturated

    form = BY_NAME[name]
    rows = ScalingGranularity.AXISWISE if "-row" in name else ScalingGranularity.TENSORWISE
    dtype = getattr(torch, form.element.name)
    for values in narrow():
        given = torch.from_numpy(values)
        by = tensor_to_scale(given, dtype, scaling_granularity=rows, axiswise_dim=-1,
                             round_scales_to_power_of_2=name.endswith("pow2"))  # fmt: skip
        used = np.abs(values).max(1) > 1e-12 if "-row" in name else np.ones(len(values), bool)  # torchao's smallest
        found = scale(values, form, weight=False)
        kept = cast(np.clip(found.elements, -form.element.largest, form.element.largest), form.element)
        wanted = to_fp8_saturated(given * by, dtype).float().numpy()
        assert np.array_equal(kept[used], wanted[used])
        scales = found.scales.reshape(-1)
        given_scales = 1 / by.double().numpy().reshape(-1)
        chosen = used if len(scales) > 1 else [True]
        assert np.allclose(scales[chosen], given_scales[chosen], rtol=2.0**-22, atol=0)


def nvfp4(values: Array) -> tuple[Array, Array, float]:
    """The elements, the scales of the blocks and the scale of the tensor, of torchao."""
    from torchao.prototype.mx_formats.kernels import f4_unpacked_to_f32, unpack_uint4
    from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize, per_tensor_amax_to_scale

    given = torch.from_numpy(values)
    whole = per_tensor_amax_to_scale(given.abs().max())
    scales, packed = nvfp4_quantize(given, 16, whole)
    elements = f4_unpacked_to_f32(unpack_uint4(packed)).numpy().reshape(values.shape)
    return elements, scales.float().numpy().reshape(len(values), -1), float(whole)


def test_an_nvfp4_tensor_is_that_of_torchao() -> None:
    form = BY_NAME["nvfp4-1x16"]
    compared = 0
    for values in (*narrow(), narrow()[0] * np.float32(1e-30), powers(), torch.from_numpy(narrow()[0]).bfloat16()):
        values = values if isinstance(values, np.ndarray) else values.float().numpy()
        elements, scales, whole = nvfp4(values)
        found = scale(values, form, weight=False)
        assert whole_scale(float(np.abs(values).max()), form) == whole
        used = found.scales / whole >= LEAST_NVFP4
        assert np.array_equal((found.scales / whole)[used], scales[used])
        assert (scales[~used] == LEAST_NVFP4).all()
        each = np.repeat(used, 16, 1)
        assert np.array_equal(cast(np.clip(found.elements, -6, 6), E2M1)[each], elements[each])
        compared += int(used.sum())
    assert compared > 30_000


def test_only_the_middle_between_two_neighbours_may_round_differently() -> None:
    """torchao multiplies by an inverse, so what is exactly in the middle may fall to either side."""
    random = np.random.default_rng(2)
    values = (random.integers(-24, 25, (512, 256)) / 4.0 * np.ldexp(1.0, random.integers(-3, 3, (512, 1)))).astype(
        np.float32
    )
    elements, _, _ = nvfp4(values)
    found = scale(values, BY_NAME["nvfp4-1x16"], weight=False)
    kept = cast(np.clip(found.elements, -6, 6), E2M1)
    other = kept != elements
    assert 0 < other.sum() < 0.02 * other.size
    assert np.allclose(np.abs(found.elements - kept)[other], np.abs(found.elements - elements)[other], atol=2e-6)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 128, bias=False), nn.Linear(128, 64, bias=False)

    def forward(self, x: Any) -> Any:
        return x + self.down(torch.relu(self.up(x)))


@pytest.mark.parametrize("form", ["mxfp8", "mxfp8-rceil", "mxfp8-even", "nvfp4", "fp8-e4m3", "fp8-e4m3-row"])
def test_the_configuration_keeps_the_named_modules_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block())
    with torch.no_grad():
        model[1].up.weight[:, ::16] *= 1e5
    debugger = PrecisionDebugger(dump_path=str(tmp_path), task="tensor", level="L0", step=[0])
    debugger.start(model)
    model(torch.randn(32, 64)).square().mean().backward()
    debugger.stop()
    debugger.step()
    capsys.readouterr()
    assert main(["precision", str(tmp_path), "--format", form, "--snippet", "torchao"]) == 1
    code = capsys.readouterr().out
    assert '"1.up"' in code
    model = model.bfloat16()
    names: dict[str, Any] = {"model": model}
    exec(code, names)
    kept = {name for name, one in model.named_modules() if type(one) is nn.Linear and type(one.weight.data) is
            torch.Tensor}  # fmt: skip
    assert kept == names["KEEP"]
    assert "0.up" not in kept


def record_float8(path: Path, recipe: str, monkeypatch: pytest.MonkeyPatch, wrong: float = 1.0) -> Path:
    """A step of a model in float8 training of torchao, or in bf16; `wrong` times the scale of one weight."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training, float8_scaling_utils

    torch.manual_seed(0)
    model = nn.Sequential(Biased(), Biased()).bfloat16()
    if recipe:
        convert_to_float8_training(model, config=Float8LinearConfig.from_recipe_name(recipe))
    plain, calls = float8_scaling_utils.tensor_to_scale, []

    def scale_of(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return plain(*args, **kwargs) * (wrong if len(calls) == 4 else 1.0)

    with monkeypatch.context() as patch:
        patch.setattr(float8_scaling_utils, "tensor_to_scale", scale_of)
        debugger = PrecisionDebugger(dump_path=str(path), task="tensor", level="mix", step=[0])
        debugger.start(model)
        model(torch.randn(32, 64).bfloat16()).float().square().mean().backward()
        debugger.stop()
        debugger.step()
    return path


class Biased(Block):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 128), nn.Linear(128, 64)


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
def test_float8_training_is_judged_by_the_error_of_its_format(
    tmp_path: Path, recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    golden = record_float8(tmp_path / "bf16", "", monkeypatch)
    clean = compare(record_float8(tmp_path / "clean", recipe, monkeypatch), golden)
    assert clean.verdict == "same"
    found = compare(record_float8(tmp_path / "wrong", recipe, monkeypatch, 8.0), golden).origin
    assert found is not None
    assert found.sentence.startswith("0.down: weights: SNR ")
    assert "the scale is too small" in found.sentence
