"""One rank of a small parallel model, for tests: `parallel_run.py DUMP RANK WORLD PORT FAULT LAYOUT`.

LAYOUT is data (each rank its own batch, outputs averaged by all_reduce) or tensor (column-parallel, then row-parallel
linear, summed by all_reduce; with WORLD 1 the unsplit model).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from msprobe.pytorch import PrecisionDebugger

WIDTH = 8


class Column(nn.Module):
    def __init__(self, weight: torch.Tensor, rank: int, world: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.chunk(world, 0)[rank].clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight)


class Row(nn.Module):
    def __init__(self, weight: torch.Tensor, rank: int, world: int, fault: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.chunk(world, 1)[rank].clone())
        self.world = world
        self.wrong = fault == f"scale{rank}"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = F.linear(x, self.weight)
        if self.wrong:
            out = out * 1.5
        if self.world > 1:
            out = out.clone()
            dist.all_reduce(out)
        return out


class Model(nn.Module):
    def __init__(self, rank: int, world: int, fault: str, layout: str) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        up, down = (
            torch.randn(4 * WIDTH, WIDTH, generator=generator),
            torch.randn(WIDTH, 4 * WIDTH, generator=generator),
        )
        split = layout == "tensor"
        self.up = Column(up, rank if split else 0, world if split else 1)
        self.down = Row(down, rank if split else 0, world if split else 1, fault)
        self.norm = nn.LayerNorm(WIDTH)
        self.average = not split

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.down(torch.relu(self.up(x))))
        if self.average:
            x = x.clone()
            dist.all_reduce(x)
            x = x * 0.5
        return torch.tanh(x)


def main() -> None:
    path, rank, world, port, fault, layout = sys.argv[1:7]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    torch.set_num_threads(1)
    if int(world) > 1:
        dist.init_process_group("gloo", rank=int(rank), world_size=int(world))
    model = Model(int(rank), int(world), fault, layout)
    seed = int(rank) if layout == "data" else 0
    data = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(seed + 10))
    if fault == f"data{rank}":
        data[1, 2] += 0.25
    config = Path(path + f".config{rank}.json")
    config.write_text(json.dumps({"task": "tensor", "level": "mix", "dump_path": path, "step": [0], "tensor": {}}))
    debugger = PrecisionDebugger(str(config))
    debugger.start(model)
    with torch.no_grad():
        model(data)
    debugger.stop()
    debugger.step()
    if int(world) > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
