"""One rank of a small transformer in a layout of torch, for tests: `layout_run.py DUMP RANK WORLD PORT LAYOUT`.

LAYOUT is single, ddp, fsdp, flat and original (FSDP1), tp or pp (two stages, two microbatches). One step with SGD.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from msprobe.pytorch import PrecisionDebugger

WIDTH, HEADS, BATCH, LENGTH, WORDS = 16, 4, 4, 6, 32


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        projections = (self.query, self.key, self.value)
        q, k, v = (one(x).view(batch, length, -1, WIDTH // HEADS).transpose(1, 2) for one in projections)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        result: torch.Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, -1))
        return result


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2, self.attention = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), Attention()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        result: torch.Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return result


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding: Any = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleDict({str(layer): Block() for layer in range(2)})
        self.head: Any = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x if self.embedding is None else self.embedding(x)
        for layer in self.layers.values():
            x = layer(x)
        return x if self.head is None else self.head(x)


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def split_tensors(model: Model, world: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("tp",))
    columns = {name: ColwiseParallel() for name in ("attention.query", "attention.key", "attention.value", "up")}
    rows = {name: RowwiseParallel() for name in ("attention.out", "down")}
    for layer in model.layers.values():
        parallelize_module(layer, mesh, {**columns, **rows})


def shard(model: Model) -> None:
    from torch.distributed.fsdp import fully_shard

    for layer in model.layers.values():
        fully_shard(layer)
    fully_shard(model)


def flatten(model: Model, use_orig_params: bool) -> Any:
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    return FullyShardedDataParallel(
        model,
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        device_id=torch.device("cpu"),
        use_orig_params=use_orig_params,
    )


def make_pipeline(model: Model, rank: int) -> Any:
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    del model.layers[str(1 - rank)]
    if rank == 0:
        model.head = None
    else:
        model.embedding = None
    stage = PipelineStage(model, rank, 2, torch.device("cpu"))
    return ScheduleGPipe(stage, n_microbatches=2, loss_fn=loss_of)


def main() -> None:
    path, rank, world, port, layout = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    torch.set_num_threads(1)
    if world > 1:
        dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(0)
    model = Model()
    ids, labels = torch.randint(0, WORDS, (2, BATCH, LENGTH), generator=torch.Generator().manual_seed(5))
    runner: Any = model
    if layout in ("ddp", "fsdp", "flat", "original"):
        ids, labels = ids.chunk(world)[rank], labels.chunk(world)[rank]
    if layout == "ddp":
        runner = nn.parallel.DistributedDataParallel(model)
    elif layout == "fsdp":
        shard(model)
    elif layout in ("flat", "original"):
        runner = model = flatten(model, layout == "original")
    elif layout == "tp":
        split_tensors(model, world)
    elif layout == "pp":
        runner = make_pipeline(model, rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    debugger = PrecisionDebugger(dump_path=path, task="tensor", level="mix", step=[0])
    debugger.start(model)
    if layout == "pp":
        runner.step(*([ids] if rank == 0 else []), **({} if rank == 0 else {"target": labels}))
    else:
        loss_of(runner(ids), labels).backward()
    optimizer.step()
    debugger.stop()
    debugger.step()
    if world > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
