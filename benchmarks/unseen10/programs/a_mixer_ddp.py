"""MLP-Mixer on two data-parallel ranks: two micro-batches per update, a focal loss and a short warm-up."""
# world 2

import contextlib
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from msprobe.pytorch import PrecisionDebugger

MICRO = 2
PATCHES, CHANNELS, KINDS = 9, 24, 6

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()


class Mlp(nn.Module):
    def __init__(self, size, inner):
        super().__init__()
        self.first = nn.Linear(size, inner)
        self.second = nn.Linear(inner, size)

    def forward(self, x):
        return self.second(F.gelu(self.first(x)))


class MixerBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_tokens = nn.LayerNorm(CHANNELS)
        self.tokens = Mlp(PATCHES, 16)
        self.norm_channels = nn.LayerNorm(CHANNELS)
        self.channels = Mlp(CHANNELS, 48)

    def forward(self, x):
        y = self.norm_tokens(x).transpose(1, 2)
        x = x + self.tokens(y).transpose(1, 2)
        return x + self.channels(self.norm_channels(x))


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Linear(3 * 4 * 4, CHANNELS)
        self.blocks = nn.Sequential(*[MixerBlock() for _ in range(2)])
        self.norm = nn.LayerNorm(CHANNELS)
        self.head = nn.Linear(CHANNELS, KINDS)

    def forward(self, images):
        n = images.shape[0]
        x = images.view(n, 3, 3, 4, 3, 4).permute(0, 2, 4, 3, 5, 1).reshape(n, PATCHES, -1)
        x = self.blocks(self.patches(x))
        return self.head(self.norm(x).mean(dim=1))


def dataset():
    seed = torch.Generator().manual_seed(1234)
    kinds = torch.randint(0, KINDS, (48,), generator=seed)
    images = torch.randn(48, 3, 12, 12, generator=seed)
    images += torch.sin(torch.arange(12.0) * (1 + kinds[:, None, None, None].to(images.dtype)))
    return images, kinds


def shard(step, micro):
    start = (step * MICRO + micro) * 8 + rank
    return slice(start, start + 8, world)


def focal(logits, kinds, gamma=1.5):
    log_chance = F.log_softmax(logits, dim=-1).gather(1, kinds[:, None]).squeeze(1)
    return (-((1 - log_chance.exp()) ** gamma) * log_chance).mean()


torch.manual_seed(17)
model = Mixer()
parallel = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(parallel.parameters(), lr=5e-3, weight_decay=0.02)
images, kinds = dataset()
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1, 2])
losses = []
for step in range(3):
    debugger.start(model)
    for group in optimizer.param_groups:
        group["lr"] = 5e-3 * min(1.0, (step + 1) / 2)
    whole = 0.0
    for micro in range(MICRO):
        part = shard(step, micro)
        waiting = parallel.no_sync() if micro < MICRO - 1 else contextlib.nullcontext()
        with waiting:
            loss = focal(parallel(images[part]), kinds[part]) / MICRO
            loss.backward()
        whole += loss.detach()
    dist.all_reduce(whole)
    nn.utils.clip_grad_norm_(parallel.parameters(), 0.3)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(whole.item() / world)
    debugger.stop()
    debugger.step()
dist.destroy_process_group()
