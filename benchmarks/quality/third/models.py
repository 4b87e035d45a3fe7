"""The models of the third set: none of them is in the tuned suite or in unseen/. Importing this adds them to MODELS."""

# ruff: noqa: E501
from __future__ import annotations

from typing import Any

import torch
import transformers
from architectures import (
    DECODER,
    ENCODER,
    MODELS,
    SIZE,
    VOCABULARY,
    Batch,
    Model,
    _builder,
    _own_loss,
    images,
    masked_tokens,
    tokens,
)
from parts import IDS, NO_DROPOUT, generator, sentences, sound, translation, waves
from torch import nn

from third import own

SEED = 9000
PICTURE = {
    "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 3, "image_size": 16,
    "patch_size": 4, "num_labels": 5, **NO_DROPOUT,
}  # fmt: skip
EXPERTS = {**DECODER, "moe_intermediate_size": 24, "num_experts": 4, "num_experts_per_tok": 2}


def _generator(step: int) -> torch.Generator:
    return generator(SEED, step)


def opinions(step: int) -> Batch:
    """Sentences of different lengths with one label each."""
    batch = masked_tokens(step)
    return {**batch, "labels": torch.randint(0, 3, (SIZE,), generator=_generator(step))}


def windows(step: int) -> Batch:
    """Longer sequences, the first token attends to all."""
    made = _generator(step)
    ids = torch.randint(3, VOCABULARY, (2, 16), generator=made)
    everywhere = torch.zeros_like(ids)
    everywhere[:, 0] = 1
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "global_attention_mask": everywhere,
            "labels": ids.clone()}  # fmt: skip


def boxes(step: int) -> Batch:
    """Pictures with one or two objects each."""
    made = _generator(step)
    labels = [
        {"class_labels": torch.randint(0, 4, (count,), generator=made),
         "boxes": 0.2 + 0.3 * torch.rand(count, 4, generator=made)}
        for count in (1, 2)
    ]  # fmt: skip
    return {"pixel_values": torch.randn(2, 3, 32, 32, generator=made), "labels": labels}


def pairs(step: int) -> Batch:
    """Pictures with captions."""
    made = _generator(step)
    ids = torch.randint(3, VOCABULARY, (SIZE, 8), generator=made)
    return {"pixel_values": torch.randn(SIZE, 3, 16, 16, generator=made), "input_ids": ids, "labels": ids.clone()}


def _gemma(changes: dict[str, Any]) -> nn.Module:
    sizes = {**DECODER, "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 4, **changes}
    attention = sizes.pop("attn_implementation", None)
    config = transformers.Gemma3TextConfig(**sizes)
    if attention is not None:
        config._attn_implementation = attention
    return transformers.Gemma3ForCausalLM(config)


def _text(
    name: str, family: str, head: str, sizes: dict[str, Any], batch: Any = tokens, attention: bool = True
) -> Model:
    return Model(name, _builder(family, head, sizes), batch, _own_loss, attention)


TRANSFORMERS = [
    Model("gemma3", _gemma, tokens, _own_loss, True),
    _text("qwen3_moe", "Qwen3Moe", "ForCausalLM", {**EXPERTS, "head_dim": 8, "norm_topk_prob": True}),
    _text("olmoe", "Olmoe", "ForCausalLM", {**EXPERTS, "output_router_logits": True}),
    _text("gpt_oss", "GptOss", "ForCausalLM", {**DECODER, "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8,
                                               "sliding_window": 4}),
    _text("mistral", "Mistral", "ForCausalLM", {**DECODER, "sliding_window": 4}, masked_tokens),
    _text("stablelm", "StableLm", "ForCausalLM", {**DECODER, "use_qkv_bias": True, "partial_rotary_factor": 0.5}),
    _text("mpt", "Mpt", "ForCausalLM", {**IDS, "d_model": 32, "n_heads": 4, "n_layers": 2, "expansion_ratio": 2, "max_seq_len": 32},
          attention=False),
    _text("codegen", "CodeGen", "ForCausalLM", {**IDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4, "n_positions": 32,
          "n_ctx": 32, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}, attention=False),
    _text("xglm", "XGLM", "ForCausalLM", {**IDS, "d_model": 32, "ffn_dim": 48, "num_layers": 2, "attention_heads": 4, "dropout": 0.0,
          "attention_dropout": 0.0, "max_position_embeddings": 32}, masked_tokens, attention=False),
    _text("nemotron", "Nemotron", "ForCausalLM", DECODER),
    _text("falcon_mamba", "FalconMamba", "ForCausalLM", {"hidden_size": 32, "state_size": 4, "num_hidden_layers": 2,
          "vocab_size": VOCABULARY, "pad_token_id": 0}, attention=False),
    _text("roberta", "Roberta", "ForSequenceClassification", {**ENCODER, **NO_DROPOUT, "num_labels": 3}, opinions),
    _text("distilbert", "DistilBert", "ForMaskedLM", {"vocab_size": VOCABULARY, "dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4,
          "max_position_embeddings": 32, "dropout": 0.0, "attention_dropout": 0.0, "pad_token_id": 0}, masked_tokens),
    _text("longformer", "Longformer", "ForMaskedLM", {**ENCODER, **NO_DROPOUT, "attention_window": 4}, windows, attention=False),
    _text("funnel", "Funnel", "ForMaskedLM", {"vocab_size": VOCABULARY, "block_sizes": [1, 1], "d_model": 32, "n_head": 4, "d_head": 8,
          "d_inner": 48, "num_decoder_layers": 1, "hidden_dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0},
          masked_tokens, attention=False),
    _text("mbart", "MBart", "ForConditionalGeneration", translation(24, 3, 40, 32), sentences(SEED, (11, 6), (0, 8), (3, 4))),
    Model("deit", _builder("DeiT", "ForImageClassification", PICTURE), images, _own_loss, True),
    Model("beit", _builder("Beit", "ForImageClassification", {**PICTURE, "drop_path_rate": 0.0, "use_relative_position_bias": True}),
          images, _own_loss, True),
    Model("dinov2", _builder("Dinov2", "ForImageClassification", {**PICTURE, "mlp_ratio": 2, "layerscale_value": 0.5}), images, _own_loss, True),
    Model("regnet", _builder("RegNet", "ForImageClassification", {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 2],
          "groups_width": 4, "num_labels": 5, "layer_type": "y"}), images, _own_loss),
    Model("hubert", _builder("Hubert", "ForCTC", sound(24, 3, 40, 18, 12)), waves(SEED, 360, 18, 5), _own_loss, True),
    Model("blip", _builder("Blip", "ForConditionalGeneration", {
          "text_config": {**ENCODER, **NO_DROPOUT, "bos_token_id": 1, "eos_token_id": 2, "sep_token_id": 2, "encoder_hidden_size": 24,
                          "projection_dim": 16},
          "vision_config": {**PICTURE, "projection_dim": 16}, "projection_dim": 16}), pairs, _own_loss, True),
    Model("yolos", _builder("Yolos", "ForObjectDetection", {**PICTURE, "image_size": [32, 32], "patch_size": 8, "num_detection_tokens": 4,
          "num_labels": 4}), boxes, _own_loss, True),
]  # fmt: skip
OTHERS = [
    Model(name, lambda changes, make=make: make(**changes), batch, loss)
    for name, (make, batch, loss) in own.NETWORKS.items()
]
THIRD = {model.name: model for model in [*TRANSFORMERS, *OTHERS]}
MODELS.update(THIRD)
