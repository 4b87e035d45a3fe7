"""Two implementations of one model: fused against unfused attention, bf16 against fp32, on a Llama of Hugging Face."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, Callable, Optional

import pytest
import torch

from msprobe.compare import compare
from msprobe.pytorch import PrecisionDebugger

transformers = pytest.importorskip("transformers", reason="transformers is not installed: fusion was NOT tested on it")

Edit = Optional[Callable[[Any], None]]


def run(path: Path, level: str, attention: str, edit: Edit = None, dtype: Optional[torch.dtype] = None) -> Path:
    logging.getLogger("msprobe").setLevel(logging.ERROR)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    shape = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.LlamaConfig(
        **shape, num_key_value_heads=2, vocab_size=50, attn_implementation=attention, use_cache=False
    )
    model = transformers.LlamaForCausalLM(config)
    if edit is not None:
        edit(model)
    if dtype is not None:
        model = model.to(dtype)
    tokens = torch.randint(0, 50, (2, 12), generator=torch.Generator().manual_seed(1))
    path.mkdir(parents=True)
    settings = path / "config.json"
    settings.write_text(
        json.dumps({"task": "statistics", "level": level, "dump_path": str(path / "dump"), "step": [0]})
    )
    debugger = PrecisionDebugger(str(settings))
    debugger.start(model)
    model(tokens, labels=tokens).loss.backward()
    debugger.stop()
    debugger.step()
    return path / "dump"


@pytest.fixture(scope="module", params=["L0", "mix"])
def golden(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    return request.param, run(tmp_path_factory.mktemp("golden") / "run", request.param, "eager")


def test_fused_attention_is_the_same_as_unfused(tmp_path: Path, golden: tuple[str, Path]) -> None:
    level, path = golden
    result = compare(run(tmp_path / "run", level, "sdpa"), path)
    assert result.verdict == "same", [(r.name, r.reason) for _, r in result.rows() if r.verdict in ("error", "warning")]
    if level == "mix":
        fused = [m for m, _ in result.units[0].groups if m.how == "fused" and m.target]
        assert {m.target.key for m in fused if m.target} == {"Functional.scaled_dot_product_attention"}


def test_another_precision_is_the_same(tmp_path: Path, golden: tuple[str, Path]) -> None:
    level, path = golden
    result = compare(run(tmp_path / "run", level, "eager", dtype=torch.bfloat16), path)
    assert result.verdict == "same", [(r.name, r.reason) for _, r in result.rows() if r.verdict in ("error", "warning")]


def _other_activation(model: Any) -> None:
    model.model.layers[1].mlp.act_fn = torch.nn.GELU()


def _other_frequencies(model: Any) -> None:
    model.model.rotary_emb.inv_freq *= 1.01


def _other_scale(model: Any) -> None:
    model.model.layers[1].self_attn.scaling *= 1.1


@pytest.mark.parametrize(
    ("edit", "attention", "module"),
    [
        (_other_activation, "eager", "Module.model.layers.1.mlp.act_fn.GELU"),
        (_other_activation, "sdpa", "Module.model.layers.1.mlp.act_fn.GELU"),
        (_other_frequencies, "eager", "Module.model.rotary_emb.LlamaRotaryEmbedding"),
        (_other_scale, "eager", "Module.model.layers.1.self_attn.LlamaAttention"),
    ],
)
def test_a_fault_is_found_in_a_real_model(
    tmp_path: Path, golden: tuple[str, Path], edit: Edit, attention: str, module: str
) -> None:
    level, path = golden
    origin = compare(run(tmp_path / "run", level, attention, edit), path).origin
    assert origin is not None
    assert origin.module == module
