"""Two towers with hashed and averaged embeddings, in-batch softmax with a correction for popularity."""

import sys

import torch
import torch.nn.functional as F
from torch import nn

from msprobe.pytorch import PrecisionDebugger

torch.manual_seed(11)
USERS, ITEMS, TAGS, WIDTH, BATCH = 30, 25, 15, 8, 10


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.users, self.items = nn.Embedding(USERS, WIDTH), nn.Embedding(ITEMS, WIDTH)
        self.tags = nn.EmbeddingBag(TAGS, WIDTH, mode="mean")
        self.user_mlp = nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, WIDTH))
        self.item_mlp = nn.Sequential(nn.Linear(2 * WIDTH, 16), nn.ReLU(), nn.Linear(16, WIDTH))
        self.temperature = nn.Parameter(torch.tensor(0.0))

    def forward(self, users, items, tags, offsets):
        u = self.user_mlp(self.users(users))
        i = self.item_mlp(torch.cat([self.items(items), self.tags(tags, offsets)], dim=-1))
        return F.normalize(u, dim=-1), F.normalize(i, dim=-1), self.temperature.exp() * 5.0


model = Towers()
tables = [model.users.weight, model.items.weight, model.tags.weight]
dense = [p for name, p in model.named_parameters() if "mlp" in name or name == "temperature"]
optimizers = [torch.optim.Adagrad(tables, lr=0.1), torch.optim.Adam(dense, lr=1e-3)]
users, items = torch.randint(0, USERS, (2, BATCH)), torch.randint(0, ITEMS, (2, BATCH))
tags = torch.randint(0, TAGS, (2, 3 * BATCH))
offsets = torch.arange(0, 3 * BATCH, 3)
popularity = torch.rand(ITEMS) + 0.1
popularity = popularity / popularity.sum()
losses = []
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1])
for step in range(2):
    debugger.start(model)
    u, i, scale = model(users[step], items[step], tags[step], offsets)
    logits = scale * u @ i.t() - popularity[items[step]].log()
    same = items[step][:, None] == items[step][None, :]
    logits = logits.masked_fill(same & ~torch.eye(BATCH, dtype=torch.bool), -1e9)
    loss = F.cross_entropy(logits, torch.arange(BATCH))
    loss = loss + 1e-3 * sum(table.square().sum() for table in tables)
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    debugger.stop()
    debugger.step()
    losses.append(loss.item())
