"""Two ranks: FSDP2 (`fsdp`) or tensor parallel (`tp`). train_sharded.py KIND [CONFIG]."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

dist.init_process_group("gloo")
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
if sys.argv[1] == "tp":
    parallelize_module(net, init_device_mesh("cpu", (2,)), {"0": ColwiseParallel(), "2": RowwiseParallel()})
else:
    for part in (net[0], net[2], net):
        fully_shard(part)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
debugger = None
if len(sys.argv) > 2:
    from msprobe.pytorch import PrecisionDebugger

    debugger = PrecisionDebugger(sys.argv[2])
x = torch.randn(4, 16, generator=torch.Generator().manual_seed(dist.get_rank() if sys.argv[1] == "fsdp" else 0))
junk = torch.rand(64, 64) * id(x)  # what torch.empty finds differs from run to run
del junk
if debugger is not None:
    debugger.start(net)
loss = net(x).square().mean()
loss.backward()
optimizer.step()
if debugger is not None:
    debugger.stop()
    debugger.step()
local = [parameter.to_local().double().sum().item() for parameter in net.parameters()]
grads = [parameter.grad.to_local().norm().item() for parameter in net.parameters()]
everything = [None, None]
dist.all_gather_object(everything, (loss.item(), local, grads))
if dist.get_rank() == 0:
    print(everything)
dist.destroy_process_group()
