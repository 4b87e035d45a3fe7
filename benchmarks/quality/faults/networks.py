"""Faults of the forward in the networks that are not from transformers, and faulty kernels in all models."""

from __future__ import annotations

from cases import SAME_INPUTS
from kernels import faulty_kernel
from plants import assigned, edited, replaced, scaled
from torch import nn
from training import Recipe

from faults.forward import add

# One fault a line or two reads as a table; some are longer than a line of code may be.
# ruff: noqa: E501
# fmt: off
add("resnet", "residual dropped", edited("blocks.1", "x = x + shortcut", "pass"), "blocks.1", call="add",
    representative=True)
add("resnet", "batchnorm eps", assigned("blocks.2.bn1", "eps", 1e-2), "blocks.2.bn1", call="batch_norm",
    says=("0.01", "1e-05"))
add("resnet", "batchnorm momentum", assigned("blocks.0.bn2", "momentum", 0.2), "blocks.0.bn2", call="batch_norm",
    says=(r"0\.2\b", r"0\.1\b"))
add("resnet", "batchnorm left in evaluation", lambda run: run.module("blocks.1.bn1").eval(), "blocks.1.bn1",
    call="batch_norm")
add("resnet", "max for average pooling", replaced("pool", lambda: nn.AdaptiveMaxPool2d(1)), "pool", "",
    call="pool")
add("resnet", "padding of another mode", assigned("blocks.1.conv2", "padding_mode", "reflect"), "blocks.1.conv2")
add("unet", "skip connections swapped in cat", edited("", "torch.cat([x, second], dim=1)",
    "torch.cat([second, x], dim=1)"), "up2", "", "up2.conv", call="cat|conv|Module", never=("is missing", "only in", SAME_INPUTS))
add("unet", "bilinear for nearest", edited("", 'mode="nearest"', 'mode="bilinear"', nth=1), "", call="interpolate|upsample",
    says=("bilinear", "nearest"))
add("unet", "groups of the norm", assigned("middle.norm", "num_groups", 4), "middle.norm", call="group_norm",
    says=(r"\b4\b", r"\b2\b"))
add("unet", "kernel of silu, bf16", faulty_kernel("up1", "silu", 1.05), "up1", call="silu",
    recipe=Recipe(dtype="bfloat16"), representative=True)
add("lstm", "norm eps", assigned("norm", "eps", 1e-4), "norm", call="layer_norm", says=("0.0001", "1e-05"))
add("lstm", "state of the wrong batch axis", edited("", "x, _ = self.lstm(x)",
    "x, _ = self.lstm(x.flip(1)); x = x.flip(1)"), "lstm", "", call="flip|lstm|Module")
add("lstm", "head scaled", scaled("head", 1.01), "head", call="mul")
add("gnn", "sum for mean", edited("layers.1", "gathered = gathered / degree.unsqueeze(-1)", "pass"), "layers.1",
    call="div")
add("gnn", "source and target swapped", edited("layers.0", "[nodes[source], nodes[target]]",
    "[nodes[target], nodes[source]]"), "layers.0", "layers.0.message", never=("is missing", "only in", SAME_INPUTS))
add("gnn", "degree counts the node itself", edited("layers.2", ".clamp(min=1)", ".add(1)"), "layers.2",
    call="clamp|add")
add("encoder", "dropout rate", assigned("encoder.layers.1.dropout1", "p", 0.2), "encoder.layers.1.dropout1",
    call="dropout", says=(r"0\.2\b", r"0\.1\b"))
add("encoder", "sum for mean over tokens", edited("", "x = x.mean(dim=1)", "x = x.sum(dim=1)"), "",
    call="mean|sum")
add("encoder", "post-norm for pre-norm", assigned("encoder.layers.0", "norm_first", False), "encoder.layers.0",
    "encoder.layers.0.norm1", "encoder.layers.0.self_attn")
add("mixer", "tokens not transposed back", edited("blocks.1", "self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)",
    "self.tokens(self.norm1(x).transpose(1, 2)).reshape(x.shape)"), "blocks.1", call="transpose|reshape|add",
    recipe=Recipe(summary="md5"))
add("mixer", "norm over two axes", edited("blocks.0.norm2", "self.normalized_shape, self.weight, self.bias",
    "tuple(input.shape[1:]), self.weight.expand(input.shape[1:]), self.bias.expand(input.shape[1:])"), "blocks.0.norm2")
add("vae", "variance for deviation", edited("", "torch.exp(0.5 * log_variance)", "torch.exp(log_variance)"), "",
    call="mul")
add("vae", "noise not drawn", edited("", "torch.randn_like(deviation)", "torch.zeros_like(deviation)"), "",
    call="randn_like|zeros_like|mul")
add("translator", "attention over the wrong axis", edited("", "torch.softmax(scores, dim=1)",
    "torch.softmax(scores, dim=0)"), "", call="softmax", says=(r"\b0\b", r"\b1\b"))
add("translator", "context before hidden", edited("", "torch.cat([hidden, context], dim=1)",
    "torch.cat([context, hidden], dim=1)"), "", "combine", call="cat", never=("is missing", "only in"))
add("recommender", "mean for sum in a table", assigned("tables.1", "mode", "mean"), "tables.1",
    call="embedding_bag", says=("mean", "sum"))
add("recommender", "relu kernel", faulty_kernel("tower.1", "relu", 1.02), "tower.1", call="relu")

add("llama", "kernel of silu", faulty_kernel("model.layers.1.mlp.act_fn", "silu", 1.001),
    "model.layers.1.mlp.act_fn", call="silu", representative=True)
add("qwen2", "kernel of mm, bf16", faulty_kernel("model.layers.1.mlp.up_proj", "mm", 1.05),
    "model.layers.1.mlp.up_proj", call="linear", recipe=Recipe(dtype="bfloat16"))
add("gemma2", "kernel of mm", faulty_kernel("model.layers.0.self_attn.o_proj", "mm", 1.01),
    "model.layers.0.self_attn.o_proj", call="linear")
add("mixtral", "kernel of softmax in the router", faulty_kernel("model.layers.0.mlp.gate", "_softmax", 1.01),
    "model.layers.0.mlp.gate", call="softmax")
add("vae", "kernel of tanh", faulty_kernel("decode.1", "tanh", 0.99), "decode.1", call="tanh")
