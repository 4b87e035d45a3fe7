"""Two ranks over gloo, with DDP, FSDP2 or tensor parallel; argv: directory or -, kind. Prints what the weights are."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.debug import CommDebugMode

from msprobe.pytorch import Monitor

dist.init_process_group("gloo")
directory, kind = sys.argv[1:]
torch.manual_seed(dist.get_rank() if kind == "seeds" else 0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
if kind == "fsdp":
    from torch.distributed.fsdp import fully_shard

    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
elif kind == "tp":
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
else:
    model = nn.parallel.DistributedDataParallel(model, init_sync=kind == "ddp")
optimizer = torch.optim.AdamW(model.parameters(), 0.1)
config = {"dump_path": directory, "targets": "all", "statistics": "all", "check_ranks": kind == "ddp"}
monitor = Monitor(model, optimizer, config) if directory != "-" else None
data = torch.Generator().manual_seed(dist.get_rank() if kind != "tp" else 0)
collectives = 0
for step in range(4):
    for part in range(2):  # accumulated
        if kind == "fsdp":
            model.set_requires_gradient_sync(part == 1)
        loss = model(torch.randn(4, 8, generator=data)).square().mean()
        if part == 0:
            optimizer.zero_grad()
        loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    if step == 3 and dist.get_rank() == 1 and kind == "ddp":
        with torch.no_grad():
            next(model.parameters()).mul_(2)
    optimizer.step()
    if monitor is not None:
        with CommDebugMode() as communication:
            monitor.step(loss=loss)
        collectives += communication.get_total_counts()
total = torch.stack([getattr(p, "_local_tensor", p).detach().double().sum() for p in model.parameters()]).sum()
print(f"rank {dist.get_rank()} {total.item().hex()}", flush=True)
if kind in ("fsdp", "tp"):
    norms = [float(p.full_tensor().norm()) for p in model.parameters()]
    gradients = [float(p.grad.full_tensor().norm()) for p in model.parameters()]
    if dist.get_rank() == 0:
        print("norms", *norms, flush=True)
        print("gradients", *gradients, flush=True)
        print("collectives", collectives, flush=True)
dist.barrier()
dist.destroy_process_group()
