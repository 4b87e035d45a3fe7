"""Contrastive learning: an image tower and a text tower, symmetric loss over the batch, a learned temperature."""

import math
import sys

import torch
import torch.nn.functional as F
from torch import nn

from msprobe.pytorch import PrecisionDebugger

torch.manual_seed(51)


class Block(nn.Module):
    def __init__(self, width, heads, causal):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.causal = causal

    def forward(self, x, padding=None):
        y = self.norm1(x)
        mask = None
        if self.causal:
            mask = torch.triu(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool), diagonal=1)
        y, _ = self.attention(y, y, y, attn_mask=mask, key_padding_mask=padding, need_weights=False)
        x = x + y
        return x + self.mlp(self.norm2(x))


class ImageTower(nn.Module):
    def __init__(self, width=32, out=24):
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, stride=4, bias=False)
        self.first = nn.Parameter(torch.randn(width) * 0.02)
        self.places = nn.Parameter(torch.randn(17, width) * 0.02)
        self.pre = nn.LayerNorm(width)
        self.blocks = nn.ModuleList(Block(width, 4, False) for _ in range(2))
        self.post = nn.LayerNorm(width)
        self.project = nn.Linear(width, out, bias=False)

    def forward(self, images):
        x = self.patch(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), 1, -1), x], dim=1) + self.places
        x = self.pre(x)
        for block in self.blocks:
            x = block(x)
        return self.project(self.post(x[:, 0]))


class TextTower(nn.Module):
    def __init__(self, width=32, out=24):
        super().__init__()
        self.words = nn.Embedding(60, width)
        self.places = nn.Parameter(torch.randn(10, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, 4, True) for _ in range(2))
        self.final = nn.LayerNorm(width)
        self.project = nn.Linear(width, out, bias=False)

    def forward(self, tokens):
        x = self.words(tokens) + self.places
        for block in self.blocks:
            x = block(x)
        x = self.final(x)
        end = x[torch.arange(len(x)), tokens.argmax(dim=-1)]
        return self.project(end)


class Clip(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.text = ImageTower(), TextTower()
        self.log_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, images, tokens):
        a = F.normalize(self.image(images), dim=-1)
        b = F.normalize(self.text(tokens), dim=-1)
        scale = self.log_scale.exp().clamp(max=100)
        logits = scale * a @ b.t()
        labels = torch.arange(len(a))
        return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2


def batch(step):
    chooser = torch.Generator().manual_seed(step + 3)
    images = torch.rand(8, 3, 16, 16, generator=chooser) * 2 - 1
    tokens = torch.randint(1, 59, (8, 10), generator=chooser)
    ends = torch.randint(4, 10, (8,), generator=chooser)
    tokens[torch.arange(8), ends] = 59
    return images, tokens.masked_fill(torch.arange(10) > ends[:, None], 0)


model = Clip()
slow = [p for name, p in model.named_parameters() if name == "log_scale" or p.ndim < 2]
fast = [p for name, p in model.named_parameters() if not (name == "log_scale" or p.ndim < 2)]
optimizer = torch.optim.AdamW(
    [{"params": slow, "weight_decay": 0.0}, {"params": fast, "weight_decay": 0.2}], lr=1e-3, betas=(0.9, 0.98), eps=1e-6
)
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1, 2])
losses = []
for step in range(3):
    debugger.start(model)
    images, tokens = batch(step)
    loss = model(images, tokens)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        model.log_scale.clamp_(0, math.log(100))
    losses.append(loss.item())
    debugger.stop()
    debugger.step()
