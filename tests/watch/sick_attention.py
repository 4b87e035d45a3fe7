"""A small transformer whose low-precision health can be broken at a known step, on PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from msprobe.pytorch import Monitor

K = 60
HEALTH = ["attention_logits", "outliers", "quantisation"]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(16), nn.LayerNorm(16)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.factor = 1.0

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).reshape(*x.shape[:2], 3, 2, 8).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.norm2(x)) * self.factor))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(16, 16)
        self.blocks = nn.Sequential(Block(), Block())
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 16)

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.tokens(x))))


class Training:
    """What a plant may change."""

    def __init__(self, scaler=None):
        torch.manual_seed(0)
        self.model = Net()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 3e-3)
        self.data = torch.Generator().manual_seed(1)
        self.scaler = scaler or torch.amp.GradScaler("cpu", enabled=False)
        self.factor = 1.0

    def step(self):
        start = torch.randint(16, (8, 1), generator=self.data)
        steps = 3 + (torch.rand(8, 12, generator=self.data) < 0.2).long()
        x = (start + torch.cat([torch.zeros(8, 1).long(), steps.cumsum(1)], 1)) % 16
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
        self.scaler.scale(loss * self.factor).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.detach()


def run(path, plant=lambda training, step: None, steps=100, scaler=None, **config):
    """Trains; `plant(training, step)` is called before each step."""
    training = Training(scaler)
    monitor = None
    if path is not None:
        monitor = Monitor(training.model, training.optimizer, {"dump_path": str(path), **config}, scaler=scaler)
    losses = []
    for step in range(steps):
        plant(training, step)
        losses.append(training.step())
        if monitor is not None:
            monitor.step(loss=losses[-1])
    if monitor is not None:
        monitor.close()
    return [loss.item().hex() for loss in losses], [one.detach() for one in training.model.parameters()]


@torch.no_grad()
def large_queries(training, step):
    if step == K:
        training.model.blocks[1].qkv.weight[:16].mul_(40)
        training.model.blocks[1].qkv.weight[16:32].mul_(40)


@torch.no_grad()
def massive_channel(training, step):
    if step == K:
        training.model.blocks[0].down.bias[3] = 5e3


def jumping_scale(training, step):
    training.model.blocks[1].factor = 1e4 if step == K else 1.0


def tiny_loss(training, step):
    if step == K:
        training.factor = 1e-8


def large_activations(training, step):
    if step == K:
        training.model.blocks[1].factor = 1e6


def overflowing_loss(training, step):
    training.factor = float("inf") if step >= K else 1.0
