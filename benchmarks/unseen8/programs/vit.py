"""A vision transformer: patches, class token, layer scale, stochastic depth with fixed seeds, mixup, focal loss."""

import sys

import torch
import torch.nn.functional as F
from torch import nn

from msprobe.pytorch import PrecisionDebugger

torch.manual_seed(23)
SIZE, PATCH, WIDTH, HEADS, CLASSES = 12, 4, 16, 2, 5
COUNT = (SIZE // PATCH) ** 2


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH, eps=1e-6), nn.LayerNorm(WIDTH, eps=1e-6)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH))
        self.scale1, self.scale2 = nn.Parameter(torch.full((WIDTH,), 0.3)), nn.Parameter(torch.full((WIDTH,), 0.3))

    def forward(self, x):
        h = self.norm1(x)
        x = x + self.scale1 * self.attention(h, h, h, need_weights=False)[0]
        return x + self.scale2 * self.mlp(self.norm2(x))


class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.token = nn.Parameter(0.1 * torch.randn(1, 1, WIDTH))
        self.positions = nn.Parameter(0.1 * torch.randn(1, COUNT + 1, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH, eps=1e-6), nn.Linear(WIDTH, CLASSES)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


model = ViT()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05, betas=(0.9, 0.98))
images, labels = torch.randn(2, 6, 3, SIZE, SIZE), torch.randint(0, CLASSES, (2, 6))
losses = []
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1])
for step in range(2):
    debugger.start(model)
    share = 0.7
    hot = F.one_hot(labels[step], CLASSES).to(images.dtype)
    mixed = share * images[step] + (1 - share) * images[step].flip(0)
    wanted = share * hot + (1 - share) * hot.flip(0)
    logits = model(mixed)
    p = torch.sigmoid(logits)
    bce = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
    agreement = p * wanted + (1 - p) * (1 - wanted)
    loss = (0.25 * (1 - agreement) ** 2 * bce).sum(1).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    debugger.stop()
    debugger.step()
    losses.append(loss.item())
