"""Small random models of five architectures, as Hugging Face checkpoints: no network is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

SIZES = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.08,
}
EXTRA: dict[str, dict[str, Any]] = {
    "qwen2": {},
    "qwen3": {"head_dim": 32},
    "llama": {},
    "mixtral": {"head_dim": 32, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {
        "head_dim": 32,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
    },
}
KINDS = tuple(EXTRA)


def make(kind: str, path: Path, dtype: str = "float32", seed: int = 0, **changes: Any) -> Path:
    """Saves a random model; norms and biases are not ones and zeros, or a missing one could not be seen."""
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    torch.manual_seed(seed)
    config = CONFIG_MAPPING[kind](**{**SIZES, **EXTRA[kind], **changes})
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or "bias" in name:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.to(getattr(torch, dtype)).save_pretrained(path)
    return path
