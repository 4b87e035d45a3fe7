"""Faults that only the backward shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from edits import wrap
from faults.backward import cut, formula, of_parameter
from kernels import faulty_kernel
from plants import edited, frozen, gradient_scaled, output_hook, parameter_hook, wrong_activation, wrong_linear
from torch import Tensor
from training import Experiment, Recipe

import unseen.models  # noqa: F401


class WrongGelu(torch.autograd.Function):
    """BLOOM's gelu with a wrong constant in its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        t = torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x))
        return (0.5 * x * ((1 - t * t) * (0.70 + 0.1070322243 * x * x)) + 0.5 * (1 + t)) * gradient


class WrongNorm(torch.autograd.Function):
    """A layer norm whose input gradient forgets to subtract the mean."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        out, mean, scale = torch.native_layer_norm(x, (x.shape[-1],), weight, bias, eps)
        ctx.save_for_backward(x, weight, mean, scale)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        x, weight, mean, scale = ctx.saved_tensors
        normal = (x - mean) * scale
        inner = gradient * weight
        of_input = scale * (inner - normal * (inner * normal).mean(-1, keepdim=True))
        axes = tuple(range(x.ndim - 1))
        return of_input, (gradient * normal).sum(axes), gradient.sum(axes), None


def wrong_gelu(run: Experiment) -> None:
    wrap(run.module("transformer.h.1.mlp.gelu_impl"), lambda forward, x: WrongGelu.apply(x))


def wrong_norm(path: str) -> Callable[[Experiment], None]:
    def plant(run: Experiment) -> None:
        norm = run.module(path)
        wrap(norm, lambda forward, x: WrongNorm.apply(x, norm.weight, norm.bias, norm.eps))

    return plant


# One fault a line or two reads as a table; some are longer than a line of code may be.
# ruff: noqa: E501
# fmt: off
L0, L1 = "model.layers.0", "model.layers.1"
formula("bloom", "gelu's own formula", wrong_gelu, "transformer.h.1.mlp.gelu_impl")
formula("starcoder2", "norm's own formula", wrong_norm(f"{L1}.post_attention_layernorm"), f"{L1}.post_attention_layernorm")
formula("gpt_neox", "norm's own formula, L0", wrong_norm("gpt_neox.layers.1.input_layernorm"), "gpt_neox.layers.1.input_layernorm", recipe=Recipe(level="L0"))
formula("granite", "silu backward 0.5%", faulty_kernel(f"{L0}.mlp.act_fn", "silu_backward", 1.005), f"{L0}.mlp.act_fn")
formula("cohere", "silu backward 2%, L1", faulty_kernel(f"{L1}.mlp.act_fn", "silu_backward", 1.02), recipe=Recipe(level="L1"))
formula("glm", "silu backward 1%, md5", faulty_kernel(f"{L1}.mlp.activation_fn", "silu_backward", 1.01), f"{L1}.mlp.activation_fn", recipe=Recipe(summary="md5"))
formula("jamba", "silu backward of the mamba layer", faulty_kernel(f"{L0}.feed_forward.act_fn", "silu_backward", 1.01), f"{L0}.feed_forward.act_fn")
formula("electra", "gelu backward 1%", wrong_activation("electra.encoder.layer.1.intermediate.intermediate_act_fn", 1.01), "electra.encoder.layer.1.intermediate.intermediate_act_fn")
formula("falcon", "gradient of a layer 2%", gradient_scaled("transformer.h.1.self_attention.dense", 1.02), "transformer.h.1.self_attention.dense")
formula("swin", "gradient of an attention 3%", gradient_scaled("swin.encoder.layers.0.blocks.1.mlp.fc2", 1.03), "swin.encoder.layers.0.blocks.1.mlp.fc2")
formula("wav2vec2", "hook on an output", output_hook("wav2vec2.encoder.layers.0.feed_forward", 0.9), "wav2vec2.encoder.layers.0.feed_forward*")
formula("segformer", "input gradient of a projection 2%", wrong_linear("segformer.stages.1.blocks.0.mlp.fc2", of_input=1.02), "segformer.stages.1.blocks.0.mlp.fc2")
formula("bart", "input gradient of a query 5%", wrong_linear("model.decoder.layers.1.encoder_attn.q_proj", of_input=1.05), "model.decoder.layers.1.encoder_attn.q_proj")
of_parameter("deberta_v2", "weight gradient 2%", wrong_linear("deberta.encoder.layer.0.output.dense", of_weight=1.02), "deberta.encoder.layer.0.output.dense.weight")
of_parameter("convnext", "hook on the layer scale", parameter_hook("convnext.encoder.stages.0.layers.1.layer_scale_parameter", 1.1), "convnext.encoder.stages.0.layers.1.layer_scale_parameter")
of_parameter("rwkv", "frozen decay", frozen("rwkv.blocks.0.attention.time_decay"), "rwkv.blocks.0.attention.time_decay")
of_parameter("albert", "frozen shared weight", frozen("albert.encoder.albert_layer_groups.0.albert_layers.0.ffn.weight"), "albert.encoder.albert_layer_groups.0.albert_layers.0.ffn.weight")
of_parameter("speech", "frozen recurrent weight", frozen("gru.weight_hh_l0_reverse"), "gru.weight_hh_l0_reverse")
cut("glm", "gate detached", edited(f"{L1}.mlp", "self.activation_fn(gate)", "self.activation_fn(gate).detach()"), f"{L1}.mlp")
cut("bart", "encoder detached", edited("model.decoder.layers.1", "key_value_states=encoder_hidden_states", "key_value_states=encoder_hidden_states.detach()"),
    "model.decoder.layers.1*")
cut("segformer", "a stage under no_grad", edited("decode_head", "encoder_hidden_state = linear_proj(encoder_hidden_state)",
    "\n        with torch.no_grad(): encoder_hidden_state = linear_proj(encoder_hidden_state)"), "decode_head", "decode_head.linear_projections.*")
