"""Faults of the weights."""

from __future__ import annotations

import torch
from cases import Expect, fault
from faults.weights import another_seed, differs, exchanged, untied
from plants import perturbed, transposed
from training import Experiment, Recipe

import unseen.models  # noqa: F401


def other_base(run: Experiment) -> None:
    """Rotary frequencies of another base."""
    buffer = run.module("model.rotary_emb").inv_freq
    size = buffer.shape[0]
    buffer.copy_(1.0 / (500000.0 ** (torch.arange(size) / size)))


# One fault a line or two reads as a table; some are longer than a line of code may be.
# ruff: noqa: E501
# fmt: off
L0, L1 = "model.layers.0", "model.layers.1"
differs("olmo2", "rotary base", other_base, "model.rotary_emb.inv_freq")
differs("falcon", "transposed weight", transposed("transformer.h.0.self_attention.dense.weight"), "transformer.h.0.self_attention.dense.weight", recipe=Recipe(summary="md5"))
differs("gptj", "a bias", lambda run: run.model.get_parameter("transformer.h.1.mlp.fc_in.bias").data.add_(0.1), "transformer.h.1.mlp.fc_in.bias")
differs("cohere", "query and key exchanged", exchanged(f"{L0}.mlp.gate_proj.weight", f"{L0}.mlp.up_proj.weight"), f"{L0}.mlp.gate_proj.weight", r"2 of \d+")
differs("cohere", "untied head", untied, "lm_head.weight")
differs("rwkv", "a mix", perturbed("rwkv.blocks.1.attention.time_mix_key", factor=1.05), "rwkv.blocks.1.attention.time_mix_key")
differs("jamba", "a router", perturbed(f"{L1}.feed_forward.router.weight", factor=1.1), f"{L1}.feed_forward.router.weight")
differs("swin", "a position table", lambda run: run.model.get_parameter("swin.encoder.layers.1.blocks.0.attention.relative_position_bias.relative_position_bias_table").data.add_(0.1),
        "swin.encoder.layers.1.blocks.0.attention.relative_position_bias.relative_position_bias_table")
differs("convnext", "a layer scale", perturbed("convnext.encoder.stages.1.layers.1.layer_scale_parameter", factor=0.9), "convnext.encoder.stages.1.layers.1.layer_scale_parameter")
differs("wav2vec2", "a weight norm", perturbed("wav2vec2.encoder.pos_conv_embed.conv.parametrizations.weight.original0", factor=1.05),
        "wav2vec2.encoder.pos_conv_embed.conv.parametrizations.weight.original0")
differs("segformer", "a running variance", perturbed("decode_head.batch_norm.running_var", factor=1.3), "decode_head.batch_norm.running_var")
differs("speech", "a reverse weight, L0", perturbed("gru.weight_ih_l0_reverse", factor=1.05), "gru.weight_ih_l0_reverse", recipe=Recipe(level="L0"))
differs("deberta_v2", "relative embeddings, L1", perturbed("deberta.encoder.rel_embeddings.weight", factor=1.1), "deberta.encoder.rel_embeddings.weight", recipe=Recipe(level="L1"))
differs("bart", "one element, tensors", perturbed("model.decoder.layers.1.fc2.weight", factor=1.5, part=True), "model.decoder.layers.1.fc2.weight", recipe=Recipe(task="tensor", steps=1))
fault("actor_critic", "another initialisation", "weights", another_seed, Expect(says=(r"\d+ of \d+ weights|all|every weight",)))
