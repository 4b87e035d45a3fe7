"""Faults of the forward: arithmetic, arguments, wiring, data."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from cases import Expect, fault
from edits import wrap
from plants import assigned, edited, scaled, skipped, together, with_batch
from third.forward import data, from_second_step, rolled, second_batch, wrong
from torch import Tensor
from training import Experiment, Plant, Recipe

import fourth.models  # noqa: F401
from fourth.own import noise_loss


def without_mask(path: str) -> Plant:
    """A layer is not given the mask."""

    def change(forward: Any, *args: Any, **kwargs: Any) -> Any:
        return forward(*args, **{**kwargs, "attention_mask": None})

    return lambda run: wrap(run.module(path), change)


def with_loss(loss: Any) -> Plant:
    def plant(run: Experiment) -> None:
        run.loss = loss

    return plant


def one_way(model: Any, batch: Any) -> Tensor:
    """Words find pictures, but pictures do not find words."""
    scores = model(batch["words"], batch["pictures"])
    return F.cross_entropy(scores, torch.arange(len(scores))) / 2


def smoother(model: Any, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch["points"]), batch["labels"], label_smoothing=0.2)


# One fault a line or two reads as a table; some are longer than a line of code may be.
# ruff: noqa: E501
# fmt: off
L0, L1 = "model.layers.0", "model.layers.1"
A0, A1 = f"{L0}.self_attn", f"{L1}.self_attn"
MD5, ONLY_L0, ONLY_L1, TENSOR = Recipe(summary="md5"), Recipe(level="L0"), Recipe(level="L1"), Recipe(task="tensor")
EAGER_EXPERTS = {"experts_implementation": "eager"}

wrong("smollm3", "rotation in the layer without", assigned(A1, "use_rope", 1), A1)
wrong("cohere2", "mask not given to a layer", without_mask(A0), A0, L0, call="scaled_dot")
wrong("arcee", "from the second step on", from_second_step(f"{L1}.mlp.up_proj", 1.02), f"{L1}.mlp.up_proj", step=1)
wrong("arcee", "eps of the last norm, L0", assigned("model.norm", "variance_epsilon", 1e-2), "model.norm", recipe=ONLY_L0)
fault("cohere2", "window of three", "forward", None, Expect(modules=("", "model", A0), direction="forward"), wrong={}, wrong_config={"sliding_window": 3})
wrong("cohere2", "rotation left out", edited(A1, "if self.sliding_window is not None:", "if False:"), A1)
wrong("cohere2", "scale of the logits", assigned("", "logit_scale", 0.07), "", call="mul", says=(r"0\.07",))
wrong("granite_moe", "share of the residual", assigned(L1, "residual_multiplier", 0.7), L1, call="mul", says=(r"0\.7",))
wrong("granite_moe", "one expert for each word", assigned(f"{L0}.block_sparse_moe.router", "top_k", 1), f"{L0}.block_sparse_moe.router", call="topk", says=(r"\b1\b",))
wrong("granite_moe", "softmax over words", edited(f"{L1}.block_sparse_moe.router", "torch.softmax(top_k_logits, dim=-1)", "torch.softmax(top_k_logits, dim=0)"), f"{L1}.block_sparse_moe.router", call="softmax", says=("dim",))
wrong("phimoe", "gate and up swapped", edited(f"{L0}.mlp.experts", "gate, up = ", "up, gate = "), f"{L0}.mlp.experts*", kind="wiring", config=EAGER_EXPERTS)
wrong("phimoe", "weights of the experts damped", edited(f"{L1}.mlp.experts", "* top_k_weights[token_idx, top_k_pos, None]", "* 0.9 * top_k_weights[token_idx, top_k_pos, None]"), f"{L1}.mlp.experts", call="mul", config=EAGER_EXPERTS)
wrong("qwen3_next", "gate of the attention left out", edited(A1, "attn_output = attn_output * torch.sigmoid(gate)", "attn_output = attn_output * 1.0"), A1, call="sigmoid|mul")
wrong("qwen3_next", "shared expert without its gate", edited(f"{L0}.mlp", "F.sigmoid(self.shared_expert_gate(hidden_states_reshaped)) * ", ""), f"{L0}.mlp", f"{L0}.mlp.shared_expert_gate", says=("missing",))
wrong("qwen3_next", "decay of the linear attention", edited(f"{L0}.linear_attn", "F.softplus(a.float() + self.dt_bias)", "F.softplus(a.float() + self.dt_bias) * 1.1"), f"{L0}.linear_attn", call="mul")
wrong("qwen3_next", "norm plus nine tenths", edited("model.norm", "(1.0 + self.weight.float())", "(0.9 + self.weight.float())"), "model.norm", call="add", says=(r"0\.9",))
wrong("mamba2", "sigmoid for silu", edited("backbone.layers.1.mixer.norm", "nn.functional.silu(gate.to(torch.float32))", "torch.sigmoid(gate.to(torch.float32))"), "backbone.layers.1.mixer.norm", says=("sigmoid", "silu"))
wrong("mamba2", "eps of a norm", assigned("backbone.layers.0.norm", "variance_epsilon", 1e-2), "backbone.layers.0.norm", call="add", says=(r"0\.01",))
wrong("persimmon", "norm of the query left out", edited(A0, "query_states = self.q_layernorm(query_states)", "query_states = query_states"), A0, f"{A0}.q_layernorm", says=("missing",))
wrong("persimmon", "keys for values", edited(A1, "(query_states, key_states, value_states) = self._split_heads", "(query_states, value_states, key_states) = self._split_heads"), A1, f"{A1}.k_layernorm", kind="wiring")
wrong("pegasus", "residual damped", edited("model.encoder.layers.0", "hidden_states = residual + hidden_states", "hidden_states = residual * 0.98 + hidden_states", nth=1), "model.encoder.layers.0", call="mul", kind="wiring")
wrong("pegasus", "scale of the embedding", assigned("model.encoder", "embed_scale", 5.0), "model.encoder", call="mul", says=(r"\b5",))
wrong("mpnet", "more position bias", edited("mpnet.encoder.layer.0.attention.attn", "attention_scores += position_bias", "attention_scores += 1.5 * position_bias"), "mpnet.encoder.layer.0.attention.attn", call="mul|add")
wrong("mpnet", "scale of the scores", edited("mpnet.encoder.layer.1.attention.attn", "/ math.sqrt(self.attention_head_size)", "/ 4.0"), "mpnet.encoder.layer.1.attention.attn", call="div", says=(r"\b4\.0",))
wrong("fnet", "imaginary part", edited("fnet.encoder.layer.1.fourier.self", ".real", ".imag"), "fnet.encoder.layer.1.fourier*")
wrong("fnet", "transform over words alone", assigned("fnet.encoder.layer.0.fourier.self", "fourier_transform", functools.partial(torch.fft.fftn, dim=(1,))), "fnet.encoder.layer.0.fourier.self", says=("dim",))
wrong("squeezebert", "softmax over queries", assigned("transformer.encoder.layers.0.attention.softmax", "dim", -2), "transformer.encoder.layers.0.attention.softmax", call="softmax", says=("dim", "-2"))
wrong("squeezebert", "scale of the scores, L1", edited("transformer.encoder.layers.1.attention", "/ math.sqrt(self.attention_head_size)", "/ 2.0"), call="div", says=(r"2\.0",), recipe=ONLY_L1)
wrong("poolformer", "pooling without the difference", edited("poolformer.encoder.block.1.0.pooling", "self.pool(hidden_states) - hidden_states", "self.pool(hidden_states)"), "poolformer.encoder.block.1.0.pooling", says=("missing",))
wrong("poolformer", "window of the pooling", together(assigned("poolformer.encoder.block.1.1.pooling.pool", "kernel_size", 5), assigned("poolformer.encoder.block.1.1.pooling.pool", "padding", 2)), "poolformer.encoder.block.1.1.pooling.pool", call="avg_pool2d", says=("5",))
wrong("convnextv2", "eps of the response norm", edited("convnextv2.encoder.stages.1.layers.0.grn", "1e-6", "1e-1"), "convnextv2.encoder.stages.1.layers.0.grn", call="add", says=(r"0\.1",))
wrong("convnextv2", "norm of rows", edited("convnextv2.encoder.stages.0.layers.0.grn", "dim=(1, 2)", "dim=(1,)"), "convnextv2.encoder.stages.0.layers.0.grn", says=("dim",))
wrong("swinv2", "limit of the scale", edited("swinv2.encoder.layers.0.blocks.1.attention.self", "max=math.log(1.0 / 0.01)", "max=1.0"), "swinv2.encoder.layers.0.blocks.1.attention.self", call="clamp", says=(r"1\.0",))
wrong("swinv2", "eight for sixteen", edited("swinv2.encoder.layers.1.blocks.0.attention.self", "16 * torch.sigmoid", "8 * torch.sigmoid"), "swinv2.encoder.layers.1.blocks.0.attention.self", call="mul", says=(r"\b8\b",))
wrong("siglip", "loss without the bias", edited("", "logits_per_text * logit_scale.exp() + logit_bias", "logits_per_text * logit_scale.exp()"), "", call="add", says=("missing",))
wrong("unispeech", "last norm skipped", skipped("unispeech.encoder.layers.0.final_layer_norm"), "unispeech.encoder.layers.0.final_layer_norm", "unispeech.encoder.layers.0", call="layer_norm")
wrong("llava", "features scaled", scaled("model.multi_modal_projector", 1.05), "model.multi_modal_projector", call="mul")
fault("llava", "features of another layer", "wiring", None, Expect(modules=("", "model", "model.multi_modal_projector*", "model.vision_tower*"), direction="forward"), wrong={}, wrong_config={"vision_feature_layer": -2})
wrong("denoiser", "skip connection lost", edited("", "torch.cat([h, kept], dim=1)", "torch.cat([h, h], dim=1)"), "", "up*", kind="wiring")
wrong("denoiser", "groups of a norm", assigned("up.norm2", "num_groups", 4), "up.norm2", call="group_norm", says=("4",))
wrong("denoiser", "bilinear", edited("", 'mode="nearest"', 'mode="bilinear"'), "", call="interpolate", says=("bilinear",))
wrong("denoiser", "another schedule of the noise", with_loss(functools.partial(noise_loss, quarter=3.0)), "", kind="data", says=(r"\b3",))
wrong("towers", "temperature without exp", edited("", "self.temperature.exp()", "self.temperature"), "", says=("exp", "missing"))
wrong("towers", "one tower not normalised", edited("", "F.normalize(self.pictures(pictures), dim=-1)", "self.pictures(pictures)"), "", says=("normalize", "missing"))
wrong("towers", "loss in one direction", with_loss(one_way), "", says=("missing|only",))
wrong("temporal", "sees the future", edited("blocks.1", "(self.past, 0)", "(0, self.past)"), "blocks.1", call="pad", says=("pad",))
wrong("temporal", "leaky relu", edited("blocks.0", "F.relu(h + self.short(x))", "F.leaky_relu(h + self.short(x), 0.1)"), "blocks.0", says=("leaky_relu",))
wrong("temporal", "output scaled, L0", scaled("blocks.2.conv2", 1.03), "blocks.2.conv2", recipe=ONLY_L0)
wrong("pointnet", "mean for the largest", edited("", "features.max(dim=2).values", "features.mean(dim=2)"), "", says=("mean", "max"))
wrong("pointnet", "label smoothing", with_loss(smoother), "", call="cross_entropy", says=("smoothing", r"0\.2"))
wrong("pointnet", "identity left out, tensors", edited("", " + torch.eye(3)", ""), "", call="add", says=("missing",), recipe=TENSOR)
data("smollm3", "mask of the other example", rolled("attention_mask"), "", "model*")
data("llava", "pictures of other words, md5", rolled("pixel_values"), "", "model*", recipe=MD5)
wrong("unispeech", "first batch twice", second_batch, "", "unispeech*", kind="data", step=1)
data("pegasus", "labels shifted", lambda batch: {**batch, "labels": batch["labels"].roll(1, 1)}, "", "model*")
data("poolformer", "pictures mirrored, md5", lambda batch: {**batch, "pixel_values": batch["pixel_values"].flip(3)}, "", "poolformer*", recipe=MD5)
wrong("denoiser", "louder noise", with_batch(lambda batch: {**batch, "noise": batch["noise"] * 1.1}), "", kind="data", says=("given|input",))
# fmt: on
