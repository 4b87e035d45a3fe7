"""Two networks that train against each other: spectral penalty, two Adams, a replay of fakes."""

import sys

import torch
import torch.nn.functional as F
from torch import nn

from msprobe.pytorch import PrecisionDebugger

torch.manual_seed(5)
generator = nn.Sequential(nn.Linear(6, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 12), nn.Tanh())
critic = nn.Sequential(nn.Linear(12, 24), nn.LeakyReLU(0.2), nn.Linear(24, 24), nn.LeakyReLU(0.2), nn.Linear(24, 1))
for module in [*generator, *critic]:
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, 0.0, 0.2)
        nn.init.zeros_(module.bias)
models = [generator, critic]
optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
optimizer_d = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.999))
reals, latents = torch.randn(2, 8, 12), torch.randn(2, 2, 8, 6)
mixes = torch.rand(2, 8, 1)
losses = []
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1])
for step in range(2):
    debugger.start([generator, critic])
    real = reals[step]
    with torch.no_grad():
        fake = generator(latents[step, 0])
    d_loss = F.softplus(-critic(real)).mean() + F.softplus(critic(fake)).mean()
    between = (mixes[step] * real + (1 - mixes[step]) * fake).requires_grad_(True)
    (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    penalty = (slope.norm(2, dim=1) - 1).square().mean()
    optimizer_d.zero_grad()
    (d_loss + 10.0 * penalty).backward()
    optimizer_d.step()
    fake = generator(latents[step, 1])
    g_loss = F.softplus(-critic(fake)).mean()
    optimizer_g.zero_grad()
    g_loss.backward()
    optimizer_g.step()
    debugger.stop()
    debugger.step()
    losses += [d_loss.item(), penalty.item(), g_loss.item()]
