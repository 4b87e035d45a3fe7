"""A diffusion transformer: class and time conditions, adaptive norms, velocity goals, weights by SNR, an average."""

import copy
import math
import sys

import torch
from torch import nn
from torch.nn import functional as F

from msprobe.pytorch import PrecisionDebugger

SIZE, PATCH, WIDTH, HEADS, CLASSES, TIMES, ROWS, STEPS = 8, 2, 32, 4, 5, 100, 6, 2
PLACES = (SIZE // PATCH) ** 2


def waves(times):
    rates = torch.exp(-math.log(10000) * torch.arange(16) / 16)
    angles = times[:, None] * rates
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH, elementwise_affine=False, eps=1e-6)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(approximate="tanh"), nn.Linear(64, WIDTH))
        self.change = nn.Sequential(nn.SiLU(), nn.Linear(WIDTH, 6 * WIDTH))

    def attend(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        chances = (q @ k.transpose(-2, -1) / math.sqrt(WIDTH // HEADS)).softmax(-1)
        return self.out((chances @ v).transpose(1, 2).flatten(2))

    def forward(self, x, condition):
        shift1, scale1, gate1, shift2, scale2, gate2 = self.change(condition)[:, None].chunk(6, dim=-1)
        x = x + gate1 * self.attend(self.norm(x) * (1 + scale1) + shift1)
        return x + gate2 * self.mlp(self.norm(x) * (1 + scale2) + shift2)


class DiT(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Conv2d(2, WIDTH, PATCH, stride=PATCH)
        self.places = nn.Parameter(torch.randn(1, PLACES, WIDTH) * 0.1)
        self.time = nn.Sequential(nn.Linear(32, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.classes = nn.Embedding(CLASSES + 1, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH, elementwise_affine=False, eps=1e-6)
        self.leave = nn.Linear(WIDTH, 2 * PATCH * PATCH)

    def forward(self, images, times, kinds):
        x = self.enter(images).flatten(2).transpose(1, 2) + self.places
        condition = self.time(waves(times)) + self.classes(kinds)
        for block in self.blocks:
            x = block(x, condition)
        x = self.leave(self.norm(x)).view(-1, SIZE // PATCH, SIZE // PATCH, 2, PATCH, PATCH)
        return x.permute(0, 3, 1, 4, 2, 5).reshape(-1, 2, SIZE, SIZE)


torch.manual_seed(101)
model = DiT()
average = copy.deepcopy(model).requires_grad_(False)
models = [model, average]
betas = torch.linspace(1e-3, 0.06, TIMES)
kept = torch.cumprod(1 - betas, 0)
images = torch.randn(STEPS, ROWS, 2, SIZE, SIZE)
labels = torch.randint(0, CLASSES, (STEPS, ROWS))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.0)
generator = torch.Generator().manual_seed(7)
losses = []
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1])
for clean, kinds in zip(images, labels):
    debugger.start(models)
    times = torch.randint(0, TIMES, (ROWS,), generator=generator)
    noise = torch.randn(clean.shape, generator=generator)
    forgotten = torch.rand(ROWS, generator=generator) < 0.3
    kinds = torch.where(forgotten, CLASSES, kinds)
    share = kept[times].view(-1, 1, 1, 1)
    noisy = share.sqrt() * clean + (1 - share).sqrt() * noise
    goal = share.sqrt() * noise - (1 - share).sqrt() * clean
    found = model(noisy, times, kinds)
    ratio = kept[times] / (1 - kept[times])
    weight = ratio.clamp(max=5.0) / (ratio + 1)
    loss = (weight * F.mse_loss(found, goal, reduction="none").mean((1, 2, 3))).mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(average.parameters(), model.parameters()):
            slow.lerp_(fast, 0.05)
    losses.append(loss.item())
    debugger.stop()
    debugger.step()
