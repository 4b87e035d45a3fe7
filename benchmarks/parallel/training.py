"""The training step that all layouts share: batches, loss, gradients over ranks, clipping, AdamW, recording."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Optional

import torch
import torch.distributed as dist
import torch.nn.functional as F
from benchmarks.parallel.collectives import ALONE, Group
from benchmarks.parallel.network import LENGTH, VOCABULARY
from torch import nn

BATCH = 4
RATE, LARGEST_NORM = 1e-2, 0.5
Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Place:
    """One process of a run: its rank, and the fault that is planted in the run (empty: none)."""

    rank: int
    world: int
    fault: str = ""

    def has(self, fault: str, rank: Optional[int] = None) -> bool:
        """Whether this process has the fault; with `rank`, only that rank has it."""
        return self.fault == fault and rank in (None, self.rank)


@dataclass
class Setup:
    """What a layout gives. `model` is recorded; `run` does forward and backward of a batch; `reduce` brings the
    gradients of the ranks together; `clip` limits their norm; `stages` are recorded in place of the model, where a rank
    has more than one; the optimizer does not know the parameter `left_out`."""

    model: nn.Module
    run: Callable[[Batch], None]
    reduce: Callable[[], None] = lambda: None
    clip: Optional[Callable[[], None]] = None
    rate: float = RATE
    optimizer: Optional[torch.optim.Optimizer] = field(default=None)
    stages: Optional[list[nn.Module]] = None
    left_out: str = ""


def make_batch(step: int) -> Batch:
    """The global batch of a step."""
    ids = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(100 + step))
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def part_of(batch: Batch, part: int, parts: int) -> Batch:
    ids, labels = (tensor.chunk(parts, 0)[part].contiguous() for tensor in batch)
    return ids, labels


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def average_gradients(model: nn.Module, group: Group, divisor: Optional[int] = None) -> None:
    """Data parallelism by hand; another `divisor` than the size of the group is a fault."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad, group=group.ranks)
            parameter.grad.div_(divisor or group.size)


def clip_by_hand(
    model: nn.Module,
    groups: Iterable[tuple[Group, Callable[[str], bool]]] = (),
    stages: Group = ALONE,
    skipped: str = "",
) -> None:
    """Clips to the norm over all ranks. For each group, the squares of those parameters that it splits are summed, then
    those of all stages; a parameter that another stage counts is `skipped`."""
    total = torch.zeros(())
    gradients = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    squares = {name: gradient.square().sum() for name, gradient in gradients.items() if name != skipped}
    for group, is_split in groups:
        for name in squares:
            if is_split(name):
                dist.all_reduce(squares[name], group=group.ranks)
    for square in squares.values():
        total = total + square
    total = total.clone()
    if stages.size > 1:
        dist.all_reduce(total, group=stages.ranks)
    factor = (LARGEST_NORM / (total.sqrt() + 1e-6)).clamp(max=1.0)
    for gradient in gradients.values():
        gradient.mul_(factor)


def train(setup: Setup, dump: Path, task: str, steps: int) -> None:
    from msprobe.pytorch import PrecisionDebugger

    model = setup.model
    optimizer = setup.optimizer or torch.optim.AdamW(
        [one for name, one in model.named_parameters() if name != setup.left_out], lr=setup.rate
    )
    debugger: Any = PrecisionDebugger(dump_path=str(dump), task=task, level="mix", step=list(range(steps)))
    for step in range(steps):
        debugger.start(model if setup.stages is None else setup.stages)
        setup.run(make_batch(step))
        setup.reduce()
        if setup.clip is None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), LARGEST_NORM)
        else:
            setup.clip()
        optimizer.step()
        optimizer.zero_grad()
        debugger.stop()
        debugger.step()
