"""Faults after the backward."""

from __future__ import annotations

import torch
from architectures import Batch
from cases import Expect, fault
from faults.optimizer import DECAY, RATE, argument, forgotten, setting
from plants import with_batch
from torch import Tensor, nn
from training import Experiment, Recipe

import unseen.models  # noqa: F401


def other_groups(run: Experiment) -> None:
    """Another learning rate for one of two groups."""
    _grouped(run, 2e-3)


def usual_groups(run: Experiment) -> None:
    _grouped(run, 1e-3)


def _grouped(run: Experiment, rate: float) -> None:
    def groups(model: nn.Module) -> list[dict[str, object]]:
        named = list(model.named_parameters())
        return [
            {"params": [value for name, value in named if "norm" not in name]},
            {"params": [value for name, value in named if "norm" in name], "lr": rate},
        ]

    run.groups = groups


def loss_divided(run: Experiment) -> None:
    """The loss is divided once too often."""
    usual = run.loss
    run.loss = lambda model, batch: usual(model, batch) / 2


def unreduced(run: Experiment) -> None:
    run.loss = lambda model, batch: _class_loss(model, batch, "sum")


def reduced(run: Experiment) -> None:
    run.loss = lambda model, batch: _class_loss(model, batch, "mean")


def _class_loss(model: nn.Module, batch: Batch, reduction: str) -> Tensor:
    logits = model(pixel_values=batch["pixel_values"]).logits
    return torch.nn.functional.cross_entropy(logits, batch["labels"], reduction=reduction)


def smaller(run: Experiment) -> None:
    """A batch that lost its last example."""
    with_batch(lambda batch: {key: value[:-1] for key, value in batch.items()})(run)


# One fault a line or two reads as a table; some are longer than a line of code may be.
# ruff: noqa: E501
# fmt: off
setting("olmo2", "lr", {"lr": 2e-3}, RATE, r"0\.0005|5e-0?4|0\.002")
setting("bart", "weight decay", {"weight_decay": 0.0}, DECAY)
setting("convnext", "second beta, foreach", {"betas": (0.9, 0.99)}, "beta", r"0\.99\b", recipe=Recipe(loop="foreach"))
setting("rwkv", "eps, fused", {"eps": 1e-5}, r"\beps", r"1e-0?5", recipe=Recipe(loop="fused"))
setting("swin", "weight decay of norms and biases", {"decay_biases": True}, DECAY, recipe=Recipe(decay_biases=False, weight_decay=0.1))
setting("wav2vec2", "schedule one step ahead", {"schedule": "late"}, RATE)
setting("granite", "scheduler stuck, third step", {"schedule": "stuck"}, RATE, step=1, recipe=Recipe(steps=3))
setting("speech", "no clipping", {"clip": None}, "clip", recipe=Recipe(clip=0.1))
setting("diffusion", "momentum", {"momentum": 0.5}, "momentum", r"0\.5\b", recipe=Recipe(optimizer="SGD", lr=1e-2), step=None)
setting("electra", "forgotten zero_grad", {"zero_grad": False}, "zero_grad|accumulat|not cleared", step=1)
setting("gptj", "RAdam for AdamW", {"optimizer": "NAdam"}, "NAdam", "AdamW")
setting("jamba", "ema decay", {"ema": 0.999}, "lerp|ema", recipe=Recipe(ema=0.99))
setting("cohere", "gradients not unscaled", {"unscale": False}, "div|scale", recipe=Recipe(loss_scale=128.0))
setting("deberta_v2", "lr, not recorded", {"lr": 1.5e-3}, step=1, recipe=Recipe(stop_first=True))
argument("bloom", "accumulation factor", {"divide": False}, "div", recipe=Recipe(accumulate=2))
fault("starcoder2", "lr of a group", "optimizer", other_groups, Expect(optimizer=True, says=(RATE,)), golden_plant=usual_groups)
fault("albert", "a weight without an optimizer", "optimizer", forgotten("predictions.LayerNorm.weight"), Expect(optimizer=True, step=None, says=(r"predictions\.LayerNorm",)))
fault("swin", "loss summed", "optimizer", unreduced, Expect(modules=("",), call="cross_entropy", says=("sum", "mean")), golden_plant=reduced)
fault("gpt_neox", "loss divided twice", "optimizer", loss_divided, Expect(modules=("",), call="div"))
