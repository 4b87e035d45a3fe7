"""The models of the fourth set: none of them is in another set. Importing this adds them to MODELS."""

# ruff: noqa: E501

from __future__ import annotations

from typing import Any

import torch
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

from fourth import own

SEED = 12000
EXPERTS = {**DECODER, "num_local_experts": 4, "num_experts_per_tok": 2}
PICTURE = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 3,
           "image_size": 16, "patch_size": 4, "attention_dropout": 0.0}  # fmt: skip
TEXT = {"vocab_size": VOCABULARY, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
        "num_attention_heads": 3, "max_position_embeddings": 16, "attention_dropout": 0.0, "projection_size": 24,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
PATCH = 95
"""The word that stands for a patch of the picture in LLaVA."""


def pictures_with_words(step: int) -> Batch:
    """Sixteen patches of a picture, then words about it."""
    made = generator(SEED, step)
    words = torch.randint(3, PATCH, (SIZE, 6), generator=made)
    ids = torch.cat([torch.full((SIZE, 16), PATCH), words], dim=1)
    labels = ids.masked_fill(ids == PATCH, -100)
    return {"input_ids": ids, "pixel_values": torch.randn(SIZE, 3, 16, 16, generator=made), "labels": labels,
            "attention_mask": torch.ones_like(ids)}  # fmt: skip


def pairs(step: int) -> Batch:
    made = generator(SEED + 50, step)
    return {"input_ids": torch.randint(3, VOCABULARY, (SIZE, 8), generator=made),
            "pixel_values": torch.randn(SIZE, 3, 16, 16, generator=made), "return_loss": True}  # fmt: skip


def _text(
    name: str, family: str, head: str, sizes: dict[str, Any], batch: Any = tokens, attention: bool = True
) -> Model:
    return Model(name, _builder(family, head, sizes), batch, _own_loss, attention)


TRANSFORMERS = [
    _text("smollm3", "SmolLM3", "ForCausalLM", {**DECODER, "no_rope_layers": [1, 0]}, masked_tokens),
    _text("arcee", "Arcee", "ForCausalLM", DECODER),
    _text("cohere2", "Cohere2", "ForCausalLM", {**DECODER, "sliding_window": 4}),
    _text("granite_moe", "GraniteMoe", "ForCausalLM", {**EXPERTS, "residual_multiplier": 0.8, "embedding_multiplier": 2.0,
          "logits_scaling": 1.5, "attention_multiplier": 0.4}),
    _text("phimoe", "Phimoe", "ForCausalLM", EXPERTS),
    _text("qwen3_next", "Qwen3Next", "ForCausalLM", {**DECODER, "head_dim": 8, "linear_num_value_heads": 4,
          "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "num_experts": 4,
          "num_experts_per_tok": 2, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 24,
          "layer_types": ["linear_attention", "full_attention"]}),
    _text("mamba2", "Mamba2", "ForCausalLM", {**IDS, "hidden_size": 32, "num_heads": 4, "head_dim": 16, "state_size": 8,
          "num_hidden_layers": 2, "n_groups": 1, "chunk_size": 4}, attention=False),
    _text("persimmon", "Persimmon", "ForCausalLM", {**DECODER, "hidden_dropout": 0.0, "attention_dropout": 0.0}),
    _text("pegasus", "Pegasus", "ForConditionalGeneration", translation(28, 4, 44, 32),
          sentences(SEED, (10, 6), (2, 7), (1, 4))),
    _text("mpnet", "MPNet", "ForMaskedLM", {**ENCODER, **NO_DROPOUT}, masked_tokens, attention=False),
    _text("fnet", "FNet", "ForMaskedLM", {**ENCODER, "hidden_dropout_prob": 0.0}, tokens, attention=False),
    _text("squeezebert", "SqueezeBert", "ForMaskedLM", {**ENCODER, **NO_DROPOUT, "embedding_size": 32, "q_groups": 2,
          "k_groups": 2, "v_groups": 2, "post_attention_groups": 1, "intermediate_groups": 2, "output_groups": 2},
          masked_tokens, attention=False),
    Model("poolformer", _builder("PoolFormer", "ForImageClassification", {"hidden_sizes": [8, 16], "depths": [1, 2],
          "num_encoder_blocks": 2, "patch_sizes": [3, 3], "strides": [2, 2], "padding": [1, 1], "mlp_ratio": 2.0,
          "drop_path_rate": 0.0, "num_labels": 5, "layer_scale_init_value": 0.5}), images, _own_loss),
    Model("convnextv2", _builder("ConvNextV2", "ForImageClassification", {"hidden_sizes": [8, 16], "depths": [1, 2],
          "num_stages": 2, "patch_size": 2, "num_labels": 5}), images, _own_loss),
    Model("swinv2", _builder("Swinv2", "ForImageClassification", {"image_size": 16, "patch_size": 2, "embed_dim": 16,
          "depths": [2, 1], "num_heads": [2, 4], "window_size": 4, "drop_path_rate": 0.0, "num_labels": 5}),
          images, _own_loss),
    Model("siglip", _builder("Siglip", "Model", {"text_config": TEXT, "vision_config": PICTURE}), pairs, _own_loss, True),
    Model("unispeech", _builder("UniSpeech", "ForCTC", sound(24, 4, 36, 16, 12)), waves(SEED, 320, 16, 5), _own_loss, True),
    Model("llava", _builder("Llava", "ForConditionalGeneration", {
          "text_config": {**DECODER, "model_type": "llama"},
          "vision_config": {**PICTURE, "model_type": "clip_vision_model", "projection_dim": 24},
          "image_token_index": PATCH, "vision_feature_layer": -1, "vision_feature_select_strategy": "default"}),
          pictures_with_words, _own_loss, True),
]  # fmt: skip
OTHERS = [
    Model(name, lambda changes, make=make: make(**changes), batch, loss)
    for name, (make, batch, loss) in own.NETWORKS.items()
]
FOURTH = {model.name: model for model in [*TRANSFORMERS, *OTHERS]}
MODELS.update(FOURTH)
