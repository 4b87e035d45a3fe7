"""Faults for a vLLM engine, each with the module and the cause that `msprobe compare` has to name.

`files` changes a copy of the checkpoint before the engine loads it, `loaded` changes the loaded model of the engine,
with `only_rank1` only rank 1 of a tensor-parallel engine has the weights of the changed copy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

import torch


@dataclass(frozen=True)
class Fault:
    name: str
    module: str  # a pattern for the module that the answer names
    causes: tuple[str, ...]
    files: Optional[Callable[[dict[str, Any], dict[str, Any]], None]] = None
    loaded: Optional[Callable[[Any, Any], None]] = None
    only_rank1: bool = False
    kinds: tuple[str, ...] = ("qwen3",)
    options: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    dtypes: tuple[str, ...] = ("float32", "bfloat16")


def _setting(**changes: Any) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    return lambda config, weights: config.update(changes)


def _rope(**changes: Any) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    return lambda config, weights: config["rope_parameters"].update(changes)


def _noise(pattern: str, amount: float = 0.03) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    """Weights of an earlier step: near the right ones."""

    def change(config: dict[str, Any], weights: dict[str, Any]) -> None:
        generator = torch.Generator().manual_seed(7)
        found = [name for name in weights if re.search(pattern, name)]
        assert found, pattern
        for name in found:
            value = weights[name].float()
            noise = torch.randn(value.shape, generator=generator) * value.std() * amount
            weights[name] = (value + noise).to(weights[name].dtype)

    return change


def _swap(first: str, second: str) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    def change(config: dict[str, Any], weights: dict[str, Any]) -> None:
        for name in [one for one in weights if re.search(first, one)]:
            other = re.sub(first, second, name)
            weights[name], weights[other] = weights[other], weights[name]

    return change


def _part(name: str, rows: slice) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    def change(config: dict[str, Any], weights: dict[str, Any]) -> None:
        value = weights[name].clone()
        value[rows] = (value[rows].float() * 1.1).to(value.dtype)
        weights[name] = value

    return change


def _tie(config: dict[str, Any], weights: dict[str, Any]) -> None:
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()


def _attention(**changes: Any) -> Callable[[Any, Any], None]:
    def change(model: Any, runner: Any) -> None:
        for module in model.modules():
            if hasattr(module, "impl") and hasattr(module, "layer_name"):
                for name, value in changes.items():
                    setattr(module.impl, name, value(getattr(module.impl, name)) if callable(value) else value)

    return change


def _without(name: str) -> Callable[[Any, Any], None]:
    def change(model: Any, runner: Any) -> None:
        for path, module in model.named_modules():
            if path.endswith(name):
                module.forward = lambda x, *rest: x

    return change


def _low_precision(name: str) -> Callable[[Any, Any], None]:
    """A module whose matrix product runs in bfloat16."""

    def change(model: Any, runner: Any) -> None:
        for path, module in model.named_modules():
            if path.endswith(name):
                original = module.forward

                def forward(x: Any, original: Any = original) -> Any:
                    output, rest = original(x.to(torch.bfloat16).to(x.dtype))
                    return output.to(torch.bfloat16).to(output.dtype), rest

                module.forward = forward

    return change


def _head_dtype(model: Any, runner: Any) -> None:
    original = model.logits_processor._get_logits

    def get_logits(hidden: Any, *args: Any, **kwargs: Any) -> Any:
        made = original(hidden.to(torch.bfloat16).to(hidden.dtype), *args, **kwargs)
        return made.to(torch.bfloat16).to(made.dtype)

    model.logits_processor._get_logits = get_logits


def _decode_positions(model: Any, runner: Any) -> None:
    def before(module: Any, args: Any, kwargs: Any) -> Any:
        positions = kwargs["positions"].clone()
        count = runner.input_batch.num_reqs
        starts = runner.query_start_loc.np[: count + 1]
        for index in range(count):
            if starts[index + 1] - starts[index] == 1 and positions[starts[index]] > 0:
                positions[starts[index]] += 1
        return args, {**kwargs, "positions": positions}

    model.register_forward_pre_hook(before, with_kwargs=True)


def _all_positions(model: Any, runner: Any) -> None:
    model.register_forward_pre_hook(
        lambda module, args, kwargs: (args, {**kwargs, "positions": kwargs["positions"] + 1}), with_kwargs=True
    )


def _temperature(power: int) -> Callable[[Any, Any], None]:
    def change(model: Any, runner: Any) -> None:
        original = type(runner.sampler).compute_logprobs
        runner.sampler.compute_logprobs = lambda logits: original(logits / 0.8**power)

    return change


def _scaled_logits(model: Any, runner: Any) -> None:
    model.logits_processor.scale = 0.9


def _capped_logits(model: Any, runner: Any) -> None:
    model.logits_processor.soft_cap = 5.0


LAYER1 = r"layers\.1\."
TENSOR_PARALLEL = {"tensor_parallel_size": 2, "in_child": True}
FAULTS = (
    Fault("epsilon", "norm", ("epsilon",), _setting(rms_norm_eps=1e-4), dtypes=("float32",)),
    Fault("theta", r"layers\.0\.self_attn", ("theta",), _rope(rope_theta=500000.0)),
    Fault("theta, Llama", r"layers\.0\.self_attn", ("theta",), _rope(rope_theta=1000.0), kinds=("llama",)),
    Fault("rope scaling", r"layers\.0\.self_attn", ("rope_scaling",), _rope(rope_type="linear", factor=2.0)),
    Fault("positions off by one", r"layers\.0\.self_attn", ("position",), loaded=_all_positions),
    Fault("positions off by one in decode", r"layers\.0\.self_attn", ("position",), loaded=_decode_positions),
    Fault(
        "swapped gate and up",
        LAYER1 + "mlp",
        ("misplaced", "swapped"),
        _swap(r"layers\.1\.mlp\.gate", "layers.1.mlp.up"),
    ),
    Fault(
        "swapped gate and up everywhere",
        r"layers\.0\.mlp",
        ("misplaced", "swapped"),
        _swap(r"mlp\.gate_proj", "mlp.up_proj"),
    ),
    Fault("swapped layers", LAYER1, ("misplaced",), _swap(r"layers\.1\.", "layers.2.")),
    Fault("stale layer", LAYER1, ("weight",), _noise(LAYER1)),
    Fault("stale tensor", LAYER1 + "self_attn.o_proj", ("weight",), _noise(LAYER1 + r"self_attn\.o_proj")),
    Fault("stale k of a fused qkv", LAYER1 + "self_attn.k_proj", ("weight",), _noise(LAYER1 + r"self_attn\.k_proj")),
    Fault(
        "stale rows of down_proj",
        LAYER1 + "mlp.down_proj",
        ("weight",),
        _part("model.layers.1.mlp.down_proj.weight", slice(10, 20)),
    ),
    Fault("stale norm", "model.norm", ("weight", "norm_weight"), _noise(r"model\.norm", 0.5)),
    Fault("stale embedding", "embed_tokens", ("embedding",), _noise("embed_tokens")),
    Fault("stale head", "lm_head", ("weight",), _noise("lm_head")),
    Fault("tied head", "lm_head", ("misplaced",), _tie),
    Fault("head in bfloat16", "lm_head", ("dtype",), loaded=_head_dtype, dtypes=("float32",)),
    Fault("scaled logits", "lm_head", ("scale",), loaded=_scaled_logits),
    Fault("capped logits", "lm_head", ("softcap",), loaded=_capped_logits),
    Fault("no q norm", "q_norm", ("not_applied",), loaded=_without("q_norm")),
    Fault("attention scale", r"layers\.0\.self_attn", ("scale",), loaded=_attention(scale=lambda one: one * 2)),
    Fault("attention softcap", r"layers\.0\.self_attn", ("softcap",), loaded=_attention(logits_soft_cap=1.0)),
    Fault(
        "window off by one",
        r"layers\.0\.self_attn",
        ("window",),
        loaded=_attention(sliding_window=9),
        kinds=("mixtral",),
        model={"sliding_window": 8},
    ),
    Fault("fp8 KV cache", r"layers\.0\.self_attn", ("kv_cache",), options={"kv_cache_dtype": "fp8"}),
    Fault(
        "router in bfloat16", "gate", ("dtype",), loaded=_low_precision("gate"), kinds=("mixtral",), dtypes=("float32",)
    ),
    Fault("top-k of experts", "experts", ("routing",), _setting(num_experts_per_tok=1), kinds=("qwen3_moe",)),
    Fault("no renormalisation", "experts", ("routing",), _setting(norm_topk_prob=False), kinds=("qwen3_moe",)),
    Fault(
        "stale expert",
        LAYER1 + "mlp",
        ("experts", "weight"),
        _noise(LAYER1 + r".*experts\.1\.w2|" + LAYER1 + r".*experts\.1\.down"),
        kinds=("mixtral", "qwen3_moe"),
    ),
    Fault(
        "stale bias",
        LAYER1 + "self_attn.v_proj",
        ("weight", "bias"),
        _noise(LAYER1 + r"self_attn\.v_proj\.bias", 1.0),
        kinds=("qwen2",),
    ),
    Fault(
        "stale shard of qkv on rank 1",
        LAYER1 + "self_attn.q_proj",
        ("stale_shard",),
        _noise(LAYER1 + r"self_attn\.[qkv]_proj"),
        only_rank1=True,
        options=TENSOR_PARALLEL,
    ),
    Fault(
        "stale shard of gate and up on rank 1",
        LAYER1 + "mlp",
        ("stale_shard",),
        _noise(LAYER1 + r"mlp\.(gate|up)_proj"),
        only_rank1=True,
        options=TENSOR_PARALLEL,
    ),
    Fault("temperature in raw log-probs", "", ("temperature",), loaded=_temperature(1)),
    Fault("temperature twice", "", ("temperature",), loaded=_temperature(2), options={"logprobs_mode": "raw_logprobs"}),
)


PAIRS = (
    ("stale tensor", "stale head"),
    ("stale k of a fused qkv", "stale rows of down_proj"),
    ("stale norm", "stale head"),
    ("theta", "stale tensor"),
    ("no q norm", "stale head"),
    ("attention scale", "stale rows of down_proj"),
    ("swapped gate and up", "capped logits"),
    ("stale tensor", "temperature in raw log-probs"),
)
"""Two faults at once, in the order of computation: the first is the answer, and both are found."""


def both(first: Fault, second: Fault) -> Fault:
    """A fault that plants two; its place and cause are those of the first."""
    files, loaded = (
        tuple(change for change in (getattr(first, name), getattr(second, name)) if change is not None)
        for name in ("files", "loaded")
    )
    return Fault(
        f"{first.name} and {second.name}",
        first.module,
        first.causes,
        _each(files) if files else None,
        _each(loaded) if loaded else None,
    )


def _each(changes: tuple[Callable[[Any, Any], None], ...]) -> Callable[[Any, Any], None]:
    def change(one: Any, other: Any) -> None:
        for made in changes:
            made(one, other)

    return change


def damaged_copy(fault: Fault, clean: Path, path: Path) -> Path:
    """The checkpoint with the fault in its files; the clean one if the fault is not in the files."""
    if fault.files is None:
        return clean
    from safetensors.torch import load_file, save_file

    path.mkdir(parents=True)
    config = json.loads((clean / "config.json").read_text())
    weights = load_file(clean / "model.safetensors")
    fault.files(config, weights)
    (path / "config.json").write_text(json.dumps(config))
    save_file(
        {name: value.contiguous() for name, value in weights.items()}, path / "model.safetensors", {"format": "pt"}
    )
    return path
