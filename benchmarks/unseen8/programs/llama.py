"""A small Llama: RMSNorm, rotary positions, grouped queries, SwiGLU, a sliding window; bias-free."""

import sys

import torch
import torch.nn.functional as F
from torch import nn

from msprobe.pytorch import PrecisionDebugger

torch.manual_seed(1)
VOCAB, WIDTH, HEADS, GROUPS, LENGTH, WINDOW = 50, 32, 4, 2, 10, 5
HEAD = WIDTH // HEADS


class RMSNorm(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(WIDTH)), eps

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


def rotary(length):
    frequencies = 10000.0 ** (-torch.arange(0, HEAD, 2) / HEAD)
    angles = torch.arange(length)[:, None] * frequencies[None, :]
    return torch.cat([angles, angles], dim=-1).cos(), torch.cat([angles, angles], dim=-1).sin()


def rotate_half(x):
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.k_proj = nn.Linear(WIDTH, GROUPS * HEAD, bias=False)
        self.v_proj = nn.Linear(WIDTH, GROUPS * HEAD, bias=False)
        self.o_proj = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x, cos, sin, mask):
        b, t, _ = x.shape
        q = self.q_proj(x).view(b, t, HEADS, HEAD).transpose(1, 2)
        k = self.k_proj(x).view(b, t, GROUPS, HEAD).transpose(1, 2)
        v = self.v_proj(x).view(b, t, GROUPS, HEAD).transpose(1, 2)
        q = q * cos + rotate_half(q) * sin
        k = k * cos + rotate_half(k) * sin
        k = k.repeat_interleave(HEADS // GROUPS, dim=1)
        v = v.repeat_interleave(HEADS // GROUPS, dim=1)
        scores = torch.matmul(q, k.transpose(2, 3)) * HEAD**-0.5 + mask
        probabilities = F.softmax(scores, dim=-1)
        y = torch.matmul(probabilities, v).transpose(1, 2).reshape(b, t, WIDTH)
        return self.o_proj(y)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj = nn.Linear(WIDTH, 48, bias=False)
        self.up_proj = nn.Linear(WIDTH, 48, bias=False)
        self.down_proj = nn.Linear(48, WIDTH, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.input_norm, self.attention = RMSNorm(), Attention()
        self.post_norm, self.mlp = RMSNorm(), Mlp()

    def forward(self, x, cos, sin, mask):
        x = x + self.attention(self.input_norm(x), cos, sin, mask)
        return x + self.mlp(self.post_norm(x))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.norm, self.head = RMSNorm(), nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, ids):
        t = ids.shape[1]
        x = self.embed(ids)
        cos, sin = rotary(t)
        distance = torch.arange(t)[:, None] - torch.arange(t)[None, :]
        allowed = (distance >= 0) & (distance < WINDOW)
        mask = torch.zeros(t, t).masked_fill(~allowed, torch.finfo(torch.float32).min)
        for layer in self.layers:
            x = layer(x, cos, sin, mask)
        return self.head(self.norm(x))


model = Llama()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda count: 0.5**count)
ids = torch.randint(1, VOCAB, (2, 4, LENGTH))
ids[:, 0, 7:] = 0  # padding
losses = []
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1])
for step in range(2):
    debugger.start(model)
    logits = model(ids[step])
    targets = ids[step].masked_fill(ids[step] == 0, -100)
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), targets[:, 1:].flatten(), ignore_index=-100)
    loss.backward()
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad(set_to_none=True)
    debugger.stop()
    debugger.step()
    losses.append(loss.item())
