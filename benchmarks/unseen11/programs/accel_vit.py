"""A vision transformer under accelerate: accumulation, mixup, label smoothing, layer scale, stochastic depth."""

import sys

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn import functional as F

from msprobe.pytorch import PrecisionDebugger

SIZE, PATCH, WIDTH, HEADS, CLASSES, ROWS, PARTS, STEPS = 16, 4, 32, 4, 7, 4, 2, 2


class Block(nn.Module):
    def __init__(self, drop):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH, eps=1e-6)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.scale1 = nn.Parameter(torch.full((WIDTH,), 0.1))
        self.norm2 = nn.LayerNorm(WIDTH, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))
        self.scale2 = nn.Parameter(torch.full((WIDTH,), 0.1))
        self.drop = drop

    def path(self, x):
        if not self.training or not self.drop:
            return x
        keep = (torch.rand(x.shape[0], 1, 1) >= self.drop).to(x.dtype)
        return x * keep / (1 - self.drop)

    def forward(self, x):
        normal = self.norm1(x)
        mixed, _ = self.attention(normal, normal, normal, need_weights=False)
        x = x + self.path(self.scale1 * mixed)
        return x + self.path(self.scale2 * self.mlp(self.norm2(x)))


class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, stride=PATCH)
        self.token = nn.Parameter(torch.randn(1, 1, WIDTH) * 0.1)
        self.positions = nn.Parameter(torch.randn(1, (SIZE // PATCH) ** 2 + 1, WIDTH) * 0.1)
        self.blocks = nn.ModuleList(Block(drop) for drop in (0.0, 0.2, 0.4))
        self.norm = nn.LayerNorm(WIDTH, eps=1e-6)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1)
        x = x + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


def mixup(images, classes):
    share = 0.7
    other = images.flip(0)
    truth = F.one_hot(classes, CLASSES).to(images.dtype)
    return share * images + (1 - share) * other, share * truth + (1 - share) * truth.flip(0)


def criterion(logits, truth):
    smooth = truth * 0.9 + 0.1 / CLASSES
    return -(smooth * F.log_softmax(logits, dim=-1)).sum(-1).mean()


torch.manual_seed(31)
model = ViT()
images = torch.rand(ROWS * PARTS * STEPS, 3, SIZE, SIZE) * 255
classes = torch.randint(0, CLASSES, (len(images),))
mean, spread = torch.tensor([120.0, 115.0, 100.0]), torch.tensor([60.0, 58.0, 57.0])
images = (images - mean[:, None, None]) / spread[:, None, None]
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, classes), batch_size=ROWS)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
losses = []
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1])
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=PARTS)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
torch.manual_seed(77)
for number, (image, kind) in enumerate(loader):
    if number % PARTS == 0:
        debugger.start(model)
    with accelerator.accumulate(model):
        mixed, truth = mixup(image, kind)
        loss = criterion(model(mixed), truth)
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    losses.append(loss.item())
    if number % PARTS == PARTS - 1:
        debugger.stop()
        debugger.step()
