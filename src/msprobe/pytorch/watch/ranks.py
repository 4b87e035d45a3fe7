"""Ranks of a distributed run, and the only check that uses a collective: off unless the configuration asks for it."""

from __future__ import annotations

import os
from typing import Any, Optional

import torch
import torch.distributed as dist

from msprobe.watch.alarms.agreement import compare_ranks
from msprobe.watch.recording import INITIAL, Recording
from msprobe.watch.step_figures import StepFigures
from msprobe.watch.targets import NORM, WEIGHT


def rank() -> Optional[int]:
    """The global rank, or None in a run without ranks."""
    if dist.is_available() and dist.is_initialized():
        return int(dist.get_rank())
    launched = os.environ.get("RANK", "")
    return int(launched) if launched.isdigit() and "WORLD_SIZE" in os.environ else None


def world_size() -> int:
    if dist.is_available() and dist.is_initialized():
        return int(dist.get_world_size())
    return int(os.environ.get("WORLD_SIZE", "1") or 1)


def facts() -> dict[str, Any]:
    return {"framework": "pytorch", "version": torch.__version__, "world_size": world_size()}


class RankCheck:
    """Gathers the norms of the complete weights of all ranks at each watched step: one collective."""

    def __init__(self, parameters: Any, recording: Recording) -> None:
        self._parameters = parameters
        self._recording = recording
        self._apart: set[str] = set()

    def check(self, step: int, found: StepFigures) -> None:
        if world_size() < 2 or not dist.is_initialized():
            return
        mine = [one for one in self._parameters.all if not one.shard and one.rows.get(WEIGHT, -1) in found]
        device = mine[0].tensor.device if mine and dist.get_backend() == "nccl" else torch.device("cpu")
        norms = torch.tensor([found[one.rows[WEIGHT]][NORM] for one in mine], dtype=torch.float64, device=device)
        gathered = [torch.empty_like(norms) for _ in range(world_size())]
        dist.all_gather(gathered, norms)
        table = torch.stack(gathered).cpu().numpy()
        targets = [(one.name, one.position) for one in mine]
        alarms = compare_ranks(step, targets, table, list(range(world_size())), self._apart, self._recording.settings)
        if step == INITIAL:
            return  # weights that differ from the beginning are not expected to agree
        if rank() == 0:
            self._recording.store.add_alarms(alarms)
        self._recording.raise_alarms(step, alarms)
