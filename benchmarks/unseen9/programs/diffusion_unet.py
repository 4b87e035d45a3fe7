"""A denoising diffusion model: a U-net with time embedding and attention, cosine schedule, EMA of the weights."""

import copy
import math
import sys

import torch
import torch.nn.functional as F
from torch import nn

from msprobe.pytorch import PrecisionDebugger

torch.manual_seed(21)
STEPS = 100


def time_embedding(t, width):
    half = width // 2
    frequencies = torch.exp(-math.log(10000.0) * torch.arange(half) / half)
    angles = t[:, None] * frequencies[None]
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


class ResBlock(nn.Module):
    def __init__(self, inputs, outputs, time_width):
        super().__init__()
        self.norm1 = nn.GroupNorm(4, inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time = nn.Linear(time_width, 2 * outputs)
        self.norm2 = nn.GroupNorm(4, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x, time):
        h = self.conv1(F.silu(self.norm1(x)))
        scale, shift = self.time(F.silu(time))[:, :, None, None].chunk(2, dim=1)
        h = self.norm2(h) * (1 + scale) + shift
        h = self.conv2(F.silu(h))
        return self.skip(x) + h


class Attention(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.GroupNorm(4, channels)
        self.qkv = nn.Conv2d(channels, 3 * channels, 1)
        self.out = nn.Conv2d(channels, channels, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(b, 3, c, h * w).unbind(1)
        weights = torch.softmax(torch.einsum("bci,bcj->bij", q, k) / math.sqrt(c), dim=-1)
        mixed = torch.einsum("bij,bcj->bci", weights, v)
        return x + self.out(mixed.reshape(b, c, h, w))


class UNet(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.width = width
        self.time_mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, 4 * width))
        self.inp = nn.Conv2d(3, width, 3, padding=1)
        self.down1 = ResBlock(width, width, 4 * width)
        self.shrink = nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.down2 = ResBlock(width, 2 * width, 4 * width)
        self.attention = Attention(2 * width)
        self.up = nn.Conv2d(2 * width, width, 3, padding=1)
        self.up1 = ResBlock(2 * width, width, 4 * width)
        self.out_norm = nn.GroupNorm(4, width)
        self.out = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x, t):
        time = self.time_mlp(time_embedding(t, self.width))
        first = self.down1(self.inp(x), time)
        low = self.down2(self.shrink(first), time)
        low = self.attention(low)
        high = self.up(F.interpolate(low, scale_factor=2, mode="nearest"))
        high = self.up1(torch.cat([high, first], dim=1), time)
        return self.out(F.silu(self.out_norm(high)))


def signal_levels():
    ticks = torch.arange(STEPS + 1) / STEPS
    curve = torch.cos((ticks + 0.008) / 1.008 * math.pi / 2) ** 2
    betas = torch.clamp(1 - curve[1:] / curve[:-1], max=0.999)
    return torch.cumprod(1 - betas, dim=0)


model = UNet()
with torch.no_grad():
    model.out.weight.mul_(0.5)
ema = copy.deepcopy(model).requires_grad_(False)
levels = signal_levels()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1, 2])
losses = []
models = [model, ema]
for step in range(3):
    debugger.start(model=[model, ema])
    chooser = torch.Generator().manual_seed(step)
    clean = torch.randn(4, 3, 8, 8, generator=chooser).tanh()
    noise = torch.randn(4, 3, 8, 8, generator=chooser)
    t = torch.randint(0, STEPS, (4,), generator=chooser)
    level = levels[t].view(-1, 1, 1, 1)
    noisy = level.sqrt() * clean + (1 - level).sqrt() * noise
    guess = model(noisy, t)
    snr = level.flatten() / (1 - level.flatten())
    weight = torch.clamp(snr, max=5.0) / snr
    loss = (weight * F.mse_loss(guess, noise, reduction="none").mean((1, 2, 3))).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    with torch.no_grad():
        for slow, fast in zip(ema.parameters(), model.parameters()):
            slow.mul_(0.9).add_(fast, alpha=0.1)
        again = ema(noisy, t)
        distance = F.mse_loss(again, noise)
    losses.append(loss.item())
    debugger.stop()
    debugger.step()
