"""Trains a small model in several parallel layouts, each without and with a debugger, in the same processes.

python train_layouts.py DIRECTORY LEVEL [LAYOUT …]. The dump of each layout goes to DIRECTORY/{layout}. Rank 0 prints
one JSON object: for each layout, whether the losses, gradients and weights of all ranks are the same bits. The four
ranks are forked once torch is imported, because importing takes most of the time.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data.distributed import DistributedSampler

from msprobe.pytorch import PrecisionDebugger
from msprobe.pytorch.features import context_parallel_module

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


def fsdp1(debugger: Any, use_orig_params: bool) -> list[Any]:
    model = Block()
    model.up = FullyShardedDataParallel(model.up, use_orig_params=use_orig_params, device_id=torch.device("cpu"))
    model = FullyShardedDataParallel(model, use_orig_params=use_orig_params, device_id=torch.device("cpu"))
    return train(model, debugger, sample(dist.get_rank(), 3, 16))


@layout
def fsdp1_flat(debugger: Any) -> list[Any]:
    return fsdp1(debugger, False)


@layout
def fsdp1_original(debugger: Any) -> list[Any]:
    return fsdp1(debugger, True)


class Attended(nn.Module):
    """As in Megatron: plain tensors; each rank has its columns or rows, and attributes of the parameters say so."""

    def __init__(self) -> None:
        super().__init__()
        rank = dist.get_rank()
        self.norm = nn.LayerNorm(16)
        self.fused = nn.Linear(16, 24)
        self.out = nn.Linear(8, 16, bias=False)
        self.layers = nn.ModuleList([nn.Linear(16, 16)])
        whole = sample(7, 3, WORLD, 8, 16)  # three fused projections
        self.fused.weight.data = whole[:, rank].reshape(24, 16).contiguous()
        for parameter in (self.fused.weight, self.fused.bias):
            parameter.tensor_model_parallel, parameter.partition_dim, parameter.partition_stride = True, 0, 3
        self.out.weight.tensor_model_parallel, self.out.weight.partition_dim = True, 1
        self.norm.weight.sequence_parallel = True
        self.layers[0].weight.allreduce = False
        self.layers[0].layer_number = 3 + rank

    def forward(self, x: Any) -> Any:
        query, key, value = self.fused(self.norm(x)).chunk(3, -1)
        partial = self.out(torch.tanh(query * key) * value)
        return self.layers[0](AllReduce.apply(partial))


class AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Any) -> Any:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        return gradient


@layout
def megatron(debugger: Any) -> list[Any]:
    return train(Attended(), debugger, sample(0, 3, 16))


@layout
def data_parallel(debugger: Any) -> list[Any]:
    data = torch.utils.data.TensorDataset(sample(0, 12, 16))
    sampler = DistributedSampler(data, shuffle=False)
    dist.new_group(list(range(WORLD)))
    (batch,) = next(iter(torch.utils.data.DataLoader(data, batch_size=3, sampler=sampler)))
    return train(DistributedDataParallel(Block()), debugger, batch)


def context(debugger: Any, balanced: bool, inside: bool) -> list[Any]:
    """The sequence is cut over the ranks while the context lasts."""
    context_parallel_module()._cp_options.enable_load_balance = balanced
    mesh = init_device_mesh("cpu", (WORLD,), mesh_dim_names=("cp",))
    model, batch, target = nn.Linear(6, 6), sample(0, 2, 16, 6), sample(1, 2, 16, 6)
    if debugger is not None and not inside:
        debugger.start(model)
    with context_parallel(mesh, buffers=[batch, target], buffer_seq_dims=[1, 1]):
        if debugger is not None and inside:
            debugger.start(model)
        loss = nn.functional.mse_loss(model(batch), target)
        loss.backward()
        if debugger is not None:
            debugger.stop()
            debugger.step()
        return [bits(loss), bits(model.weight.grad), bits(batch)]


@layout
def context_contiguous(debugger: Any) -> list[Any]:
    return context(debugger, balanced=False, inside=False)


@layout
def context_balanced(debugger: Any) -> list[Any]:
    return context(debugger, balanced=True, inside=False)


@layout
def context_before_start(debugger: Any) -> list[Any]:
    return context(debugger, balanced=True, inside=True)


MICROBATCHES = 4


def make_stage(number: int) -> Any:
    """A stage of a pipeline, the same in every process."""
    torch.manual_seed(100 + number)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6))


def pipeline(debugger: Any, kind: Any, stages_per_rank: int = 1) -> list[Any]:
    rank, count = dist.get_rank(), WORLD * stages_per_rank
    numbers = list(range(rank, count, WORLD))
    parts = [make_stage(number) for number in numbers]
    stages = [PipelineStage(part, n, count, torch.device("cpu")) for part, n in zip(parts, numbers)]
    one_each = stages_per_rank == 1
    schedule = kind(stages[0] if one_each else stages, MICROBATCHES, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD([one for part in parts for one in part.parameters()], lr=0.1)
    batch, target = sample(0, 8, 6), sample(1, 8, 6)
    found = []
    for _ in range(2):
        losses: list[Any] = []
        if debugger is not None:
            debugger.start(parts[0] if one_each else parts)
        schedule.step(
            *([batch] if rank == 0 else []), **({"target": target, "losses": losses} if rank == WORLD - 1 else {})
        )
        found += [*map(bits, losses), *(bits(one.grad) for part in parts for one in part.parameters())]
        optimizer.step()
        optimizer.zero_grad()
        if debugger is not None:
            debugger.stop()
            debugger.step()
    return found + [bits(one) for part in parts for one in part.parameters()]


@layout
def gpipe(debugger: Any) -> list[Any]:
    return pipeline(debugger, ScheduleGPipe)


@layout
def one_forward_one_backward(debugger: Any) -> list[Any]:
    return pipeline(debugger, Schedule1F1B)


@layout
def interleaved(debugger: Any) -> list[Any]:
    return pipeline(debugger, ScheduleInterleaved1F1B, 2)


@layout
def zero_bubble(debugger: Any) -> list[Any]:
    return pipeline(debugger, ScheduleInterleavedZeroBubble, 2)


def equal(first: list[Any], second: list[Any]) -> bool:
    """On every rank, bit for bit."""
    same = len(first) == len(second) and all(torch.equal(a, b) for a, b in zip(first, second))
    everywhere: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everywhere, same)
    return all(everywhere)


def run_all(rank: int, directory: Path, level: str) -> None:
    store = dist.FileStore(str(directory / "store"), WORLD)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD, timeout=timedelta(seconds=120))
    torch.set_num_threads(1)
    results = {}
    for name in sorted(LAYOUTS, key=lambda one: one != "megatron"):  # which expects to find one group only
        run = LAYOUTS[name]
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


def main(directory: Path, level: str, *names: str) -> None:
    for name in set(LAYOUTS) - set(names or LAYOUTS):
        del LAYOUTS[name]
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=run_all, args=(rank, directory, level)) for rank in range(WORLD)]
    for one in ranks:
        one.start()
    running = set(ranks)
    while running:
        wait([one.sentinel for one in running])
        running = {one for one in running if one.is_alive()}
        if any(one.exitcode for one in ranks):  # the others would wait for it, in a loop that never ends
            for one in running:
                one.kill()
    sys.exit(max(abs(one.exitcode or 0) for one in ranks))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
