"""The models of the quality suite: real architectures of transformers in tiny configurations, and networks.py.

Nothing is downloaded: every model is built from its configuration with seeded weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import networks
import torch
import transformers
from torch import Tensor, nn

Batch = dict[str, Any]
VOCABULARY, LENGTH, SIZE = 96, 10, 4


@dataclass(frozen=True)
class Model:
    """How to build a model (with changes to its configuration), its data of a step, and its loss."""

    name: str
    build: Callable[[dict[str, Any]], nn.Module]
    batch: Callable[[int], Batch]
    loss: Callable[[nn.Module, Batch], Tensor]
    attention: bool = False
    """Whether it can run with eager attention instead of the fused call."""


def _generator(step: int) -> torch.Generator:
    return torch.Generator().manual_seed(1000 + step)


def tokens(step: int) -> Batch:
    ids = torch.randint(3, VOCABULARY, (SIZE, LENGTH), generator=_generator(step))
    return {"input_ids": ids, "labels": ids.clone()}


def masked_tokens(step: int) -> Batch:
    batch = tokens(step)
    mask = torch.ones(SIZE, LENGTH, dtype=torch.long)
    mask[-1, LENGTH - 3 :] = 0
    batch["attention_mask"] = mask
    batch["labels"] = batch["labels"].masked_fill(mask == 0, -100)
    return batch


def images(step: int) -> Batch:
    generator = _generator(step)
    pixels = torch.randn(SIZE, 3, 16, 16, generator=generator)
    return {"pixel_values": pixels, "labels": torch.randint(0, 5, (SIZE,), generator=generator)}


def sounds(step: int) -> Batch:
    generator = _generator(step)
    features = torch.randn(SIZE, 8, 32, generator=generator)
    return {"input_features": features, "labels": torch.randint(3, VOCABULARY, (SIZE, LENGTH), generator=generator)}


def captions(step: int) -> Batch:
    ids = tokens(step)["input_ids"]
    return {"input_ids": ids, "pixel_values": images(step)["pixel_values"], "return_loss": True}


def _own_loss(model: nn.Module, batch: Batch) -> Tensor:
    return model(**batch).loss


def _builder(family: str, head: str, sizes: dict[str, Any], prefix: str = "") -> Callable[[dict[str, Any]], nn.Module]:
    def build(changes: dict[str, Any]) -> nn.Module:
        settings = {**sizes, **changes}
        attention = settings.pop("attn_implementation", None)
        experts = settings.pop("experts_implementation", None)
        config = getattr(transformers, f"{family}Config")(**settings)
        if attention is not None:
            config._attn_implementation = attention
        if experts is not None:
            config._experts_implementation = experts
        return getattr(transformers, f"{family}{head}")(config)

    return build


DECODER = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ENCODER = {key: DECODER[key] for key in DECODER if key not in ("num_key_value_heads", "bos_token_id", "eos_token_id")}
GPT2 = {
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "vocab_size": VOCABULARY,
    "n_positions": 64,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
DEEPSEEK = {
    **DECODER,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 24,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "num_nextn_predict_layers": 0,
}
QWEN_MOE = {
    **DECODER,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 24,
    "num_experts": 4,
    "num_experts_per_tok": 2,
}
T5 = {
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "vocab_size": VOCABULARY,
    "dropout_rate": 0.0,
    "decoder_start_token_id": 0,
}
WHISPER = {
    "vocab_size": VOCABULARY,
    "num_mel_bins": 8,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "d_model": 32,
    "max_source_positions": 16,
    "max_target_positions": 32,
    "dropout": 0.0,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
}
VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 16,
    "patch_size": 4,
    "hidden_dropout_prob": 0.0,
}
CLIP = {
    "text_config": {**ENCODER, "hidden_size": 32, "eos_token_id": 2},
    "vision_config": {key: VISION[key] for key in VISION if key != "hidden_dropout_prob"},
    "projection_dim": 16,
}


def _language(name: str, family: str, head: str, sizes: dict[str, Any], batch: Any = tokens) -> Model:
    return Model(name, _builder(family, head, sizes), batch, _own_loss, attention=True)


TRANSFORMERS = [
    _language("gpt2", "GPT2", "LMHeadModel", GPT2),
    _language("llama", "Llama", "ForCausalLM", DECODER),
    _language("qwen2", "Qwen2", "ForCausalLM", DECODER, masked_tokens),
    _language("qwen3", "Qwen3", "ForCausalLM", {**DECODER, "head_dim": 8}),
    _language("mixtral", "Mixtral", "ForCausalLM", {**DECODER, "num_local_experts": 4, "num_experts_per_tok": 2}),
    _language("qwen2_moe", "Qwen2Moe", "ForCausalLM", QWEN_MOE),
    _language("deepseek_v3", "DeepseekV3", "ForCausalLM", DEEPSEEK),
    _language("gemma2", "Gemma2", "ForCausalLM", {**DECODER, "head_dim": 8, "query_pre_attn_scalar": 8}),
    Model(
        "mamba",
        _builder(
            "Mamba",
            "ForCausalLM",
            {"hidden_size": 32, "state_size": 4, "num_hidden_layers": 2, "vocab_size": VOCABULARY, "pad_token_id": 0},
        ),
        tokens,
        _own_loss,
    ),
    _language("phi3", "Phi3", "ForCausalLM", DECODER),
    _language(
        "opt",
        "OPT",
        "ForCausalLM",
        {**ENCODER, "ffn_dim": 48, "word_embed_proj_dim": 32, "dropout": 0.0},
        masked_tokens,
    ),
    _language("bert", "Bert", "ForMaskedLM", {**ENCODER, "attention_probs_dropout_prob": 0.0}, masked_tokens),
    _language("t5", "T5", "ForConditionalGeneration", T5),
    Model("vit", _builder("ViT", "ForImageClassification", {**VISION, "num_labels": 5}), images, _own_loss, True),
    Model("whisper", _builder("Whisper", "ForConditionalGeneration", WHISPER), sounds, _own_loss, True),
    Model("clip", _builder("CLIP", "Model", CLIP), captions, _own_loss, True),
]

OTHERS = [
    Model(name, lambda changes, make=make: make(**changes), batch, loss)
    for name, (make, batch, loss) in networks.NETWORKS.items()
]

MODELS = {model.name: model for model in [*TRANSFORMERS, *OTHERS]}
