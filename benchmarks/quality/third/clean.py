"""Pairs of runs that compute the same: none of them may be reported."""

from __future__ import annotations

from typing import Any

import ports
import torch
import torch.nn.functional as F
from cases import Expect, clean
from edits import wrap
from plants import edited
from torch import Tensor
from training import Experiment, Plant, Recipe

from third.loops import accelerated, adversarial, closure, custom, lightning, trainer
from third.models import THIRD
from third.optimizers import Lamb, Lion
from third.updates import of

EAGER = {"attn_implementation": "eager"}
NO_BLAME = Expect(no_blame=True)
L0, L1 = "model.layers.0", "model.layers.1"


def rms_by_call(path: str) -> Plant:
    """RMSNorm by the fused call."""
    return ports.fused_rms_norm(path)


def one_convolution(run: Experiment) -> None:
    """A pointwise convolution as a product."""
    layer = run.module("regnet.encoder.stages.0.layers.0.layer.0.convolution")

    def product(forward: Any, x: Tensor) -> Tensor:
        return torch.einsum("bchw,oc->bohw", x, layer.weight[:, :, 0, 0])

    wrap(layer, product)


def summed(run: Experiment) -> None:
    """The loss by log_softmax and a mean of the chosen entries."""

    def loss(model: Any, batch: Any) -> Tensor:
        logits = model(pixel_values=batch["pixel_values"]).logits
        return -F.log_softmax(logits, dim=-1)[torch.arange(len(logits)), batch["labels"]].mean()

    run.loss = loss


def mean_loss(run: Experiment) -> None:
    def loss(model: Any, batch: Any) -> Tensor:
        return F.cross_entropy(model(pixel_values=batch["pixel_values"]).logits, batch["labels"])

    run.loss = loss


def separate_projections(run: Experiment) -> None:
    """MPT's one projection for query, key and value as three products."""
    layer = run.module("transformer.blocks.0.attn.Wqkv")
    wrap(layer, lambda forward, x: torch.cat([F.linear(x, part) for part in layer.weight.chunk(3)], dim=-1))


def baddbmm(run: Experiment) -> None:
    """A linear layer by addmm on a flat batch."""
    layer = run.module("deit.layers.1.mlp.fc1")
    wrap(layer, lambda forward, x: torch.addmm(layer.bias, x.flatten(0, 1), layer.weight.t()).view(*x.shape[:-1], -1))


for _name in THIRD:
    clean(_name, "again")
for _name in ("gemma3", "qwen3_moe", "stablelm", "nemotron", "roberta", "mbart", "beit", "hubert", "blip"):
    clean(_name, "eager attention", other_config=EAGER)
# One pair a line or two reads as a table.
# ruff: noqa: E501
# fmt: off
for _name in ("mistral", "dinov2", "regnet", "falcon_mamba"):
    clean(_name, "two threads", other={"threads": 2})
for _name in ("gpt_oss", "field"):
    clean(_name, "foreach optimizer", recipe=Recipe(loop="single"), other={"loop": "foreach"})
for _name in ("distilbert", "graph_attention"):
    clean(_name, "fused optimizer", recipe=Recipe(loop="single"), other={"loop": "fused"})
for _name in ("olmoe", "deit", "mbart"):
    clean(_name, "gradient checkpointing", ports.checkpointed)
for _name in ("xglm", "flow", "yolos"):
    clean(_name, "bf16 port" if _name != "yolos" else "again, L0", **({"other": {"dtype": "bfloat16"}, "expect": NO_BLAME} if _name != "yolos" else {"recipe": Recipe(level="L0")}))
for _name in ("nemotron", "gemma3", "deit"):
    clean(_name, "bf16 port", other={"dtype": "bfloat16"}, expect=NO_BLAME)
clean("codegen", "accumulation", other={"accumulate": 2})
clean("regnet", "autocast port", other={"autocast": True}, expect=NO_BLAME)
clean("blip", "again, md5", recipe=Recipe(summary="md5"))
clean("longformer", "again, L1", recipe=Recipe(level="L1"))
clean("gan", "again, tensors", recipe=Recipe(task="tensor"))
clean("gpt_oss", "other uninitialised memory", ports.dirty_memory)
clean("qwen3_moe", "other experts' implementation", config={"experts_implementation": "eager"}, other_config={"experts_implementation": "batched_mm"})
clean("mistral", "fused norm", rms_by_call(f"{L1}.input_layernorm"))
clean("roberta", "hand-written norm", ports.hand_written_norm("roberta.encoder.layer.0.output.LayerNorm"))
clean("mistral", "fused gate and up", ports.fused_gate(f"{L0}.mlp"), recipe=Recipe(stop_first=True))
clean("graph_attention", "softmax without the maximum", edited("layers.0", "torch.exp(score - score.max())", "torch.exp(score)"), recipe=Recipe(stop_first=True))
clean("nemotron", "square as a product", edited(f"{L0}.mlp.act_fn", "torch.square(relu_applied)", "relu_applied * relu_applied"))
clean("codegen", "sum in another order", edited("transformer.h.1", "attn_outputs + feed_forward_hidden_states + residual", "residual + attn_outputs + feed_forward_hidden_states"))
clean("mpt", "three projections", separate_projections)
clean("deit", "linear layer by addmm", baddbmm)
clean("regnet", "convolution as a product", one_convolution)
clean("dinov2", "loss by hand", summed, golden_plant=mean_loss)
clean("flow", "square as a product", edited("", "((x - self.centre) ** 2)", "((x - self.centre) * (x - self.centre))"))
clean("gpt_oss", "Trainer again", trainer(), golden_plant=trainer())
clean("distilbert", "Trainer, other logging", trainer(), golden_plant=trainer(logging_strategy="steps", logging_steps=1))
clean("mistral", "accelerate again", accelerated(), golden_plant=accelerated())
clean("blip", "Lightning again", lightning(), golden_plant=lightning())
clean("pinn", "LBFGS again", closure(), golden_plant=closure())
clean("flow", "LBFGS again, other history", closure(history=5), golden_plant=closure(history=10))
clean("gan", "two optimizers again", adversarial(), golden_plant=adversarial())
clean("roberta", "scaler again", custom(of(torch.optim.AdamW), scale=256.0), golden_plant=custom(of(torch.optim.AdamW), scale=256.0))
clean("olmoe", "averages again", custom(of(torch.optim.AdamW), ema=0.9), golden_plant=custom(of(torch.optim.AdamW), ema=0.9))
clean("stablelm", "Lion again", custom(of(Lion)), golden_plant=custom(of(Lion)))
clean("deit", "LAMB, two parts", custom(of(Lamb), parts=2), golden_plant=custom(of(Lamb)))
clean("field", "scaler or none", custom(of(torch.optim.RMSprop, lr=1e-3), scale=64.0), golden_plant=custom(of(torch.optim.RMSprop, lr=1e-3)))
