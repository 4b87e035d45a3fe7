"""Faults of data-parallel training over two processes, and their clean pairs."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from cases import DISTRIBUTED, Expect, clean, fault
from plants import scaled, together
from torch import nn
from training import Experiment, Plant

WEIGHT = "transformer.h.1.mlp.c_fc.weight"


def sharded(run: Experiment) -> None:
    """Each rank has batches of its own."""
    usual = run.batch
    rank = dist.get_rank()
    run.batch = lambda step: usual(2 * step + rank)


def wrapped(run: Experiment, **options: Any) -> None:
    run.model = nn.parallel.DistributedDataParallel(run.model, **options)


def usual(run: Experiment) -> None:
    """What a user writes: DistributedDataParallel, and data by rank."""
    sharded(run)
    wrapped(run)


def by_hand(run: Experiment) -> None:
    """Gradients averaged by the training script."""
    averaged(run, True, True)


def averaged(run: Experiment, reduce: bool, divide: bool) -> None:
    sharded(run)

    def average() -> None:
        for parameter in run.model.parameters():
            if reduce:
                dist.all_reduce(parameter.grad)
            if divide:
                parameter.grad.div_(2)

    run.before_step.append(average)


def not_synchronised(run: Experiment) -> None:
    usual(run)
    run.model.require_backward_grad_sync = False


def summed(run: Experiment) -> None:
    """A communication hook that forgets to divide."""
    usual(run)

    def hook(state, bucket):  # type: ignore[no-untyped-def]  # DDP refuses annotations that are text
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    run.model.register_comm_hook(None, hook)


def same_shard(run: Experiment) -> None:
    batch = run.batch
    run.batch = lambda step: batch(2 * step)
    wrapped(run)


def on_rank_one(plant: Plant) -> Plant:
    """The plant in the second process only."""
    return lambda run: plant(run) if dist.get_rank() == 1 else None


def other_weight(run: Experiment) -> None:
    with torch.no_grad():
        run.model.module.get_parameter(WEIGHT).mul_(1.01)


AVERAGE = ("reduc|averag|synchron|other rank|every rank",)
# fmt: off
fault(DISTRIBUTED, "gradients not synchronised", "distribution", not_synchronised,
      Expect(source=".*", says=AVERAGE), golden_plant=usual)
fault(DISTRIBUTED, "gradients summed", "distribution", summed, Expect(source=".*", says=AVERAGE), golden_plant=usual)
fault(DISTRIBUTED, "one rank with another weight", "distribution", together(usual, on_rank_one(other_weight)),
      Expect(parameter=f"module.{WEIGHT}", rank=1), golden_plant=usual, representative=True)
fault(DISTRIBUTED, "the same shard on both ranks", "distribution", same_shard,
      Expect(rank=1, modules=("", "module", "module.transformer", "module.transformer.wte"),
             says=("input|given|data",)),
      golden_plant=usual)
fault(DISTRIBUTED, "one rank with another computation", "distribution",
      together(on_rank_one(scaled("transformer.h.0.mlp", 1.05)), usual),
      Expect(rank=1, modules=("module.transformer.h.0.mlp",)), golden_plant=usual)
fault(DISTRIBUTED, "by hand, not divided", "distribution", lambda run: averaged(run, True, False),
      Expect(source="in average", says=("div",)), golden_plant=by_hand)
fault(DISTRIBUTED, "by hand, not reduced", "distribution", lambda run: averaged(run, False, True),
      Expect(source="in average", says=("reduce",)), golden_plant=by_hand)
# fmt: on
clean(DISTRIBUTED, "again", usual, golden_plant=usual, representative=True)
clean(DISTRIBUTED, "again, by hand", by_hand, golden_plant=by_hand)
clean(DISTRIBUTED, "small buckets", lambda run: (sharded(run), wrapped(run, bucket_cap_mb=0.02)), golden_plant=usual)
