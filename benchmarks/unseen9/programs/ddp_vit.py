"""Two processes with DistributedDataParallel: a small vision transformer with a distillation token, layer scale."""

# world 2
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from msprobe.pytorch import PrecisionDebugger

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(141)


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        weights = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(dim=-1)
        return self.out((weights @ v).transpose(1, 2).reshape(b, n, -1))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.attention = Attention(width, heads)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale1, self.scale2 = nn.Parameter(torch.full((width,), 0.1)), nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x):
        x = x + self.scale1 * self.attention(self.norm1(x))
        return x + self.scale2 * self.fc2(F.gelu(self.fc1(self.norm2(x))))


class Vit(nn.Module):
    def __init__(self, width=24, heads=3, classes=5):
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, stride=4)
        self.tokens = nn.Parameter(torch.randn(2, width) * 0.02)
        self.places = nn.Parameter(torch.randn(18, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(2)))
        self.norm = nn.BatchNorm1d(width)
        self.head, self.head_distilled = nn.Linear(width, classes), nn.Linear(width, classes)

    def forward(self, images):
        x = self.patch(images).flatten(2).mT
        x = torch.cat([self.tokens.expand(len(x), -1, -1), x], dim=1) + self.places
        x = self.blocks(x)
        first, second = self.norm(x[:, 0]), self.norm(x[:, 1])
        return self.head(first), self.head_distilled(second)


def batch(step):
    chooser = torch.Generator().manual_seed(step + 300)
    images = torch.randn(8, 3, 16, 16, generator=chooser)
    labels = torch.randint(0, 5, (8,), generator=chooser)
    teacher = torch.randn(8, 5, generator=chooser) * 2
    return images[rank::world], labels[rank::world], teacher[rank::world]


model = Vit()
ddp = DistributedDataParallel(model, broadcast_buffers=True)
optimizer = torch.optim.AdamW(ddp.parameters(), lr=3e-3, weight_decay=0.05, betas=(0.9, 0.95))
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1, 2])
losses = []
for step in range(3):
    debugger.start(model)
    images, labels, teacher = batch(step)
    logits, distilled = ddp(images)
    hard = F.cross_entropy(logits, labels)
    soft = F.kl_div(F.log_softmax(distilled / 2, -1), F.softmax(teacher / 2, -1), reduction="batchmean") * 4
    loss = 0.5 * hard + 0.5 * soft
    loss.backward()
    shown = loss.detach().clone()
    dist.all_reduce(shown)
    nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(shown.item() / world)
    debugger.stop()
    debugger.step()
dist.barrier()
dist.destroy_process_group()
