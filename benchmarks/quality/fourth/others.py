"""Faults of weights, of the backward, of precision, and after the backward."""

from __future__ import annotations

from typing import Any

import torch
from cases import Expect, fault
from faults.optimizer import DECAY, RATE, argument, setting
from kernels import faulty_kernel
from plants import (
    edited,
    frozen,
    gradient_scaled,
    in_bf16,
    output_hook,
    parameter_hook,
    perturbed,
    scaled,
    transposed,
    without_autocast,
    wrong_linear,
)  # fmt: skip
from third.backward import CUT, without_gradient
from third.backward import wrong as backward
from third.loops import custom
from third.precision import AUTOCAST, BF16, cast, low
from third.updates import loop, of
from third.weights import added, weight
from torch import nn
from training import Recipe

import fourth.models  # noqa: F401


def by_layer(decay: float) -> Any:
    """A learning rate that falls from the last parameter to the first."""

    def make(model: nn.Module) -> torch.optim.Optimizer:
        values = list(model.parameters())
        groups = [{"params": [v], "lr": 1e-3 * decay ** (len(values) - i)} for i, v in enumerate(values)]
        return torch.optim.AdamW(groups)

    return make


def one_cycle(peak: float) -> Any:
    return lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=peak, total_steps=10)


# One fault a line or two reads as a table; some are longer than a line of code may be.
# ruff: noqa: E501
# fmt: off
L0, L1 = "model.layers.0", "model.layers.1"
ADAM, SGD = torch.optim.AdamW, torch.optim.SGD

weight("granite_moe", "one element of an expert", perturbed(f"{L0}.block_sparse_moe.experts.down_proj", factor=1.3, part=True), f"{L0}.block_sparse_moe.experts.down_proj")
weight("siglip", "scale of the logits", added("logit_scale", 0.05), "logit_scale")
weight("temporal", "length of a normed weight", perturbed("blocks.1.conv1.parametrizations.weight.original0", factor=1.04), "blocks.1.conv1.parametrizations.weight.original0")
weight("towers", "temperature", added("temperature", 0.1), "temperature")
weight("mamba2", "decay of the state", added("backbone.layers.0.mixer.A_log", 0.05), "backbone.layers.0.mixer.A_log")
weight("swinv2", "transposed weight", transposed("swinv2.encoder.layers.1.blocks.0.attention.self.query.weight"), "swinv2.encoder.layers.1.blocks.0.attention.self.query.weight")
weight("squeezebert", "two weights", perturbed("transformer.encoder.layers.0.output.conv1d.weight", "transformer.encoder.layers.1.attention.key.weight", factor=1.02), "transformer.encoder.layers.0.output.conv1d.weight", r"\b2 of|first")
weight("phimoe", "bias of a norm, L0", added(f"{L1}.input_layernorm.bias", 0.1), f"{L1}.input_layernorm.bias", recipe=Recipe(level="L0"))

backward("arcee", "relu's backward", faulty_kernel(f"{L0}.mlp.act_fn", "threshold_backward", 1.03), f"{L0}.mlp.act_fn", call="relu")
backward("cohere2", "residual detached", edited(L1, "residual = hidden_states", "residual = hidden_states.detach()"), L1, says=(CUT,), direction="")
backward("persimmon", "weight gradient of a layer", wrong_linear(f"{L0}.mlp.dense_h_to_4h", of_weight=0.97), f"{L0}.mlp.dense_h_to_4h")
backward("smollm3", "silu's backward in an autocast run", faulty_kernel(f"{L1}.mlp.act_fn", "silu_backward", 1.06), f"{L1}.mlp.act_fn", call="silu", recipe=AUTOCAST)
backward("fnet", "gradient of a layer scaled", gradient_scaled("fnet.encoder.layer.0.output.dense", 1.04), "fnet.encoder.layer.0.output.dense")
backward("denoiser", "gradient damped by a hook", output_hook("middle", 0.9), "middle*")
fault("temporal", "a frozen weight", "backward", frozen("blocks.0.short.weight"), Expect(parameter="blocks.0.short.weight", says=(CUT + "|frozen",)))
backward("siglip", "words detached", edited("", "text_embeds = text_outputs.pooler_output", "text_embeds = text_outputs.pooler_output.detach()"), "", "text_model*", says=(CUT,), direction="")
fault("pointnet", "gradient of a weight", "backward", parameter_hook("head.0.weight", 1.1), Expect(parameter="head.0.weight", source="plants"))
backward("llava", "projector without gradients", without_gradient("model.multi_modal_projector"), "model.multi_modal_projector*", says=(CUT,), direction="")

low("arcee", "feed forward in bf16", in_bf16(f"{L1}.mlp"), f"{L1}.mlp*")
low("qwen3_next", "norm in bf16", edited(f"{L0}.post_attention_layernorm", "self._norm(x.float())", "self._norm(x.bfloat16())"), f"{L0}.post_attention_layernorm")
low("denoiser", "autocast off in the middle", without_autocast("middle"), "middle*", recipe=AUTOCAST, says=("bfloat16|dtype|float32",))
low("pegasus", "error of 5% in a bf16 run", scaled("model.decoder.layers.0.fc2", 1.05), "model.decoder.layers.0.fc2", recipe=BF16, says=())
low("swinv2", "softmax in half precision", edited("swinv2.encoder.layers.0.blocks.0.attention.self", "nn.functional.softmax(attention_scores, dim=-1)", "nn.functional.softmax(attention_scores.half(), dim=-1).float()"), "swinv2.encoder.layers.0.blocks.0.attention.self")
low("squeezebert", "way through bf16", cast("transformer.encoder.layers.0.output.conv1d", torch.bfloat16), "transformer.encoder.layers.0.output.conv1d")
low("towers", "similarity in bf16", edited("", "(a @ b.t())", "(a.bfloat16() @ b.bfloat16().t()).float()"), "")
fault("smollm3", "error of 6% in a port to bf16", "precision", scaled(f"{L0}.mlp.down_proj", 1.06), Expect(modules=(f"{L0}.mlp.down_proj",), direction="forward"), wrong={"dtype": "bfloat16"})
fault("mpnet", "error of 6% in a port to autocast", "precision", scaled("mpnet.encoder.layer.0.intermediate.dense", 0.94), Expect(modules=("mpnet.encoder.layer.0.intermediate.dense",), direction="forward"), wrong={"autocast": True})

loop("poolformer", "momentum", custom(of(SGD, lr=1e-2, momentum=0.9, nesterov=True)), custom(of(SGD, lr=1e-2, momentum=0.8, nesterov=True)), "momentum", r"0\.8")
loop("convnextv2", "peak of the cycle", custom(of(ADAM), schedule=one_cycle(1e-2)), custom(of(ADAM), schedule=one_cycle(2e-2)), RATE)
loop("swinv2", "rates by layer", custom(by_layer(0.9)), custom(by_layer(0.8)), RATE)
loop("unispeech", "decay of the averages", custom(of(ADAM), ema=0.9), custom(of(ADAM), ema=0.95), expect=Expect(modules=("",), call="mul", says=(r"0\.95",), step=1))
loop("siglip", "no clipping beside a scaler", custom(of(ADAM), scale=128.0, clip=0.1), custom(of(ADAM), scale=128.0), "clip")
loop("mamba2", "Adamax for AdamW", custom(of(ADAM)), custom(of(torch.optim.Adamax)), "Adamax")
loop("llava", "parts of the batch and the rate", custom(of(ADAM, lr=1e-3), parts=2), custom(of(ADAM, lr=2e-3), parts=2), RATE)
loop("squeezebert", "weight decay in an autocast run", custom(of(ADAM), autocast=torch.bfloat16), custom(of(ADAM, weight_decay=0.3), autocast=torch.bfloat16), DECAY)
argument("pegasus", "accumulation not divided", {"divide": False}, "div", recipe=Recipe(accumulate=2))
setting("denoiser", "eps", {"eps": 1e-4}, r"\beps")
setting("towers", "biases decay", {"decay_biases": True}, "group|decay", recipe=Recipe(decay_biases=False))
setting("temporal", "schedule begins late", {"schedule": "late"}, RATE)
setting("pointnet", "second beta", {"betas": (0.9, 0.99)}, "beta", r"0\.99")
setting("mpnet", "forgotten zero_grad", {"zero_grad": False}, "zero_grad|accumulat|not cleared", step=1)
setting("granite_moe", "clipping norm", {"clip": 0.2}, "clip|max_norm", r"0\.2")
# fmt: on
