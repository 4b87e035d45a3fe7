"""Faults after the backward: hyper-parameters, schedules, clipping, scaling, accumulation, forgotten zero_grad."""

from __future__ import annotations

from typing import Any, Optional

from cases import Expect, fault
from torch import nn
from training import Experiment, Plant, Recipe

USUAL = Recipe()
DECAY = "weight.?decay"
RATE = r"\blr\b|learning.?rate"


def setting(
    model: str,
    name: str,
    wrong: dict[str, Any],
    *says: str,
    step: Optional[int] = 0,
    recipe: Recipe = USUAL,
    representative: bool = False,
) -> None:
    """A wrong hyper-parameter, which the answer names as such."""
    expect = Expect(optimizer=True, says=says, step=step)
    fault(model, name, "optimizer", None, expect, recipe=recipe, wrong=wrong, representative=representative)


def argument(model: str, name: str, wrong: dict[str, Any], call: str, *says: str, recipe: Recipe = USUAL) -> None:
    """A wrong factor of the loss: a call of the training script, outside of the model."""
    expect = Expect(modules=("",), call=call, says=says)
    fault(model, name, "optimizer", None, expect, recipe=recipe, wrong=wrong)


def forgotten(*names: str) -> Plant:
    """Parameters that the optimizer was not given."""

    def groups(model: nn.Module) -> list[nn.Parameter]:
        return [value for name, value in model.named_parameters() if name not in names]

    def plant(run: Experiment) -> None:
        run.groups = groups

    return plant


# One fault a line or two reads as a table; some are longer than a line of code may be.
# ruff: noqa: E501
# fmt: off
HIGH_RATE = {"lr": 1.1e-3}
IS_HIGH = r"0\.000275|2\.75e-0?4|0\.0011|1\.1e-0?3"
setting("gpt2", "lr", HIGH_RATE, RATE, IS_HIGH, representative=True)
setting("resnet", "lr", HIGH_RATE, RATE, IS_HIGH)
setting("t5", "lr", HIGH_RATE, RATE, IS_HIGH)
setting("llama", "lr, foreach", HIGH_RATE, RATE, IS_HIGH, recipe=Recipe(loop="foreach"))
setting("llama", "lr, fused", HIGH_RATE, RATE, IS_HIGH, recipe=Recipe(loop="fused"))
setting("mixer", "lr of SGD", {"lr": 1.1e-2}, RATE, recipe=Recipe(optimizer="SGD", lr=1e-2))
setting("gpt2", "lr, not recorded", HIGH_RATE, step=1, recipe=Recipe(stop_first=True))
setting("vit", "lr, not recorded", HIGH_RATE, step=1, recipe=Recipe(stop_first=True))
setting("llama", "weight decay", {"weight_decay": 0.1}, DECAY, r"0\.1\b", r"0\.01\b", representative=True)
setting("bert", "no weight decay", {"weight_decay": 0.0}, DECAY)
setting("qwen2", "weight decay, fused", {"weight_decay": 0.1}, DECAY, r"0\.1\b", recipe=Recipe(loop="fused"))
setting("gpt2", "first beta", {"betas": (0.95, 0.999)}, r"beta", r"0\.95\b")
setting("llama", "second beta", {"betas": (0.9, 0.95)}, r"beta", r"0\.95\b")
setting("lstm", "eps", {"eps": 1e-6}, r"\beps", r"1e-0?6")
setting("encoder", "eps, fused", {"eps": 1e-6}, r"\beps", r"1e-0?6", recipe=Recipe(loop="fused"))
setting("gpt2", "Adam for AdamW", {"optimizer": "Adam"}, r"\bAdam\b", "AdamW")
setting("whisper", "Adam for AdamW", {"optimizer": "Adam"}, r"\bAdam\b", "AdamW")
setting("gnn", "SGD for AdamW", {"optimizer": "SGD"}, r"\bSGD\b", "AdamW")
setting("mixer", "momentum", {"momentum": 0.8}, "momentum", r"0\.8\b", recipe=Recipe(optimizer="SGD", lr=1e-2), step=None)
setting("llama", "schedule one step ahead", {"schedule": "late"}, RATE)
setting("unet", "schedule one step ahead", {"schedule": "late"}, RATE)
setting("llama", "scheduler not stepped", {"schedule": "stuck"}, RATE, step=1, representative=True)
setting("clip", "scheduler not stepped", {"schedule": "stuck"}, RATE, step=1)
setting("gpt2", "decay of biases", {"decay_biases": True}, DECAY, recipe=Recipe(decay_biases=False, weight_decay=0.1))
setting("resnet", "clipping norm", {"clip": 0.5}, "clip|max_norm", r"0\.5\b", recipe=Recipe(clip=0.25))
setting("gpt2", "clipping norm", {"clip": 0.1}, "clip|max_norm", r"0\.1\b", recipe=Recipe(clip=0.2), representative=True)
setting("t5", "no clipping", {"clip": None}, "clip", recipe=Recipe(clip=0.1))
setting("llama", "forgotten zero_grad", {"zero_grad": False}, "zero_grad|accumulat|not cleared", step=1,
        representative=True)
setting("vae", "forgotten zero_grad", {"zero_grad": False}, "zero_grad|accumulat|not cleared", step=1)
setting("resnet", "forgotten zero_grad, not recorded", {"zero_grad": False}, "zero_grad|accumulat|not cleared|optimizer",
        step=None, recipe=Recipe(stop_first=True, steps=3))
setting("gpt2", "gradients not unscaled", {"unscale": False}, "div|scale", recipe=Recipe(loss_scale=64.0))
setting("mixer", "ema decay", {"ema": 0.99}, "lerp|ema", recipe=Recipe(ema=0.9))
argument("vit", "loss scale", {"loss_scale": 32.0}, "mul", "32", "64", recipe=Recipe(loss_scale=64.0))
argument("llama", "accumulation not divided", {"divide": False}, "div", recipe=Recipe(accumulate=2))
fault("gpt2", "a weight without an optimizer", "optimizer", forgotten("transformer.h.1.mlp.c_fc.weight"),
      Expect(optimizer=True, step=None, says=(r"transformer\.h\.1\.mlp\.c_fc",)))
fault("resnet", "a weight without an optimizer, not recorded", "optimizer", forgotten("blocks.1.conv1.weight"),
      Expect(optimizer=True, step=1, says=(r"blocks\.1\.conv1",)), recipe=Recipe(stop_first=True))
