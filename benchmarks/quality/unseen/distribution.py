"""Faults of training over two processes, with DistributedDataParallel and with FSDP2, and their clean pairs."""

from __future__ import annotations

import torch
import torch.distributed as dist
from cases import Expect, clean, fault
from faults.distribution import AVERAGE, not_synchronised, on_rank_one, same_shard, sharded, summed, usual
from plants import assigned, scaled, together
from torch import nn
from torch.distributed.fsdp import fully_shard
from training import Experiment, Recipe

import unseen.models  # noqa: F401

DDP, FSDP = SHARDED = ("olmo2_ddp", "starcoder2_fsdp")
L0, L1 = "model.layers.0", "model.layers.1"


def fsdp(run: Experiment) -> None:
    """What a user writes: each layer, then the model; data by rank."""
    sharded(run)
    for layer in run.module("model.layers").children():
        fully_shard(layer)
    fully_shard(run.model)


def halved(run: Experiment) -> None:
    """Gradients divided by the script, although FSDP did."""
    fsdp(run)

    def again() -> None:
        for parameter in run.model.parameters():
            parameter.grad.div_(dist.get_world_size())

    run.before_step.append(again)


def wrong_bias(run: Experiment) -> None:
    """Before sharding: a weight of the second rank that differs is a different shard."""
    with torch.no_grad():
        run.model.get_parameter(f"{L1}.mlp.c_fc.bias").add_(0.05)


def unused_average(run: Experiment) -> None:
    """The script averages the gradients again, although DistributedDataParallel did."""
    usual(run)

    def again() -> None:
        for parameter in run.model.parameters():
            parameter.grad.div_(dist.get_world_size())

    run.before_step.append(again)


def clipped_by_rank(run: Experiment) -> None:
    """Only the second rank clips."""
    usual(run)
    if dist.get_rank() == 1:
        run.before_step.append(lambda: nn.utils.clip_grad_norm_(run.model.parameters(), 0.05))


# One fault a line or two reads as a table; some are longer than a line of code may be.
# ruff: noqa: E501
# fmt: off
NO_CLIP = Recipe(clip=None)
fault(DDP, "gradients not synchronised", "distribution", not_synchronised, Expect(source=".*", says=AVERAGE), golden_plant=usual)
fault(DDP, "gradients summed", "distribution", summed, Expect(source=".*", says=AVERAGE), golden_plant=usual)
fault(DDP, "the same shard on both ranks", "distribution", same_shard, Expect(rank=1, modules=("", "module", "module.model*"), says=("input|given|data",)), golden_plant=usual)
fault(DDP, "eps on one rank", "distribution", together(on_rank_one(assigned(f"{L0}.self_attn.q_norm", "variance_epsilon", 1e-2)), usual),
      Expect(rank=1, modules=(f"module.{L0}.self_attn.q_norm",), says=(r"0\.01\b",)), golden_plant=usual)
fault(DDP, "averaged twice", "distribution", unused_average, Expect(source="in again", says=("div",)), golden_plant=usual)
fault(DDP, "clipped on one rank", "distribution", clipped_by_rank, Expect(rank=1, optimizer=True, says=("clip",)), golden_plant=usual)
fault(FSDP, "mlp scaled on one rank", "distribution", together(on_rank_one(scaled(f"{L0}.mlp", 1.05)), fsdp), Expect(rank=1, modules=(f"{L0}.mlp",)), golden_plant=fsdp)
fault(FSDP, "a bias differs", "distribution", together(wrong_bias, fsdp), Expect(parameter=f"{L1}.mlp.c_fc.bias", rank=None), golden_plant=fsdp)
fault(FSDP, "gradients divided twice", "distribution", halved, Expect(source="in again", says=("div",)), golden_plant=fsdp, recipe=NO_CLIP)
fault(FSDP, "lr", "distribution", fsdp, Expect(optimizer=True, says=(r"\blr\b|learning.?rate",)), golden_plant=fsdp, wrong={"lr": 2e-3})
# fmt: on
clean(DDP, "again", usual, golden_plant=usual)
clean(FSDP, "again", fsdp, golden_plant=fsdp)
clean(FSDP, "foreach optimizer", fsdp, golden_plant=fsdp, recipe=Recipe(loop="single"), other={"loop": "foreach"})
