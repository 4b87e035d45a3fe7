"""Faults of the weights: other values, transposed or untied ones, other buffers, parameters of the model itself."""

from __future__ import annotations

from typing import Any

import torch
from cases import Expect, fault
from plants import perturbed, transposed
from torch import nn
from training import Experiment, Plant, Recipe


def differs(model: str, name: str, plant: Plant, parameter: str, *says: str, **options: Any) -> None:
    expect = Expect(parameter=parameter, says=("weight|parameter|buffer", *says), never=("optimizer",))
    fault(model, name, "weights", plant, expect, **options)


def exchanged(first: str, second: str) -> Plant:
    """Two weights of one shape were loaded the wrong way round."""

    def plant(run: Experiment) -> None:
        one, other = run.model.get_parameter(first), run.model.get_parameter(second)
        one.data, other.data = other.data.clone(), one.data.clone()

    return plant


def untied(run: Experiment) -> None:
    """The head has weights of its own instead of those of the embedding."""
    head = run.model.get_output_embeddings()
    head.weight = nn.Parameter(head.weight.detach().clone() + 0.01)


def another_seed(run: Experiment) -> None:
    with torch.no_grad():
        for value in run.model.parameters():
            value.add_(torch.randn(value.shape) * 0.01)


# One fault a line or two reads as a table; some are longer than a line of code may be.
# ruff: noqa: E501
# fmt: off
L0, L1 = "model.layers.0", "model.layers.1"
differs("llama", "one weight", perturbed(f"{L1}.mlp.down_proj.weight"), f"{L1}.mlp.down_proj.weight", representative=True)
differs("llama", "one element of a weight, md5", perturbed(f"{L0}.self_attn.q_proj.weight", part=True, factor=1.1),
        f"{L0}.self_attn.q_proj.weight", recipe=Recipe(summary="md5"))
fault("llama", "one weight, L1", "weights", perturbed(f"{L1}.mlp.down_proj.weight"),
      Expect(call="linear.13", says=("weight|input.1|parameter",)), recipe=Recipe(level="L1"))
differs("qwen2", "a norm's weight", perturbed(f"{L0}.input_layernorm.weight"), f"{L0}.input_layernorm.weight")
differs("gpt2", "a transposed weight", transposed("transformer.h.1.attn.c_proj.weight"), "transformer.h.1.attn.c_proj.weight",
        recipe=Recipe(summary="md5"))
differs("gpt2", "a position embedding", perturbed("transformer.wpe.weight"), "transformer.wpe.weight")
differs("bert", "a norm's weight", perturbed("bert.embeddings.LayerNorm.weight"), "bert.embeddings.LayerNorm.weight")
differs("resnet", "a running mean", perturbed("blocks.1.bn1.running_var", factor=1.5), "blocks.1.bn1.running_var")
differs("llama", "a buffer", perturbed("model.rotary_emb.inv_freq", factor=1.01), "model.rotary_emb.inv_freq")
differs("deepseek_v3", "a router's correction", lambda run: run.module(f"{L1}.mlp.gate").e_score_correction_bias.add_(torch.arange(4) * 0.1),
        f"{L1}.mlp.gate.e_score_correction_bias")
differs("clip", "a parameter of the model", perturbed("logit_scale", factor=1.1), "logit_scale", representative=True)
differs("encoder", "a parameter of the model", perturbed("position"), "position")
differs("vit", "the class token", perturbed("vit.embeddings.cls_token", factor=2.0), "vit.embeddings.cls_token")
differs("vit", "the position embedding", perturbed("vit.embeddings.position_embeddings", factor=1.1),
        "vit.embeddings.position_embeddings")
differs("mixtral", "weights of the experts", perturbed(f"{L0}.mlp.experts.down_proj"), f"{L0}.mlp.experts.down_proj")
differs("mamba", "a weight used without its module", perturbed("backbone.layers.1.mixer.dt_proj.weight", factor=1.1),
        "backbone.layers.1.mixer.dt_proj.weight")
differs("lstm", "a recurrent weight", perturbed("lstm.weight_hh_l1"), "lstm.weight_hh_l1")
differs("translator", "a weight of a cell", perturbed("decoder.weight_ih"), "decoder.weight_ih")
differs("recommender", "a table", perturbed("tables.2.weight"), "tables.2.weight")
differs("gemma2", "untied head", untied, "lm_head.weight")
differs("gpt2", "untied head", untied, "lm_head.weight")
differs("llama", "two weights exchanged", exchanged(f"{L0}.mlp.gate_proj.weight", f"{L0}.mlp.up_proj.weight"),
        f"{L0}.mlp.gate_proj.weight", r"2 of \d+")
fault("llama", "three weights", "weights",
      perturbed(f"{L0}.mlp.up_proj.weight", f"{L1}.self_attn.q_proj.weight", f"{L1}.mlp.down_proj.weight"),
      Expect(parameter=f"{L0}.mlp.up_proj.weight", says=(r"3 of \d+",)), representative=True)
fault("vae", "another initialisation", "weights", another_seed, Expect(says=(r"(10|all|every).*weights|weights.*\b10\b",)))
fault("t5", "another initialisation", "weights", another_seed, Expect(says=(r"\d+ of \d+ weights|all weights|every weight",)))
