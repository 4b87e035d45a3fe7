"""A recurrent forecaster in chunks: carried states, running scales in buffers, a gap loss, own momentum by hand."""

import sys

import torch
from torch import nn
from torch.nn import functional as F

from msprobe.pytorch import PrecisionDebugger

SERIES, CHUNK, ROWS, WIDTH, STEPS, CHUNKS = 4, 8, 5, 20, 2, 2


class Scaler(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(SERIES))
        self.register_buffer("square", torch.ones(SERIES))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                self.count += 1
                self.mean.mul_(0.8).add_(x.mean((0, 1)), alpha=0.2)
                self.square.mul_(0.8).add_(x.square().mean((0, 1)), alpha=0.2)
        spread = (self.square - self.mean.square()).clamp(min=1e-4).sqrt()
        return (x - self.mean) / spread


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.scaler = Scaler()
        self.enter = nn.utils.parametrizations.weight_norm(nn.Linear(SERIES, WIDTH))
        self.cell = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.query = nn.Linear(WIDTH, WIDTH, bias=False)
        self.norm = nn.LayerNorm(WIDTH)
        self.mean = nn.Linear(WIDTH, SERIES)
        self.spread = nn.Linear(WIDTH, SERIES)

    def forward(self, x, state):
        x = torch.tanh(self.enter(self.scaler(x)))
        x, state = self.cell(x, state)
        scores = self.query(x) @ x.transpose(1, 2) / WIDTH**0.5
        scores = scores.masked_fill(torch.ones(CHUNK, CHUNK).triu(1).bool(), -1e9)
        x = self.norm(x + scores.softmax(-1) @ x)
        return self.mean(x), F.softplus(self.spread(x)) + 1e-3, state


def likelihood(mean, spread, goal, known):
    each = 0.5 * ((goal - mean) / spread).square() + spread.log()
    return (each * known).sum() / known.sum()


def update(params, speeds, rate):
    with torch.no_grad():
        for p, speed in zip(params, speeds):
            speed.mul_(0.9).add_(p.grad)
            p.sub_(speed, alpha=rate)


torch.manual_seed(113)
model = Forecaster()
params = list(model.parameters())
speeds = [torch.zeros_like(p) for p in params]
series = torch.randn(STEPS, ROWS, CHUNKS * CHUNK + 1, SERIES).cumsum(2)
known = (torch.rand(STEPS, ROWS, CHUNKS * CHUNK, SERIES) > 0.2).to(series.dtype)
losses = []
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1])
for step in range(STEPS):
    debugger.start(model)
    state = (torch.zeros(1, ROWS, WIDTH), torch.zeros(1, ROWS, WIDTH))
    total = 0.0
    for chunk in range(CHUNKS):
        part = slice(chunk * CHUNK, (chunk + 1) * CHUNK)
        x, goal = series[step, :, :-1][:, part], series[step, :, 1:][:, part]
        mean, spread, state = model(x, state)
        state = tuple(one.detach() for one in state)
        smooth = (mean[:, 1:] - mean[:, :-1]).abs().mean()
        loss = likelihood(mean, spread, goal, known[step, :, part]) + 0.1 * smooth
        (loss / CHUNKS).backward()
        total += loss.item() / CHUNKS
    nn.utils.clip_grad_norm_(params, 5.0)
    update(params, speeds, 0.02)
    for p in params:
        p.grad = None
    losses.append(total)
    debugger.stop()
    debugger.step()
