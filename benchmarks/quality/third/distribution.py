"""Faults of training over two processes, and their clean pairs."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from cases import Expect, clean, fault
from faults.distribution import AVERAGE, on_rank_one, sharded, usual
from plants import edited, perturbed, scaled, together
from torch.distributed.fsdp import fully_shard
from training import Experiment, Recipe

import third.models  # noqa: F401

MISTRAL, REGNET, NEMOTRON = SHARDED = ("mistral_ddp", "regnet_ddp", "nemotron_fsdp")
L0, L1 = "model.layers.0", "model.layers.1"


def never_synchronised(run: Experiment) -> None:
    """no_sync is left on, as for every part of an accumulation."""
    usual(run)
    forward = run.model.forward

    def quiet(*args: Any, **kwargs: Any) -> Any:
        run.model.require_backward_grad_sync = False
        return forward(*args, **kwargs)

    run.model.forward = quiet


def loss_times_world(run: Experiment) -> None:
    """The loss is multiplied by the number of processes."""
    usual(run)
    loss = run.loss
    run.loss = lambda model, batch: loss(model, batch) * dist.get_world_size()


def not_broadcast(run: Experiment) -> None:
    """A weight of the second rank changes after it was wrapped."""
    usual(run)
    if dist.get_rank() == 1:
        with torch.no_grad():
            run.model.module.get_parameter(f"{L1}.mlp.gate_proj.weight").mul_(1.05)


def fsdp(run: Experiment) -> None:
    sharded(run)
    for layer in run.module("model.layers").children():
        fully_shard(layer)
    fully_shard(run.model)


def other_eps(run: Experiment) -> None:
    run.model.module.regnet.embedder.embedder.normalization.eps = 1e-2


# One fault a line or two reads as a table; some are longer than a line of code may be.
# ruff: noqa: E501
# fmt: off
fault(MISTRAL, "never synchronised", "distribution", never_synchronised, Expect(source=".*", says=AVERAGE), golden_plant=usual)
fault(MISTRAL, "loss times the world", "distribution", loss_times_world, Expect(modules=("", "module"), call="mul"), golden_plant=usual)
fault(MISTRAL, "a weight of one rank", "distribution", not_broadcast, Expect(rank=1, parameter=f"module.{L1}.mlp.gate_proj.weight"), golden_plant=usual)
fault(MISTRAL, "rotation on one rank", "distribution", together(on_rank_one(edited(f"{L0}.self_attn", "apply_rotary_pos_emb(query_states, key_states, cos, sin)", "apply_rotary_pos_emb(query_states, key_states, cos, sin * 1.01)")), usual),
      Expect(rank=1, modules=(f"module.{L0}.self_attn",), call="mul"), golden_plant=usual)
fault(REGNET, "norm in evaluation on one rank", "distribution", together(on_rank_one(lambda run: run.module("regnet.embedder.embedder.normalization").eval()), usual),
      Expect(rank=1, modules=("module.regnet.embedder.embedder.normalization",), says=("training",)), golden_plant=usual)
fault(REGNET, "eps of a norm on one rank", "distribution", together(usual, on_rank_one(other_eps)),
      Expect(rank=1, modules=("module.regnet.embedder.embedder.normalization",), says=("eps",)), golden_plant=usual)
fault(NEMOTRON, "projection scaled on one rank", "distribution", together(on_rank_one(scaled(f"{L1}.mlp.up_proj", 1.04)), fsdp), Expect(rank=1, modules=(f"{L1}.mlp.up_proj",)), golden_plant=fsdp)
fault(NEMOTRON, "weight decay", "distribution", fsdp, Expect(optimizer=True, says=("weight.?decay",)), golden_plant=fsdp, wrong={"weight_decay": 0.2})
fault(NEMOTRON, "a weight differs", "distribution", together(perturbed(f"{L0}.mlp.down_proj.weight", factor=1.02), fsdp), Expect(parameter=f"{L0}.mlp.down_proj.weight", rank=None), golden_plant=fsdp)
# fmt: on
clean(MISTRAL, "again", usual, golden_plant=usual)
clean(REGNET, "again", usual, golden_plant=usual)
clean(NEMOTRON, "again", fsdp, golden_plant=fsdp)
clean(MISTRAL, "foreach optimizer", usual, golden_plant=usual, recipe=Recipe(loop="single"), other={"loop": "foreach"})
