"""A decoder in bfloat16 with float32 masters: RMSNorm, rotary positions, grouped queries, SwiGLU, z-loss."""

import sys

import torch
from torch import nn
from torch.nn import functional as F

from msprobe.pytorch import PrecisionDebugger

VOCAB, LENGTH, WIDTH, HEADS, GROUPS, ROWS = 67, 20, 64, 4, 2, 4
SIZE = WIDTH // HEADS


class RMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))
        self.eps = 1e-5

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


def rotary(length):
    inverse = 1.0 / (10000.0 ** (torch.arange(0, SIZE, 2).float() / SIZE))
    angles = torch.outer(torch.arange(length).float(), inverse)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def turn(x, cosine, sine):
    half = x.shape[-1] // 2
    turned = torch.cat([-x[..., half:], x[..., :half]], dim=-1)
    return (x.float() * cosine + turned.float() * sine).to(x.dtype)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(WIDTH, WIDTH, bias=False)
        self.k = nn.Linear(WIDTH, GROUPS * SIZE, bias=False)
        self.v = nn.Linear(WIDTH, GROUPS * SIZE, bias=False)
        self.o = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x, cosine, sine):
        rows, length, _ = x.shape
        q = self.q(x).view(rows, length, HEADS, SIZE).transpose(1, 2)
        k = self.k(x).view(rows, length, GROUPS, SIZE).transpose(1, 2)
        v = self.v(x).view(rows, length, GROUPS, SIZE).transpose(1, 2)
        q, k = turn(q, cosine, sine), turn(k, cosine, sine)
        k = k.repeat_interleave(HEADS // GROUPS, dim=1)
        v = v.repeat_interleave(HEADS // GROUPS, dim=1)
        scores = (q @ k.transpose(-2, -1)).float() * SIZE**-0.5
        scores = scores + torch.full((length, length), float("-inf")).triu(1)
        chances = scores.softmax(-1).to(v.dtype)
        return self.o((chances @ v).transpose(1, 2).reshape(rows, length, WIDTH))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = RMSNorm()
        self.attention = Attention()
        self.norm2 = RMSNorm()
        self.gate = nn.Linear(WIDTH, 128, bias=False)
        self.up = nn.Linear(WIDTH, 128, bias=False)
        self.down = nn.Linear(128, WIDTH, bias=False)

    def forward(self, x, cosine, sine):
        x = x + self.attention(self.norm1(x), cosine, sine)
        normal = self.norm2(x)
        return x + self.down(F.silu(self.gate(normal)) * self.up(normal))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm = RMSNorm()
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, ids):
        cosine, sine = rotary(ids.shape[1])
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x, cosine, sine)
        return self.head(self.norm(x))


torch.manual_seed(41)
model = Decoder()
for p in model.parameters():
    if p.dim() > 1:
        nn.init.normal_(p, std=0.12)
masters = [p.detach().clone().float().requires_grad_() for p in model.parameters()]
model.to(torch.bfloat16)
optimizer = torch.optim.AdamW(masters, lr=4e-3, betas=(0.9, 0.95), weight_decay=0.1)
data = torch.randint(0, VOCAB, (2, ROWS, LENGTH + 1))
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1])
losses = []
for batch in data:
    debugger.start(model)
    logits = model(batch[:, :-1]).float()
    loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
    loss = loss + 1e-2 * logits.logsumexp(-1).square().mean()
    loss.backward()
    for master, p in zip(masters, model.parameters()):
        master.grad = p.grad.float()
        p.grad = None
    torch.nn.utils.clip_grad_norm_(masters, 1.0)
    optimizer.step()
    with torch.no_grad():
        for master, p in zip(masters, model.parameters()):
            p.copy_(master)
    losses.append(loss.item())
    debugger.stop()
    debugger.step()
