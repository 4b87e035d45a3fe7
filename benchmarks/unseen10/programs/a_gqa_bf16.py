"""A decoder with rotary embeddings and grouped-query attention, trained in bfloat16 with float32 master weights."""

import sys

import torch
from torch import nn
from torch.nn import functional as F

from msprobe.pytorch import PrecisionDebugger

DTYPE = torch.bfloat16
WIDTH, QUERY_HEADS, KV_HEADS, HEAD = 48, 6, 2, 8
WORDS, LENGTH = 50, 12


def rotary_table(length, size, base=10000.0):
    frequencies = base ** (-torch.arange(0, size, 2, dtype=torch.float32) / size)
    angles = torch.arange(length, dtype=torch.float32)[:, None] * frequencies
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def rotate(x, cos, sin):
    left, right = x.chunk(2, dim=-1)
    turned = torch.cat([-right, left], dim=-1)
    return (x.float() * cos + turned.float() * sin).to(x.dtype)


class RMSNorm(nn.Module):
    def __init__(self, width, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return wide.to(x.dtype) * self.weight


class GroupedAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Linear(WIDTH, QUERY_HEADS * HEAD, bias=False)
        self.key = nn.Linear(WIDTH, KV_HEADS * HEAD, bias=False)
        self.value = nn.Linear(WIDTH, KV_HEADS * HEAD, bias=False)
        self.output = nn.Linear(QUERY_HEADS * HEAD, WIDTH, bias=False)

    def forward(self, x, cos, sin):
        batch, length, _ = x.shape
        q = self.query(x).view(batch, length, QUERY_HEADS, HEAD).transpose(1, 2)
        k = self.key(x).view(batch, length, KV_HEADS, HEAD).transpose(1, 2)
        v = self.value(x).view(batch, length, KV_HEADS, HEAD).transpose(1, 2)
        q = rotate(q, cos, sin)
        k = rotate(k, cos, sin)
        k = k.repeat_interleave(QUERY_HEADS // KV_HEADS, dim=1)
        v = v.repeat_interleave(QUERY_HEADS // KV_HEADS, dim=1)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.output(mixed.transpose(1, 2).reshape(batch, length, -1))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before_attention = RMSNorm(WIDTH)
        self.attention = GroupedAttention()
        self.before_feed = RMSNorm(WIDTH)
        self.gate = nn.Linear(WIDTH, 96, bias=False)
        self.up = nn.Linear(WIDTH, 96, bias=False)
        self.down = nn.Linear(96, WIDTH, bias=False)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.before_attention(x), cos, sin)
        y = self.before_feed(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.final = RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        cos, sin = rotary_table(LENGTH, HEAD)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.head(self.final(x))


def token_loss(logits, ids):
    logits = logits.float()
    return F.cross_entropy(logits[:, :-1].reshape(-1, WORDS), ids[:, 1:].reshape(-1))


torch.manual_seed(404)
model = Decoder()
for weight in model.parameters():
    if weight.dim() > 1:
        nn.init.normal_(weight, std=0.2)
    weight.data = weight.data.to(DTYPE)
masters = [weight.detach().float().clone().requires_grad_() for weight in model.parameters()]
optimizer = torch.optim.AdamW(masters, lr=8e-4, betas=(0.9, 0.95), weight_decay=0.05)
chooser = torch.Generator().manual_seed(12)
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1, 2])
losses = []
for _ in range(3):
    debugger.start(model)
    ids = torch.randint(0, WORDS, (8, LENGTH), generator=chooser)
    loss = token_loss(model(ids), ids)
    loss.backward()
    for master, weight in zip(masters, model.parameters()):
        master.grad = weight.grad.float()
        weight.grad = None
    nn.utils.clip_grad_norm_(masters, 1.0)
    optimizer.step()
    with torch.no_grad():
        for master, weight in zip(masters, model.parameters()):
            weight.copy_(master)
    losses.append(loss.item())
    debugger.stop()
    debugger.step()
