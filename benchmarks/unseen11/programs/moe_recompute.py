"""A mixture of experts: top-2 routing, balance and router losses, recomputed blocks, two micro-batches."""

import sys

import torch
from torch import nn
from torch.nn import functional as F

from msprobe.pytorch import PrecisionDebugger

VOCAB, LENGTH, WIDTH, EXPERTS, CHOSEN, ROWS, PARTS, STEPS = 47, 12, 32, 4, 2, 3, 2, 2


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.randn(EXPERTS, WIDTH, 48) * 0.15)
        self.down = nn.Parameter(torch.randn(EXPERTS, 48, WIDTH) * 0.15)

    def forward(self, x):
        flat = x.flatten(0, 1)
        logits = self.router(flat)
        chances = logits.softmax(-1)
        weight, index = chances.topk(CHOSEN, dim=-1)
        weight = weight / weight.sum(-1, keepdim=True)
        result = torch.zeros_like(flat)
        for expert in range(EXPERTS):
            row, place = torch.where(index == expert)
            hidden = F.silu(flat[row] @ self.up[expert]) @ self.down[expert]
            result = result.index_add(0, row, hidden * weight[row, place, None])
        share = F.one_hot(index, EXPERTS).sum(1).to(chances.dtype).mean(0) / CHOSEN
        balance = EXPERTS * (share * chances.mean(0)).sum()
        size = logits.logsumexp(-1).square().mean()
        return result.view_as(x), balance, size


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.RMSNorm(WIDTH, eps=1e-6)
        self.mix = nn.Linear(LENGTH, LENGTH)
        self.norm2 = nn.RMSNorm(WIDTH, eps=1e-6)
        self.experts = Experts()
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        earlier = torch.ones(LENGTH, LENGTH).tril()
        mixed = F.linear(self.norm1(x).transpose(1, 2), self.mix.weight * earlier, self.mix.bias)
        x = x + self.drop(mixed.transpose(1, 2))
        result, balance, size = self.experts(self.norm2(x))
        return x + result, balance, size


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm = nn.RMSNorm(WIDTH, eps=1e-6)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, ids):
        x = self.tokens(ids)
        balances, sizes = [], []
        for block in self.blocks:
            x, balance, size = block(x)
            balances.append(balance)
            sizes.append(size)
        return self.head(self.norm(x)), torch.stack(balances).mean(), torch.stack(sizes).mean()


torch.manual_seed(83)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98), weight_decay=0.0)
data = torch.randint(0, VOCAB, (STEPS, PARTS, ROWS, LENGTH + 1))
losses = []
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1])
for parts in data:
    debugger.start(model)
    optimizer.zero_grad()
    total = 0.0
    for part in parts:
        logits, balance, size = model(part[:, :-1])
        entropy = F.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten())
        loss = (entropy + 0.02 * balance + 0.01 * size) / PARTS
        loss.backward()
        total += loss.item()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    losses.append(total)
    debugger.stop()
    debugger.step()
