"""Pairs of runs that compute the same: none of them may be reported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ports
import torch
import torch.nn.functional as F
from cases import Expect, clean
from edits import wrap
from plants import edited, together
from torch import Tensor, nn
from training import Experiment, Plant, Recipe

from unseen.inference import generating, inferring, stepping
from unseen.models import UNSEEN

EAGER = {"attn_implementation": "eager"}
STOP_FIRST = Recipe(stop_first=True)
NO_BLAME = Expect(no_blame=True)
L0, L1 = "model.layers.0", "model.layers.1"


class PlainGelu(nn.Module):
    """BLOOM's gelu without its own autograd function."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))


def plain_gelu(run: Experiment) -> None:
    module = PlainGelu()
    wrap(run.module("transformer.h.1.mlp.gelu_impl"), lambda forward, x: module.forward(x))


def linear_by_hand(path: str) -> Plant:
    def plant(run: Experiment) -> None:
        layer = run.module(path)
        wrap(layer, lambda forward, x: torch.matmul(x, layer.weight.t()) + layer.bias)

    return plant


def pointwise_convolution(run: Experiment) -> None:
    """ConvNeXt's pointwise layers as 1x1 convolutions."""
    layer = run.module("convnext.encoder.stages.0.layers.1.pwconv1")

    def convolved(forward: Any, x: Tensor) -> Tensor:
        y = F.conv2d(x.permute(0, 3, 1, 2), layer.weight[:, :, None, None], layer.bias)
        return y.permute(0, 2, 3, 1)

    wrap(layer, convolved)


def einsum_attention(run: Experiment) -> None:
    """SegFormer's attention by einsum, with the scale on the queries."""
    attention = run.module("segformer.stages.1.blocks.1.attention")

    def by_hand(forward: Any, x: Tensor, height: int, width: int, **_: Any) -> tuple[Tensor, None]:
        shape = (*x.shape[:-1], -1, attention.head_dim)
        query = attention.q_proj(x).view(shape) * attention.scaling
        key, value = attention.k_proj(x).view(shape), attention.v_proj(x).view(shape)
        weights = torch.einsum("bqhd,bkhd->bhqk", query, key).softmax(-1)
        mixed = torch.einsum("bhqk,bkhd->bqhd", weights, value)
        return attention.o_proj(mixed.flatten(2)), None

    wrap(attention, by_hand)


def compiled(path: str) -> Plant:
    """One module through torch.compile, without inductor."""
    return lambda run: run.module(path).compile(backend="aot_eager")


def left_padded(run: Experiment) -> None:
    """The same sentences, with explicit positions that count from zero."""
    usual = run.batch

    def batch(step: int) -> dict[str, Any]:
        found = usual(step)
        positions = torch.arange(found["input_ids"].shape[1])[None].repeat(found["input_ids"].shape[0], 1)
        return {**found, "position_ids": positions}

    run.batch = batch


def repeated(function: Callable[[Tensor], Tensor], path: str) -> Plant:
    return ports.identity_calls(path, function)


for _name in UNSEEN:
    clean(_name, "again")
for _name, _model in UNSEEN.items():
    if _model.attention:
        clean(_name, "eager attention", other_config=EAGER)
# One pair a line or two reads as a table.
# ruff: noqa: E501
# fmt: off
for _name in ("olmo2", "bart", "swin", "jamba", "speech", "segformer"):
    clean(_name, "two threads", other={"threads": 2})
for _name in ("bloom", "wav2vec2", "rwkv"):
    clean(_name, "foreach optimizer", recipe=Recipe(loop="single"), other={"loop": "foreach"})
for _name in ("gptj", "convnext"):
    clean(_name, "fused optimizer", recipe=Recipe(loop="single"), other={"loop": "fused"})
for _name in ("starcoder2", "electra", "bart", "gpt_neox", "wav2vec2"):
    clean(_name, "gradient checkpointing", ports.checkpointed)
for _name in ("falcon", "bart", "cohere"):
    clean(_name, "no cache", other_config={"use_cache": False})
for _name in ("granite", "convnext", "gptj", "actor_critic"):
    clean(_name, "accumulation", other={"accumulate": 2})
for _name in ("olmo2", "falcon", "electra", "swin", "convnext", "actor_critic"):
    clean(_name, "bf16 port", other={"dtype": "bfloat16"}, expect=NO_BLAME)
for _name in ("starcoder2", "speech"):
    clean(_name, "autocast port", other={"autocast": True}, expect=NO_BLAME)
clean("granite", "half-precision port", recipe=Recipe(eps=1e-4, steps=1), other={"dtype": "float16"}, expect=NO_BLAME)
for _name in ("jamba", "bart", "deberta_v2"):
    clean(_name, "again, md5", recipe=Recipe(summary="md5"))
for _name in ("swin", "rwkv"):
    clean(_name, "again, L0", recipe=Recipe(level="L0"))
    clean(_name, "again, L1", recipe=Recipe(level="L1"))
clean("glm", "again, tensors", recipe=Recipe(task="tensor"))
clean("jamba", "again, with other uninitialised memory", ports.dirty_memory)
clean("falcon", "bf16 run, two threads", recipe=Recipe(dtype="bfloat16"), other={"threads": 2})
clean("olmo2", "bf16 run, eager attention", recipe=Recipe(dtype="bfloat16"), other_config=EAGER)
clean("gpt_neox", "hand-written norm", ports.hand_written_norm("gpt_neox.layers.0.input_layernorm", "gpt_neox.final_layer_norm"))
clean("wav2vec2", "hand-written norm", ports.hand_written_norm("wav2vec2.encoder.layers.1.layer_norm"))
clean("olmo2", "fused norm", ports.fused_rms_norm(f"{L1}.self_attn.q_norm"))
clean("glm", "fused norm, no optimizer", ports.fused_rms_norm(f"{L0}.input_layernorm"), recipe=STOP_FIRST)
clean("bloom", "gelu without its own autograd function", plain_gelu)
clean("gpt_neox", "projection as a product and a sum", linear_by_hand("gpt_neox.layers.1.mlp.dense_h_to_4h"))
clean("convnext", "pointwise convolution", pointwise_convolution)
clean("segformer", "attention by einsum", einsum_attention)
clean("olmo2", "fused gate and up", ports.fused_gate(f"{L1}.mlp"), recipe=STOP_FIRST)
clean("granite", "fused gate and up, L0", ports.fused_gate(f"{L0}.mlp"), recipe=Recipe(level="L0", stop_first=True))
clean("electra", "swapped operands", edited("electra.encoder.layer.1.attention.output", "hidden_states + input_tensor", "input_tensor + hidden_states"))
clean("cohere", "sum in another order", edited(L0, "residual + hidden_states_attention + hidden_states_mlp", "residual + (hidden_states_attention + hidden_states_mlp)"))
clean("bart", "scale on the query", edited("model.encoder.layers.0.self_attn", "query_states = self.q_proj(hidden_states)", "query_states = 1.0 * self.q_proj(hidden_states)"))
clean("rwkv", "square as a product", edited("rwkv.blocks.0.feed_forward", "torch.square(torch.relu(self.key(key)))", "torch.relu(self.key(key)).pow(2)"))
clean("gpt_neox", "explicit positions", left_padded)
clean("starcoder2", "mask of ones", ports.with_ones("attention_mask"))
clean("falcon", "mask of ones", ports.with_ones("attention_mask"), config=EAGER)
clean("swin", "a view", repeated(lambda x: x.reshape(x.shape).contiguous(), "swin.encoder.layers.0.blocks.0.mlp"))
clean("diffusion", "silu by hand", ports.computed_by("blocks.1.2", ports.silu_by_hand))
clean("starcoder2", "compiled mlp", compiled(f"{L1}.mlp"))
clean("electra", "compiled layer, L0", compiled("electra.encoder.layer.1.intermediate"), recipe=Recipe(level="L0"))
clean("olmo2", "inference again", inferring, golden_plant=inferring, recipe=Recipe(steps=1))
clean("granite", "generation again", generating, golden_plant=generating, recipe=Recipe(steps=1))
clean("starcoder2", "generation, eager attention", generating, golden_plant=generating, recipe=Recipe(steps=1), other_config=EAGER)
clean("falcon", "generation by hand, two threads", stepping, golden_plant=stepping, recipe=Recipe(steps=1), other={"threads": 2})
clean("electra", "inference, hand-written norm", together(inferring, ports.hand_written_norm("electra.encoder.layer.0.output.LayerNorm")), golden_plant=inferring,
      recipe=Recipe(steps=1))
