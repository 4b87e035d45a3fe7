"""Sparse decoder on sums modulo a prime: two experts of four per token, a balance loss, AdamW in groups."""

import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

from msprobe.pytorch import PrecisionDebugger

P = 29
D, H, E, TOP, FF = 32, 4, 4, 2, 48
STEPS = 3


class Rms(nn.Module):
    def __init__(self, d, eps=1e-6):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(d))
        self.eps = eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.gain


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(D, 3 * D, bias=False)
        self.out = nn.Linear(D, D, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, H, D // H).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / (D // H) ** 0.5
        future = torch.ones(t, t, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
        mixed = scores.softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(b, t, D))


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_up = nn.Linear(D, 2 * FF, bias=False)
        self.down = nn.Linear(FF, D, bias=False)

    def forward(self, x):
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down(F.silu(gate) * up)


class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(D, E, bias=False)
        self.experts = nn.ModuleList([Expert() for _ in range(E)])

    def forward(self, x):
        flat = x.reshape(-1, D)
        probs = self.router(flat).softmax(-1)
        weight, index = probs.topk(TOP, -1)
        weight = weight / weight.sum(-1, keepdim=True)
        result = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            token, slot = (index == number).nonzero(as_tuple=True)
            result = result.index_add(0, token, weight[token, slot, None] * expert(flat[token]))
        used = F.one_hot(index, E).sum(1).to(probs.dtype).mean(0)
        self.balance = E * (used * probs.mean(0)).sum() / TOP
        return result.view_as(x)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attention = Rms(D), Attention()
        self.norm2, self.sparse = Rms(D), Sparse()

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.sparse(self.norm2(x))


class Decoder(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.tokens = nn.Embedding(P + 2, D)
        self.places = nn.Embedding(8, D)
        self.layers = nn.ModuleList([Layer() for _ in range(layers)])
        self.norm = Rms(D)
        self.head = nn.Linear(D, P + 2, bias=False)
        for name, p in self.named_parameters():
            if p.dim() > 1:
                std = 0.1 / (2 * layers) ** 0.5 if name.endswith(("out.weight", "down.weight")) else 0.1
                nn.init.normal_(p, std=std)

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def make_batch(step, size=16):
    g = torch.Generator().manual_seed(9000 + step)
    a = torch.randint(P, (size,), generator=g)
    b = torch.randint(P, (size,), generator=g)
    c = torch.randint(P, (size,), generator=g)
    plus, equals = torch.full_like(a, P), torch.full_like(a, P + 1)
    return torch.stack([a, plus, b, plus, c, equals, (a + b + c) % P], 1)


def objective(logits, ids, layers):
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    answer = F.cross_entropy(logits[:, -2], ids[:, -1])
    balance = sum(layer.sparse.balance for layer in layers) / len(layers)
    return loss + answer + 0.02 * balance


torch.manual_seed(31)
model = Decoder()
decay = [p for name, p in model.named_parameters() if p.dim() > 1 and "tokens" not in name and "places" not in name]
rest = [p for name, p in model.named_parameters() if p.dim() == 1 or "tokens" in name or "places" in name]
groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=4e-3, betas=(0.9, 0.95))
warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: (s + 1) / 4)
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=list(range(STEPS)))
losses = []
for step in range(STEPS):
    debugger.start(model)
    ids = make_batch(step)
    optimizer.zero_grad(set_to_none=True)
    loss = objective(model(ids), ids, model.layers)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    warmup.step()
    losses.append(loss.item())
    debugger.stop()
    debugger.step()
