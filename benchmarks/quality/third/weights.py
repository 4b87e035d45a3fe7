"""Weights and buffers that differ before training: scaled, transposed, permuted, untied, of another checkpoint."""

from __future__ import annotations

import torch
from cases import Expect, fault
from plants import perturbed, transposed
from torch import nn
from training import Experiment, Plant, Recipe

import third.models  # noqa: F401


def added(name: str, value: float) -> Plant:
    def plant(run: Experiment) -> None:
        state = dict(run.model.named_parameters()) | dict(run.model.named_buffers())
        with torch.no_grad():
            state[name].add_(value)

    return plant


def permuted(name: str, dimension: int = 0) -> Plant:
    """The rows of a weight in another order."""

    def plant(run: Experiment) -> None:
        state = dict(run.model.named_parameters()) | dict(run.model.named_buffers())
        with torch.no_grad():
            state[name].copy_(state[name].flip(dimension))

    return plant


def all_scaled(run: Experiment) -> None:
    """Another checkpoint."""
    with torch.no_grad():
        for value in run.model.parameters():
            value.mul_(1.02)


def untied(run: Experiment) -> None:
    """The head has a copy of the embedding, not the embedding."""
    run.model.lm_head.weight = nn.Parameter(run.model.lm_head.weight.detach().clone())


def retied(run: Experiment) -> None:
    """The head is the embedding."""
    run.model.lm_head.weight = run.model.model.embed_tokens.weight


# One fault a line or two reads as a table; some are longer than a line of code may be.
# ruff: noqa: E501
# fmt: off
def weight(model: str, name: str, plant: Plant, parameter: str, *says: str, recipe: Recipe = Recipe(), modules: tuple[str, ...] = ()) -> None:  # noqa: B008
    fault(model, name, "weights", plant, Expect(parameter=parameter, says=says, modules=modules), recipe=recipe)


weight("gemma3", "scale of the embedding", perturbed("model.embed_tokens.embed_scale", factor=1.05), "model.embed_tokens.embed_scale")
weight("nemotron", "transposed weight", transposed("model.layers.0.self_attn.q_proj.weight"), "model.layers.0.self_attn.q_proj.weight")
weight("codegen", "rows of a weight in another order, md5", permuted("transformer.h.0.mlp.fc_in.weight"), "transformer.h.0.mlp.fc_in.weight", recipe=Recipe(summary="md5"))
weight("olmoe", "two weights", perturbed("model.layers.0.mlp.gate.weight", "model.layers.1.self_attn.q_proj.weight", factor=1.03), "model.layers.0.mlp.gate.weight", r"\b2 of|first")
weight("regnet", "a running mean", added("regnet.encoder.stages.0.layers.0.shortcut.normalization.running_mean", 0.1), "regnet.encoder.stages.0.layers.0.shortcut.normalization.running_mean", "buffer|running_mean")
fault("longformer", "another checkpoint", "weights", all_scaled, Expect(says=("weight|parameter", r"\d+ of \d+|all")))
weight("deit", "distillation token", added("deit.embeddings.distillation_token", 0.05), "deit.embeddings.distillation_token")
weight("beit", "layer scale", perturbed("beit.layers.1.lambda_1", factor=1.1), "beit.layers.1.lambda_1")
weight("beit", "table of relative positions", added("beit.layers.0.relative_position_bias.relative_position_bias_table", 0.02), "beit.layers.0.relative_position_bias.relative_position_bias_table")
weight("dinov2", "layer scale, one element", perturbed("dinov2.encoder.layer.1.layer_scale2.lambda1", factor=1.5, part=True), "dinov2.encoder.layer.1.layer_scale2.lambda1")
weight("hubert", "norm of a weight-normed convolution", perturbed("hubert.encoder.pos_conv_embed.conv.parametrizations.weight.original0", factor=1.05), "hubert.encoder.pos_conv_embed.conv.parametrizations.weight.original0")
weight("yolos", "detection tokens", added("vit.embeddings.detection_tokens", 0.03), "vit.embeddings.detection_tokens")
weight("gpt_oss", "one expert", perturbed("model.layers.1.mlp.experts.down_proj", factor=1.2, part=True), "model.layers.1.mlp.experts.down_proj")
weight("flow", "order of the features", permuted("order"), "order")
weight("pinn", "slopes", perturbed("slopes", factor=1.1), "slopes")
weight("xglm", "an embedding, L0", perturbed("model.embed_tokens.weight", factor=1.01), "model.embed_tokens.weight", recipe=Recipe(level="L0"))
weight("distilbert", "bias of the head, L1", added("vocab_projector.bias", 0.1), "vocab_projector.bias", recipe=Recipe(level="L1"))
fault("qwen3_moe", "head not tied", "weights", untied, Expect(modules=("", "lm_head", "model.embed_tokens"), says=("lm_head|embed_tokens|tied|parameters",), step=None), golden_plant=retied)
# fmt: on
