"""Pairs of runs that compute the same: none of them may be reported."""

from __future__ import annotations

from typing import Any

import ports
import torch
import torch.nn.functional as F
from cases import clean
from edits import wrap
from plants import edited
from third.clean import EAGER, NO_BLAME
from third.loops import custom
from third.optimizers import Lamb
from third.updates import of
from torch import Tensor, nn
from torch.nn.utils import parametrize
from training import Experiment, Plant, Recipe

from fourth.models import FOURTH
from fourth.others import by_layer, one_cycle


def group_norm_by_hand(path: str) -> Plant:
    """GroupNorm from its formula."""

    def plant(run: Experiment) -> None:
        norm = run.module(path)

        def by_hand(forward: Any, x: Tensor) -> Tensor:
            parts = x.view(x.shape[0], norm.num_groups, -1)
            centred = parts - parts.mean(-1, keepdim=True)
            parts = centred / torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + norm.eps)
            return parts.view_as(x) * norm.weight[:, None, None] + norm.bias[:, None, None]

        wrap(norm, by_hand)

    return plant


def linear_for_convolution(path: str) -> Plant:
    """A pointwise convolution as a linear layer over channels."""

    def plant(run: Experiment) -> None:
        layer = run.module(path)
        weight = layer.weight.shape[:2]
        wrap(
            layer, lambda forward, x: F.linear(x.transpose(1, 2), layer.weight.view(weight), layer.bias).transpose(1, 2)
        )

    return plant


def without_weight_norm(run: Experiment) -> None:
    """The weights as they come out of weight_norm, for inference."""
    for module in run.model.modules():
        if isinstance(module, nn.Conv1d) and parametrize.is_parametrized(module):
            parametrize.remove_parametrizations(module, "weight")


def inference(run: Experiment) -> None:
    run.inference = True


def inference_without_weight_norm(run: Experiment) -> None:
    without_weight_norm(run)
    run.inference = True


def largest_by_amax(run: Experiment) -> None:
    edited("", "features.max(dim=2).values", "features.amax(dim=2)")(run)


def smooth_by_hand(run: Experiment) -> None:
    """Cross entropy with label smoothing from log_softmax."""

    def loss(model: Any, batch: Any) -> Tensor:
        logs = torch.log_softmax(model(batch["points"]), dim=-1)
        chosen = logs.gather(1, batch["labels"][:, None]).squeeze(1)
        return -(0.9 * chosen + 0.1 * logs.mean(-1)).mean()

    run.loss = loss


for _name in FOURTH:
    clean(_name, "again")
for _name in ("smollm3", "cohere2", "persimmon", "pegasus", "siglip", "unispeech", "llava", "qwen3_next", "phimoe"):
    clean(_name, "eager attention", other_config=EAGER)
# One pair a line or two reads as a table.
# ruff: noqa: E501
# fmt: off
for _name in ("arcee", "swinv2", "denoiser", "temporal"):
    clean(_name, "two threads", other={"threads": 2})
for _name in ("mpnet", "pointnet"):
    clean(_name, "foreach optimizer", recipe=Recipe(loop="single"), other={"loop": "foreach"})
for _name in ("fnet", "towers"):
    clean(_name, "fused optimizer", recipe=Recipe(loop="single"), other={"loop": "fused"})
for _name in ("granite_moe", "persimmon", "unispeech"):
    clean(_name, "gradient checkpointing", ports.checkpointed)
for _name in ("arcee", "mpnet", "convnextv2", "pegasus"):
    clean(_name, "bf16 port", other={"dtype": "bfloat16"}, expect=NO_BLAME)
for _name in ("smollm3", "denoiser", "poolformer", "siglip"):
    clean(_name, "autocast port", other={"autocast": True}, expect=NO_BLAME)
for _name in ("cohere2", "fnet", "swinv2"):
    clean(_name, "accumulation", other={"accumulate": 2})
clean("phimoe", "other experts' implementation", config={"experts_implementation": "eager"}, other_config={"experts_implementation": "grouped_mm"})
clean("granite_moe", "experts in the other order", edited("model.layers.0.block_sparse_moe.experts", "for expert_idx in expert_hit:", "for expert_idx in expert_hit.flip(0):"), config={"experts_implementation": "eager"})
clean("qwen3_next", "other experts' implementation", config={"experts_implementation": "eager"}, other_config={"experts_implementation": "batched_mm"})
clean("smollm3", "fused gate and up", ports.fused_gate("model.layers.0.mlp"), recipe=Recipe(stop_first=True))
clean("arcee", "fused norm", ports.fused_rms_norm("model.layers.1.input_layernorm"))
clean("mpnet", "hand-written norm", ports.hand_written_norm("mpnet.encoder.layer.0.output.LayerNorm"))
clean("denoiser", "silu by hand", edited("middle", "F.silu(self.norm1(x))", "self.norm1(x) * torch.sigmoid(self.norm1(x))"))
clean("denoiser", "group norm by hand", group_norm_by_hand("up.norm1"))
clean("squeezebert", "convolution as a linear layer", linear_for_convolution("transformer.encoder.layers.0.post_attention.conv1d"))
clean("pointnet", "largest by amax", largest_by_amax)
clean("pointnet", "loss by hand", smooth_by_hand)
clean("temporal", "inference without weight_norm", inference_without_weight_norm, golden_plant=inference)
clean("cohere2", "sum in another order", edited("model.layers.1", "residual + hidden_states_attention + hidden_states_mlp", "hidden_states_mlp + hidden_states_attention + residual"))
clean("persimmon", "cache or none", ports.with_flag(use_cache=False))
clean("llava", "cache or none", ports.with_flag(use_cache=False))
clean("mpnet", "again with dropout", config={"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1})
clean("smollm3", "again with dropout", config={"attention_dropout": 0.2})
clean("mamba2", "again, md5", recipe=Recipe(summary="md5"))
clean("swinv2", "again, L1", recipe=Recipe(level="L1"))
clean("siglip", "again, L0", recipe=Recipe(level="L0"))
clean("temporal", "again, tensors", recipe=Recipe(task="tensor"))
clean("persimmon", "eager attention, L0", recipe=Recipe(level="L0"), other_config=EAGER)
clean("poolformer", "Nesterov again", custom(of(torch.optim.SGD, lr=1e-2, momentum=0.9, nesterov=True)), golden_plant=custom(of(torch.optim.SGD, lr=1e-2, momentum=0.9, nesterov=True)))
clean("convnextv2", "one cycle again", custom(of(torch.optim.AdamW), schedule=one_cycle(1e-2)), golden_plant=custom(of(torch.optim.AdamW), schedule=one_cycle(1e-2)))
clean("swinv2", "rates by layer, fused", custom(lambda model: torch.optim.AdamW(by_layer(0.9)(model).param_groups, fused=True)), golden_plant=custom(by_layer(0.9)))
clean("unispeech", "averages in two parts", custom(of(torch.optim.AdamW), ema=0.9, parts=2), golden_plant=custom(of(torch.optim.AdamW), ema=0.9))
clean("siglip", "scaler again", custom(of(torch.optim.AdamW), scale=128.0, clip=0.1), golden_plant=custom(of(torch.optim.AdamW), scale=128.0, clip=0.1))
clean("denoiser", "Lamb, two parts", custom(of(Lamb), parts=2), golden_plant=custom(of(Lamb)))
clean("llava", "SGD, two parts", custom(of(torch.optim.SGD, lr=1e-2, momentum=0.9), parts=2), golden_plant=custom(of(torch.optim.SGD, lr=1e-2, momentum=0.9)))
# fmt: on
