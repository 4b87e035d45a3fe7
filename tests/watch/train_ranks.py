"""Two ranks over gloo, with DDP or FSDP2; argv: directory, kind. Prints the weights' fingerprint."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn

from msprobe.pytorch import Monitor

dist.init_process_group("gloo")
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
if sys.argv[2] == "fsdp":
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
else:
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
config = {"dump_path": sys.argv[1], "targets": ["weight", "grad", "grad_local", "grad_before_clip"]}
watch = sys.argv[1] != "-"
monitor = Monitor(model, optimizer, {**config, "check_ranks": sys.argv[2] == "ddp"}) if watch else None
data = torch.Generator().manual_seed(dist.get_rank())
for step in range(4):
    loss = model(torch.randn(4, 8, generator=data)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    if step == 3 and dist.get_rank() == 1 and sys.argv[2] == "ddp":
        with torch.no_grad():
            next(model.parameters()).mul_(2)
    optimizer.step()
    if monitor is not None:
        monitor.step(loss=loss)
total = torch.stack([getattr(p, "_local_tensor", p).detach().double().sum() for p in model.parameters()]).sum()
print(f"rank {dist.get_rank()} {total.item().hex()}", flush=True)
if sys.argv[2] == "fsdp":
    norms = [float(p.full_tensor().norm()) for p in model.parameters()]
    if dist.get_rank() == 0:
        print("norms", *norms, flush=True)
dist.barrier()
dist.destroy_process_group()
