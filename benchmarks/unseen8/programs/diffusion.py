"""A small UNet that predicts noise: group norms, time embedding, skip connections, weights averaged."""

import copy
import math
import sys

import torch
import torch.nn.functional as F
from torch import nn

from msprobe.pytorch import PrecisionDebugger

torch.manual_seed(4)
STEPS = 50


def time_embedding(t, width=16):
    frequencies = torch.exp(-math.log(10000) * torch.arange(width // 2) / (width // 2))
    angles = t[:, None] * frequencies[None]
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


class Res(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(4, inputs), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time = nn.Linear(16, 2 * outputs)
        self.norm2, self.conv2 = nn.GroupNorm(4, outputs), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x, emb):
        h = self.conv1(F.silu(self.norm1(x)))
        scale, shift = self.time(emb)[:, :, None, None].chunk(2, dim=1)
        h = self.norm2(h) * (1 + scale) + shift
        h = self.conv2(F.silu(h))
        return h + self.skip(x)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 16))
        self.inp = nn.Conv2d(1, 8, 3, padding=1)
        self.down1, self.down2 = Res(8, 8), Res(8, 16)
        self.middle = Res(16, 16)
        self.up2, self.up1 = Res(32, 8), Res(16, 8)
        self.out = nn.Conv2d(8, 1, 3, padding=1)

    def forward(self, x, t):
        emb = self.time(time_embedding(t))
        a = self.down1(self.inp(x), emb)
        b = self.down2(F.avg_pool2d(a, 2), emb)
        m = self.middle(F.avg_pool2d(b, 2), emb)
        u = F.interpolate(m, scale_factor=2, mode="nearest")
        u = self.up2(torch.cat([u, b], dim=1), emb)
        u = F.interpolate(u, scale_factor=2, mode="nearest")
        u = self.up1(torch.cat([u, a], dim=1), emb)
        return self.out(F.silu(u))


model = UNet()
ema = copy.deepcopy(model).requires_grad_(False)
models = [model, ema]
betas = torch.linspace(1e-4, 0.02, STEPS)
alphas_bar = torch.cumprod(1 - betas, dim=0)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
clean = torch.randn(2, 6, 1, 8, 8)
times = torch.randint(0, STEPS, (2, 6))
noises = torch.randn(2, 6, 1, 8, 8)
losses = []
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1])
for step in range(2):
    debugger.start(model)
    t, noise = times[step], noises[step]
    a = alphas_bar[t][:, None, None, None]
    noisy = a.sqrt() * clean[step] + (1 - a).sqrt() * noise
    predicted = model(noisy, t.to(noisy.dtype))
    snr = alphas_bar[t] / (1 - alphas_bar[t])
    weight = torch.clamp(snr, max=5.0) / snr
    loss = (weight * F.mse_loss(predicted, noise, reduction="none").mean((1, 2, 3))).mean()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    with torch.no_grad():
        for e, p in zip(ema.parameters(), model.parameters()):
            e.lerp_(p, 1 - 0.95)
    debugger.stop()
    debugger.step()
    losses.append(loss.item())
