"""Windows of attention over patches (as Swin), own AdamW, a slow copy of the weights that is tested at each step."""

import copy
import sys

import torch
import torch.nn as nn

from msprobe.pytorch import PrecisionDebugger


def to_windows(grid, side):
    b, h, w, c = grid.shape
    grid = grid.reshape(b, h // side, side, w // side, side, c)
    return grid.transpose(2, 3).reshape(-1, side * side, c)


def from_windows(rows, side, h, w):
    b = rows.shape[0] // ((h // side) * (w // side))
    rows = rows.reshape(b, h // side, w // side, side, side, -1)
    return rows.transpose(2, 3).reshape(b, h, w, -1)


def relative_index(side):
    places = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")).flatten(1)
    apart = places[:, :, None] - places[:, None, :] + side - 1
    return apart[0] * (2 * side - 1) + apart[1]


class WindowAttention(nn.Module):
    def __init__(self, width, heads, side):
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.bias_table = nn.Parameter(torch.randn((2 * side - 1) ** 2, heads) * 0.3)
        self.register_buffer("index", relative_index(side))

    def forward(self, x, mask):
        n, t, c = x.shape
        q, k, v = self.qkv(x).reshape(n, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        scores = (q * self.scale) @ k.transpose(-2, -1)
        scores = scores + self.bias_table[self.index].permute(2, 0, 1)
        if mask is not None:
            scores = scores.view(n // mask.shape[0], mask.shape[0], self.heads, t, t) + mask[None, :, None]
            scores = scores.view(n, self.heads, t, t)
        out = scores.softmax(-1) @ v
        return self.proj(out.transpose(1, 2).reshape(n, t, c))


class SwinLayer(nn.Module):
    def __init__(self, width, heads, grid, side, shift):
        super().__init__()
        self.grid, self.side, self.shift = grid, side, shift
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = WindowAttention(width, heads, side)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.mask = None
        if shift:
            area = torch.zeros(1, grid, grid, 1)
            cuts = (slice(0, -side), slice(-side, -shift), slice(-shift, None))
            for number, (rows, columns) in enumerate((r, c) for r in cuts for c in cuts):
                area[:, rows, columns] = number
            area = to_windows(area, side).squeeze(-1)
            self.mask = (area[:, None, :] != area[:, :, None]) * -100.0

    def forward(self, x):
        y = self.norm1(x)
        if self.shift:
            y = torch.roll(y, (-self.shift, -self.shift), (1, 2))
        y = self.attention(to_windows(y, self.side), self.mask)
        y = from_windows(y, self.side, self.grid, self.grid)
        if self.shift:
            y = torch.roll(y, (self.shift, self.shift), (1, 2))
        x = x + y
        return x + self.mlp(self.norm2(x))


class Merge(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(4 * width)
        self.reduction = nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x):
        quarters = [x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]]
        return self.reduction(self.norm(torch.cat(quarters, -1)))


class Swin(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, 16, 2, 2)
        self.layer1 = SwinLayer(16, 2, 8, 4, 0)
        self.layer2 = SwinLayer(16, 2, 8, 4, 2)
        self.merge = Merge(16)
        self.layer3 = SwinLayer(32, 4, 4, 4, 0)
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 6)

    def forward(self, images):
        x = self.patch(images).permute(0, 2, 3, 1)
        x = self.layer3(self.merge(self.layer2(self.layer1(x))))
        return self.head(self.norm(x).mean((1, 2)))


class OwnAdamW:
    def __init__(self, weights, lr, betas=(0.9, 0.99), eps=1e-8, decay=0.05):
        self.weights = list(weights)
        self.lr, self.betas, self.eps, self.decay, self.count = lr, betas, eps, decay, 0
        self.first = [torch.zeros_like(weight) for weight in self.weights]
        self.second = [torch.zeros_like(weight) for weight in self.weights]

    @torch.no_grad()
    def update(self):
        self.count += 1
        b1, b2 = self.betas
        for weight, m, v in zip(self.weights, self.first, self.second):
            weight.mul_(1 - self.lr * self.decay)
            m.mul_(b1).add_(weight.grad, alpha=1 - b1)
            v.mul_(b2).addcmul_(weight.grad, weight.grad, value=1 - b2)
            corrected = v.div(1 - b2**self.count).sqrt_().add_(self.eps)
            weight.addcdiv_(m, corrected, value=-self.lr / (1 - b1**self.count))
            weight.grad = None


torch.manual_seed(1234)
model = Swin()
slow = copy.deepcopy(model).requires_grad_(False)
models = [model, slow]
adam = OwnAdamW(model.parameters(), lr=3e-3)
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1, 2])
losses = []
pictures = torch.Generator().manual_seed(8)
for _ in range(3):
    images = torch.rand(4, 3, 16, 16, generator=pictures, dtype=torch.get_default_dtype()) * 2 - 1
    classes = torch.randint(0, 6, (4,), generator=pictures)
    debugger.start(models)
    loss = criterion(model(images), classes)
    loss.backward()
    adam.update()
    with torch.no_grad():
        for old, new in zip(slow.parameters(), model.parameters()):
            old.mul_(0.8).add_(new, alpha=0.2)
        tested = criterion(slow(images), classes)
    losses += [loss.item(), tested.item()]
    debugger.stop()
    debugger.step()
