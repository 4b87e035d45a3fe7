"""A recommender: bags of sparse features, dense features, pairwise dot products, weighted BCE, two optimizers."""

import sys

import torch
import torch.nn.functional as F
from torch import nn

from msprobe.pytorch import PrecisionDebugger

torch.manual_seed(61)


class Tables(nn.Module):
    def __init__(self, sizes, width):
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(size, width, mode="mean") for size in sizes)

    def forward(self, indices, offsets, weights):
        return [bag(i, o) for bag, i, o in zip(self.bags, indices, offsets)]


class Cross(nn.Module):
    """x0 * (W x + b) + x, as in DCN v2."""

    def __init__(self, width, rank):
        super().__init__()
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, width)

    def forward(self, first, x):
        return first * self.up(self.down(x)) + x


class Model(nn.Module):
    def __init__(self, sizes=(50, 30, 20), dense=6, width=12):
        super().__init__()
        self.tables = Tables(sizes, width)
        self.bottom = nn.Sequential(nn.Linear(dense, 24), nn.ReLU(), nn.Linear(24, width), nn.ReLU())
        total = width * (len(sizes) + 1)
        self.cross = nn.ModuleList(Cross(total, 8) for _ in range(2))
        pairs = (len(sizes) + 1) * len(sizes) // 2
        self.top = nn.Sequential(nn.Linear(total + pairs, 32), nn.ReLU(), nn.Dropout(0.0), nn.Linear(32, 2))

    def forward(self, dense, indices, offsets, weights):
        dense = torch.log1p(dense.clamp(min=0))
        parts = [self.bottom(dense), *self.tables(indices, offsets, weights)]
        stacked = torch.stack(parts, dim=1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        rows, columns = torch.tril_indices(len(parts), len(parts), offset=-1)
        pairs = products[:, rows, columns]
        first = x = stacked.flatten(1)
        for cross in self.cross:
            x = cross(first, x)
        return self.top(torch.cat([x, pairs], dim=1)).unbind(1)


def batch(step):
    chooser = torch.Generator().manual_seed(step + 900)
    dense = torch.randn(16, 6, generator=chooser) * 20
    indices, offsets = [], []
    for size in (50, 30, 20):
        lengths = torch.randint(1, 4, (16,), generator=chooser)
        indices.append(torch.randint(0, size, (int(lengths.sum()),), generator=chooser))
        offsets.append(torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)[:-1]]))
    clicks = (torch.rand(16, generator=chooser) < 0.3).to(dense.dtype)
    buys = clicks * (torch.rand(16, generator=chooser) < 0.5).to(dense.dtype)
    return dense, indices, offsets, clicks, buys


model = Model()
embeddings = list(model.tables.parameters())
others = [p for name, p in model.named_parameters() if not name.startswith("tables")]
rows_optimizer = torch.optim.Adagrad(embeddings, lr=0.05, initial_accumulator_value=0.1)
optimizer = torch.optim.RMSprop(others, lr=2e-3, alpha=0.95, momentum=0.5)
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1, 2])
losses = []
for step in range(3):
    debugger.start(model)
    dense, indices, offsets, clicks, buys = batch(step)
    click, buy = model(dense, indices, offsets, None)
    click_loss = F.binary_cross_entropy_with_logits(click, clicks, pos_weight=torch.tensor(2.5))
    p_click, p_buy = torch.sigmoid(click), torch.sigmoid(buy)
    both = (p_click * p_buy).clamp(1e-7, 1 - 1e-7)
    buy_loss = F.binary_cross_entropy(both, buys)
    focal = ((clicks - p_click).abs() ** 2 * -torch.log(torch.where(clicks > 0, p_click, 1 - p_click))).mean()
    loss = click_loss + buy_loss + 0.5 * focal
    for one in (rows_optimizer, optimizer):
        one.zero_grad()
    loss.backward()
    for one in (rows_optimizer, optimizer):
        one.step()
    losses.append(loss.item())
    debugger.stop()
    debugger.step()
