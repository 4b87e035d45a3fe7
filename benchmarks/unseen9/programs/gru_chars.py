"""A character model: a GRU written by hand, packed targets with padding, own AdamW, cosine schedule."""

import math
import sys

import torch
import torch.nn.functional as F
from torch import nn

from msprobe.pytorch import PrecisionDebugger

torch.manual_seed(11)


class Cell(nn.Module):
    def __init__(self, inputs, hidden):
        super().__init__()
        self.to_gates = nn.Linear(inputs, 3 * hidden)
        self.from_state = nn.Linear(hidden, 3 * hidden)

    def forward(self, x, state):
        a = self.to_gates(x)
        b = self.from_state(state)
        ar, az, an = a.chunk(3, dim=-1)
        br, bz, bn = b.chunk(3, dim=-1)
        reset = torch.sigmoid(ar + br)
        update = torch.sigmoid(az + bz)
        new = torch.tanh(an + reset * bn)
        return (1 - update) * new + update * state


class CharModel(nn.Module):
    def __init__(self, vocabulary=40, width=24, hidden=32, layers=2):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=0)
        self.cells = nn.ModuleList(Cell(width if i == 0 else hidden, hidden) for i in range(layers))
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, vocabulary)
        self.hidden = hidden

    def forward(self, tokens):
        x = self.embedding(tokens) * math.sqrt(self.embedding.embedding_dim)
        states = [x.new_zeros(x.shape[0], self.hidden) for _ in self.cells]
        outputs = []
        for t in range(x.shape[1]):
            value = x[:, t]
            for i, cell in enumerate(self.cells):
                states[i] = cell(value, states[i])
                value = states[i]
            outputs.append(value)
        hidden = torch.stack(outputs, dim=1)
        return self.head(self.norm(hidden))


class OwnAdamW(torch.optim.Optimizer):
    def __init__(self, params, lr, betas=(0.9, 0.98), eps=1e-8, decay=0.05):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "decay": decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            first, second = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(t=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
                state["t"] += 1
                state["m"].mul_(first).add_(p.grad, alpha=1 - first)
                state["v"].mul_(second).addcmul_(p.grad, p.grad, value=1 - second)
                mean = state["m"] / (1 - first ** state["t"])
                spread = state["v"] / (1 - second ** state["t"])
                p.mul_(1 - group["lr"] * group["decay"])
                p.addcdiv_(mean, spread.sqrt().add_(group["eps"]), value=-group["lr"])


def batch(step):
    chooser = torch.Generator().manual_seed(100 + step)
    tokens = torch.randint(1, 40, (6, 13), generator=chooser)
    lengths = torch.tensor([13, 12, 9, 13, 7, 10])
    tokens[torch.arange(13)[None] >= lengths[:, None]] = 0
    return tokens[:, :-1], tokens[:, 1:]


def loss_of(logits, targets):
    loss = F.cross_entropy(logits.reshape(-1, 40), targets.reshape(-1), ignore_index=0)
    confidence = torch.logsumexp(logits, dim=-1).square()
    return loss + 1e-3 * confidence[targets != 0].mean()


model = CharModel()
optimizer = OwnAdamW(model.parameters(), lr=5e-3)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * step / 10)))
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1, 2])
losses = []
for step in range(3):
    debugger.start(model)
    inputs, targets = batch(step)
    loss = loss_of(model(inputs), targets)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    losses.append(loss.item())
    debugger.stop()
    debugger.step()
