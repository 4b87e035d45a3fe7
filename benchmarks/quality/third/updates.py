"""Faults after the backward, in the loops of different users."""

from __future__ import annotations

from typing import Any

import torch
from cases import Expect, fault
from faults.optimizer import DECAY, RATE, setting
from torch import nn
from training import Plant, Recipe

import third.models  # noqa: F401
from third.loops import accelerated, adversarial, closure, custom, lightning, trainer
from third.optimizers import Lamb, Lion


def loop(model: str, name: str, golden: Plant, target: Plant, *says: str, step: Any = 0, expect: Any = None) -> None:
    fault(model, name, "optimizer", target, expect or Expect(optimizer=True, says=says, step=step), golden_plant=golden)


def of(kind: Any, **options: Any) -> Any:
    return lambda model: kind(model.parameters(), **options)


def groups(head: float) -> Any:
    """Another rate for the head."""

    def make(model: nn.Module) -> torch.optim.Optimizer:
        named = list(model.named_parameters())
        return torch.optim.AdamW(
            [
                {"params": [v for n, v in named if "classifier" not in n]},
                {"params": [v for n, v in named if "classifier" in n], "lr": head},
            ],
            lr=1e-3,
        )

    return make


def cosine(length: int) -> Any:
    return lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, length)


# One fault a line or two reads as a table; some are longer than a line of code may be.
# ruff: noqa: E501
# fmt: off
ADAM = torch.optim.AdamW
SGD = torch.optim.SGD
setting("gemma3", "lr", {"lr": 1.3e-3}, RATE)
setting("mpt", "first beta", {"betas": (0.8, 0.999)}, "beta", r"0\.8\b")
setting("funnel", "clipping norm", {"clip": 0.5}, "clip|max_norm", r"0\.5")
setting("longformer", "forgotten zero_grad", {"zero_grad": False}, "zero_grad|accumulat|not cleared", step=1)
setting("regnet", "Adam for AdamW", {"optimizer": "Adam"}, r"\bAdam\b", "AdamW", recipe=Recipe(weight_decay=0.1))
loop("nemotron", "lr of Adafactor", custom(of(torch.optim.Adafactor, lr=1e-2)), custom(of(torch.optim.Adafactor, lr=2e-2)), RATE)
loop("distilbert", "second moment of Adafactor", custom(of(torch.optim.Adafactor, beta2_decay=-0.8)), custom(of(torch.optim.Adafactor, beta2_decay=-0.5)), "beta2_decay", step=None)
loop("stablelm", "beta of Lion", custom(of(Lion)), custom(of(Lion, betas=(0.5, 0.99))), "beta", r"0\.5", step=None)
loop("codegen", "weight decay of Lion", custom(of(Lion)), custom(of(Lion, decay=0.5)), DECAY)
loop("deit", "LAMB without trust ratio", custom(of(Lamb)), custom(of(Lamb, trust=False)), "trust")
loop("deit", "eps of LAMB", custom(of(Lamb)), custom(of(Lamb, eps=1e-3)), r"\beps")
loop("regnet", "nesterov", custom(of(SGD, lr=1e-2, momentum=0.9, nesterov=True)), custom(of(SGD, lr=1e-2, momentum=0.9)), "nesterov")
loop("flow", "damping of SGD", custom(of(SGD, lr=1e-2, momentum=0.9)), custom(of(SGD, lr=1e-2, momentum=0.9, dampening=0.5)), "dampening", step=None)
loop("field", "alpha of RMSprop", custom(of(torch.optim.RMSprop, lr=1e-3)), custom(of(torch.optim.RMSprop, lr=1e-3, alpha=0.9)), "alpha", r"0\.9\b")
loop("field", "centered RMSprop", custom(of(torch.optim.RMSprop, lr=1e-3)), custom(of(torch.optim.RMSprop, lr=1e-3, centered=True)), "centered")
loop("graph_attention", "maximize", custom(of(ADAM)), custom(of(ADAM, maximize=True)), "maximize")
loop("graph_attention", "amsgrad", custom(of(ADAM)), custom(of(ADAM, amsgrad=True)), "amsgrad")
loop("beit", "rate of a group", custom(groups(1e-3)), custom(groups(5e-3)), RATE)
loop("dinov2", "length of the cosine", custom(of(ADAM), schedule=cosine(4), steps=3), custom(of(ADAM), schedule=cosine(8), steps=3), RATE, step=1)
loop("mbart", "clipping by value", custom(of(ADAM), value_clip=0.1), custom(of(ADAM), value_clip=0.001), "clip|clamp", r"0\.001")
loop("olmoe", "decay of the averages", custom(of(ADAM), ema=0.9), custom(of(ADAM), ema=0.99), expect=Expect(modules=("",), call="mul", says=(r"0\.99",), step=1))
loop("roberta", "initial scale", custom(of(ADAM), scale=256.0), custom(of(ADAM), scale=1024.0), "scale", expect=Expect(optimizer=True, says=("scale|1024",), step=0))
loop("mistral", "clipped before unscaling", custom(of(ADAM), scale=256.0, clip=1.0), custom(of(ADAM), scale=256.0, clip=1.0, unscale_first=False), expect=Expect(optimizer=True, says=("unscale|scale|clip",), step=0))
loop("xglm", "four parts and clipping", custom(of(ADAM), parts=2), custom(of(ADAM), parts=4, clip=0.01), "clip")
loop("pinn", "rate of LBFGS", closure(), closure(lr=0.3), RATE)
loop("flow", "iterations of LBFGS", closure(), closure(iterations=4), "max_iter|iterations", expect=Expect(optimizer=True, says=("max_iter|LBFGS|only in the target|more",), step=0))
loop("gan", "rate of the critic", adversarial(), adversarial(critic_lr=4e-3), RATE)
loop("gan", "betas of the generator", adversarial(), adversarial(betas=(0.9, 0.9)), "beta")
loop("gan", "fake not detached", adversarial(), adversarial(detach=False), expect=Expect(modules=("", "generator*", "critic*"), says=("gradient|requires_grad|detach|missing",), step=0))
loop("gan", "critic not cleared", adversarial(), adversarial(clear_critic=False), "zero_grad|cleared|accumulat", step=None)
loop("gpt_oss", "Trainer: rate", trainer(), trainer(learning_rate=2e-3), RATE, step=None)
loop("gpt_oss", "Trainer: weight decay", trainer(), trainer(weight_decay=0.5), DECAY, step=None)
loop("qwen3_moe", "Trainer: clipping", trainer(max_grad_norm=1.0), trainer(max_grad_norm=0.1), "clip|norm", r"0\.1")
loop("nemotron", "Trainer: warmup", trainer(), trainer(warmup_steps=2), RATE, step=None)
loop("roberta", "Trainer: order of the data", trainer(), trainer(seed=4), expect=Expect(modules=("", "roberta*"), says=("given|input|data",), step=0))
loop("distilbert", "Trainer: accumulation", trainer(), trainer(gradient_accumulation_steps=2), expect=Expect(says=("accumulat|only in the target|more|parts|given|div",), step=0))
loop("mistral", "accelerate: rate", accelerated(), accelerated(lr=2e-3), RATE)
loop("mistral", "accelerate: no clipping", accelerated(clip=0.1), accelerated(clip=None), "clip")
loop("blip", "Lightning: rate", lightning(), lightning(lr=3e-3), RATE)
loop("hubert", "Lightning: clipping", lightning(), lightning(gradient_clip_val=0.1), "clip")
# fmt: on
