"""Run on two ranks: every way in which a collective ends, then DDP.

Prints, on rank 0, the losses as hexadecimal floats.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from msprobe.pytorch import PrecisionDebugger


def collectives(rank):
    """Each gets a tensor that says which rank it came from."""
    other = 1 - rank
    blocking = torch.full((3,), rank + 1.0)
    torch.relu(blocking)  # its statistics are remembered from here
    dist.all_reduce(blocking)
    torch.relu(blocking)
    waited = torch.full((3,), rank + 1.0)
    work = dist.all_reduce(waited, async_op=True)
    work.wait()
    received = torch.zeros(2)
    works = [dist.isend(torch.full((2,), rank + 5.0), other), dist.irecv(received, other)]
    for one in works:
        one.wait()
    torch.relu(received)
    parts = [torch.zeros(2) for _ in range(2)]
    dist.all_gather(parts, torch.full((2,), rank + 7.0))
    into = torch.zeros(4)
    dist.all_gather_into_tensor(into, torch.full((2,), rank + 7.0))
    sent = torch.full((2,), rank + 3.0)
    dist.broadcast(sent, 0)
    batch = torch.zeros(2)
    operations = [
        dist.P2POp(dist.isend, torch.full((2,), rank + 11.0), other),
        dist.P2POp(dist.irecv, batch, other),
    ]
    for one in dist.batch_isend_irecv(operations):
        one.wait()
    torch.relu(batch)
    for number in range(3):  # handles that are dropped at once, and often share their address
        dist.all_reduce(torch.full((1,), float(number)), async_op=True)
        dist.barrier()
    never = torch.ones(1)
    kept = dist.all_reduce(never, async_op=True)
    dist.barrier()
    return kept


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True), nn.Linear(4, 2))
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=0.1)
    debugger = PrecisionDebugger(sys.argv[1]) if len(sys.argv) > 1 else None
    wait = dist.Work.wait
    for step in range(2):
        if debugger is not None:
            debugger.start(model)
        kept = collectives(rank) if step == 0 else None
        optimizer.zero_grad()
        torch.manual_seed(10 * step + rank)
        loss = wrapped(torch.randn(3, 4)).pow(2).sum()
        loss.backward()
        optimizer.step()
        if debugger is not None:
            debugger.stop()
            if kept is None:  # else one is still under way
                assert dist.Work.wait is wait
            debugger.step()
            assert dist.Work.wait is wait
        if kept is not None:
            kept.wait()
        if rank == 0:
            print(loss.item().hex(), *(p.grad.sum().item().hex() for p in model.parameters()), flush=True)
    dist.barrier()
    dist.destroy_process_group()
    return wrapped


kept = main()  # freed after its process group, it may wait for ever for a thread of gloo
