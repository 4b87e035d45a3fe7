"""Trains a small model in several parallel layouts, each without and with a debugger, in the same processes.

python train_layouts.py DIRECTORY LEVEL. The dump of each layout goes to DIRECTORY/{layout}. Rank 0 prints one JSON
object: for each layout, whether the losses, gradients and weights of all ranks are the same bits. The four ranks are
forked once torch is imported, because importing takes most of the time.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from pathlib import Path
from typing import Any, Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from msprobe.pytorch import PrecisionDebugger

WORLD = 4
Layout = Callable[[Any], list[Any]]
LAYOUTS: dict[str, Layout] = {}


def layout(run: Layout) -> Layout:
    LAYOUTS[run.__name__] = run
    return run


class Block(nn.Module):
    """Pre-norm and a feed-forward part; 9 output features cannot be cut evenly."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.up = nn.Linear(16, 32)
        self.down = nn.Linear(32, 16)
        self.head = nn.Linear(16, 9)

    def forward(self, x: Any) -> Any:
        return self.head(x + self.down(torch.nn.functional.gelu(self.up(self.norm(x)))))


def bits(tensor: Any) -> Any:
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach().clone()


def train(model: Any, debugger: Any, batch: Any, steps: int = 2) -> list[Any]:
    """Losses and gradients of each step, and the weights at the end."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    found = []
    for _ in range(steps):
        if debugger is not None:
            debugger.start(model)
        loss = model(batch).square().mean()
        loss.backward()
        found += [bits(loss), *(bits(one.grad) for one in model.parameters() if one.grad is not None)]
        optimizer.step()
        optimizer.zero_grad()
        if debugger is not None:
            debugger.stop()
            debugger.step()
    return found + [bits(one) for one in model.parameters()]


def sample(rank: int, *shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(rank))


@layout
def fsdp2(debugger: Any) -> list[Any]:
    model = Block()
    fully_shard(model.up)
    fully_shard(model)
    return train(model, debugger, sample(dist.get_rank(), 3, 16))


@layout
def tensor_parallel(debugger: Any) -> list[Any]:
    model = Block()
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    parallelize_module(model, init_device_mesh("cpu", (4,), mesh_dim_names=("tp",)), plan)
    return train(model, debugger, sample(0, 3, 16))


@layout
def sequence_parallel(debugger: Any) -> list[Any]:
    """The norm runs on a part of the sequence; its result stays a DTensor."""
    model = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16))
    plan = {
        "0": SequenceParallel(use_local_output=False),
        "1": ColwiseParallel(input_layouts=Shard(1), use_local_output=False),
        "2": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
    }
    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
    parallelize_module(model, mesh, plan)
    batch = DTensor.from_local(sample(0, 2, 3, 16)[:, :2], mesh, [Shard(1)])
    return train(model, debugger, batch)


@layout
def two_dimensions(debugger: Any) -> list[Any]:
    model = Block()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    return train(model, debugger, sample(mesh.get_local_rank("dp"), 3, 16))


@layout
def distributed_tensor(debugger: Any) -> list[Any]:
    """Without modules: products of DTensors, one of which is a partial sum."""
    mesh = init_device_mesh("cpu", (2, 2))
    left = distribute_tensor(sample(0, 4, 6), mesh, [Replicate(), Shard(1)])
    right = distribute_tensor(sample(1, 6, 5), mesh, [Shard(1), Shard(0)])
    if debugger is not None:
        debugger.start(nn.Linear(1, 1))
    product = left @ right
    total = product.redistribute(mesh, [Shard(1), Replicate()])
    if debugger is not None:
        debugger.stop()
        debugger.step()
    return [bits(product), bits(total)]


def equal(first: list[Any], second: list[Any]) -> bool:
    """On every rank, bit for bit."""
    same = len(first) == len(second) and all(torch.equal(a, b) for a, b in zip(first, second))
    everywhere: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everywhere, same)
    return all(everywhere)


def run_all(rank: int, directory: Path, level: str) -> None:
    store = dist.FileStore(str(directory / "store"), WORLD)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD)
    torch.set_num_threads(1)
    results = {}
    for name, run in LAYOUTS.items():
        torch.manual_seed(0)
        plain = run(None)
        config = directory / f"{name}.{rank}.json"
        content = {"task": "tensor", "level": level, "dump_path": str(directory / name), "tensor": {}}
        config.write_text(json.dumps(content))
        torch.manual_seed(0)
        results[name] = equal(plain, run(PrecisionDebugger(str(config))))
    if rank == 0:
        print(json.dumps(results), flush=True)
    dist.destroy_process_group()


def main(directory: Path, level: str) -> None:
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=run_all, args=(rank, directory, level)) for rank in range(WORLD)]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join()
    sys.exit(max(abs(one.exitcode or 0) for one in ranks))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
