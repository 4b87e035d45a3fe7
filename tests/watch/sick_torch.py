"""A small model whose training can be made sick at a known step, on PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from msprobe.pytorch import Monitor


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(16, 16)
        self.scale = 1.0

    def forward(self, x):
        return torch.relu(self.fc(x)) * self.scale


class Experts(nn.Module):
    """Two experts, chosen by a router for each row; even and odd rows lean to different ones, so that both are used."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(16, 2)
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))

    def forward(self, x):
        lean = torch.tensor([[2.0, -2.0], [-2.0, 2.0]]).repeat(len(x) // 2, 1)
        gate = torch.softmax(self.router(x) + lean, -1)
        chosen = gate.argmax(-1)
        parts = [F.linear(x, e.weight, e.bias) * gate[:, n : n + 1] for n, e in enumerate(self.experts)]
        return x + torch.where(chosen[:, None] == 0, parts[0], parts[1])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*(Block() for _ in range(3)))
        self.moe = Experts()
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        return self.head(self.moe(self.blocks(x)))


class Training:
    """What a plant may change: model, optimizer, data, loss and gradients."""

    def __init__(self, seed=0, dead_column=False):
        torch.manual_seed(seed)
        self.model = Net()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3)
        self.data = torch.Generator().manual_seed(seed + 1)
        self.teacher = torch.randn(16, 4, generator=torch.Generator().manual_seed(99))
        self.dead_column = dead_column
        self.factor = 1.0
        self.clip = None
        self.poison = False

    def step(self):
        x = torch.randn(32, 16, generator=self.data)
        if self.dead_column:
            x[:, 3] = 0
        y = (x @ self.teacher).argmax(-1)
        if self.poison:
            x[0, 0] = float("nan")
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x), y)
        (loss * self.factor).backward()
        if self.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        return loss.detach()


def run(path, plant, steps, config, seed=0, **options):
    """Trains; `plant(training, step)` is called before each step."""
    training = Training(seed, **options)
    monitor = Monitor(training.model, training.optimizer, {"dump_path": str(path), **config})
    for step in range(steps):
        plant(training, step)
        monitor.step(loss=training.step())
    monitor.close()
    return training


# Plants. Each changes the training at step K.

K = 60


def at(step):
    """Runs a change once, before step K."""
    return step == K


@torch.no_grad()
def exploding_layer(training, step):
    if at(step):
        training.model.blocks[1].fc.weight.mul_(1000)


@torch.no_grad()
def dead_relu(training, step):
    if at(step):
        training.model.blocks[1].fc.bias.fill_(-100)


def high_learning_rate(training, step):
    if at(step):
        training.optimizer.param_groups[0]["lr"] = 5.0


def weight_decay(training, step):
    if at(step):
        training.optimizer.param_groups[0]["weight_decay"] = 20.0


def frozen_block(training, step):
    if at(step):
        frozen = {id(p) for p in training.model.blocks[1].parameters()}
        group = training.optimizer.param_groups[0]
        group["params"] = [p for p in group["params"] if id(p) not in frozen]


def underflow(training, step):
    if at(step):
        training.factor = 1e-7


def saturation(training, step):
    if at(step):
        training.model.blocks[1].scale = 1e4


def nan_data(training, step):
    training.poison = step == K


def adam_epsilon(training, step):
    training.optimizer.param_groups[0]["eps"] = 0.0


def clipped(training, step):
    training.clip = 1e-9 if step >= K else None


@torch.no_grad()
def router_collapse(training, step):
    if at(step):
        training.model.moe.router.bias.copy_(torch.tensor([1e4, -1e4]))


def vanishing(training, step):
    if at(step):
        training.model.blocks[1].scale = 1e-9
        with torch.no_grad():
            training.model.blocks[2].fc.bias.fill_(0.5)


@torch.no_grad()
def lost_state(training, step):
    if step >= K:
        for parameter in training.model.blocks[1].parameters():
            training.optimizer.state[parameter]["exp_avg_sq"].zero_()
            training.optimizer.param_groups[0]["eps"] = 1.0


def healthy(training, step):
    pass
