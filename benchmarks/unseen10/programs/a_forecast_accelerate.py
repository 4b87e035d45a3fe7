"""Forecasts several series with a patch transformer in an accelerate loop; the loss is a weighted pinball loss."""

import math
import sys

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset

from msprobe.pytorch import PrecisionDebugger

PAST, AHEAD, PATCH, STRIDE = 24, 6, 6, 3
LEVELS = (0.1, 0.5, 0.9)


class Waves(Dataset):
    def __init__(self, count=32):
        source = torch.Generator().manual_seed(2718)
        time = torch.arange(PAST + AHEAD)
        speed = 0.2 + torch.rand(count, 1, generator=source)
        level = 5 * torch.randn(count, 1, generator=source)
        noise = torch.randn(count, PAST + AHEAD, generator=source)
        self.series = level + 2 * torch.sin(speed * time) + 0.05 * time + 0.3 * noise

    def __len__(self):
        return len(self.series)

    def __getitem__(self, i):
        return self.series[i, :PAST], self.series[i, PAST:]


class Mixing(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(width, width)
        self.to_kv = nn.Linear(width, 2 * width)
        self.back = nn.Linear(width, width)

    def forward(self, x):
        q = self.to_q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.to_kv(x).unflatten(-1, (2, self.heads, -1)).movedim(2, 0).transpose(2, 3)
        weights = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), dim=-1)
        return self.back((weights @ v).transpose(1, 2).flatten(2))


class Stage(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.mixing = Mixing(width, 4)
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)

    def forward(self, x):
        x = x + self.mixing(self.norm1(x))
        return x + self.feed(self.norm2(x))


class Forecaster(nn.Module):
    def __init__(self, width=32, stages=2):
        super().__init__()
        self.patches = nn.Linear(PATCH, width)
        count = (PAST - PATCH) // STRIDE + 1
        turn = torch.arange(count)[:, None] * torch.exp(torch.arange(0, width, 2) * (-math.log(100.0) / width))
        table = torch.stack([turn.sin(), turn.cos()], dim=-1).flatten(1)
        self.register_buffer("where", table)
        self.stages = nn.ModuleList(Stage(width) for _ in range(stages))
        self.norm = nn.LayerNorm(width)
        self.answer = nn.Linear(count * width, AHEAD * len(LEVELS))

    def forward(self, past):
        middle = past.mean(dim=1, keepdim=True)
        spread = torch.sqrt(past.var(dim=1, keepdim=True, unbiased=False) + 1e-5)
        past = (past - middle) / spread
        x = self.patches(past.unfold(1, PATCH, STRIDE)) + self.where
        for stage in self.stages:
            x = stage(x)
        guess = self.answer(self.norm(x).flatten(1)).view(-1, AHEAD, len(LEVELS))
        return guess * spread[..., None] + middle[..., None]


def pinball(guess, truth):
    levels = torch.tensor(LEVELS)
    miss = truth.unsqueeze(-1) - guess
    loss = torch.maximum(levels * miss, (levels - 1) * miss)
    later = torch.linspace(1.0, 0.5, AHEAD)
    return (loss.sum(-1) * later).sum(1).mean() / later.sum()


set_seed(77)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = Forecaster()
optimizer = torch.optim.NAdam(model.parameters(), lr=3e-3, weight_decay=1e-2, decoupled_weight_decay=True)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
loader = DataLoader(Waves(), batch_size=5, shuffle=True)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1, 2])
losses = []
debugger.start(model)
for past, truth in loader:
    with accelerator.accumulate(model):
        loss = pinball(model(past), truth)
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    losses.append(loss.item())
    if accelerator.sync_gradients:
        debugger.stop()
        debugger.step()
        if len(losses) >= 6:
            break
        debugger.start(model)
