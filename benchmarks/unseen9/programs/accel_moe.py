"""accelerate: a transformer with a mixture of experts, gradient accumulation, router losses, fused AdamW."""

import sys

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn

from msprobe.pytorch import PrecisionDebugger

torch.manual_seed(121)


class Experts(nn.Module):
    def __init__(self, width, hidden, count, chosen):
        super().__init__()
        self.router = nn.Linear(width, count, bias=False)
        self.up = nn.Parameter(torch.randn(count, width, 2 * hidden) * 0.1)
        self.down = nn.Parameter(torch.randn(count, hidden, width) * 0.1)
        self.count, self.chosen = count, chosen
        self.aux = None

    def forward(self, x):
        flat = x.flatten(0, -2)
        logits = self.router(flat)
        probabilities = logits.softmax(dim=-1)
        weights, picked = torch.topk(probabilities, self.chosen, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(flat)
        for i in range(self.count):
            rows, slots = torch.where(picked == i)
            gate, up = (flat[rows] @ self.up[i]).chunk(2, dim=-1)
            result = (F.silu(gate) * up) @ self.down[i]
            out = out.index_add(0, rows, result * weights[rows, slots, None])
        share = F.one_hot(picked, self.count).to(flat.dtype).sum(1).mean(0) / self.chosen
        balance = self.count * (share * probabilities.mean(0)).sum()
        self.aux = balance + 1e-2 * torch.logsumexp(logits, -1).square().mean()
        return out.view_as(x)


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight


class Layer(nn.Module):
    def __init__(self, width=32, heads=4):
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(width), RMSNorm(width)
        self.q_norm, self.k_norm = RMSNorm(width // heads), RMSNorm(width // heads)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.experts = Experts(width, 24, 4, 2)
        self.heads = heads
        slopes = 2.0 ** -(8.0 * torch.arange(1, heads + 1) / heads)
        self.register_buffer("slopes", slopes, persistent=False)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in (q, k, v))
        q, k = self.q_norm(q), self.k_norm(k)
        places = torch.arange(x.shape[1])
        apart = places[None, :] - places[:, None]
        bias = self.slopes[:, None, None] * apart
        bias = bias.masked_fill(apart > 0, float("-inf"))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.experts(self.norm2(x))


class Model(nn.Module):
    def __init__(self, vocabulary=48, width=32):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(2))
        self.norm = RMSNorm(width)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        logits = F.linear(self.norm(x), self.embedding.weight)
        return 15 * torch.tanh(logits / 15)


def batches(step):
    chooser = torch.Generator().manual_seed(step + 77)
    return torch.randint(0, 48, (2, 4, 12), generator=chooser)


accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.8)
model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1, 2])
losses = []
for step in range(3):
    debugger.start(model)
    for tokens in batches(step):
        with accelerator.accumulate(model):
            logits = model(tokens)
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
            aux = sum(layer.experts.aux for layer in model.layers) / len(model.layers)
            accelerator.backward(loss + 0.02 * aux)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    debugger.stop()
    debugger.step()
