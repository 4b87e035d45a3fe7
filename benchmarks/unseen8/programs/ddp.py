"""One process, one device; to be moved to two processes with DistributedDataParallel."""

import sys

import torch
import torch.nn.functional as F
from torch import nn

from msprobe.pytorch import PrecisionDebugger

torch.manual_seed(25)
rank, world = 0, 1


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 12)
        self.fc1, self.fc2 = nn.Linear(12, 24), nn.Linear(24, 20)
        self.norm = nn.LayerNorm(12)

    def forward(self, ids):
        return self.fc2(F.gelu(self.fc1(self.norm(self.embed(ids)))))


model = Net()
train_model = model
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-3)
data = torch.randint(0, 20, (2, 8, 7))
losses = []
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1])
for step in range(2):
    debugger.start(model)
    ids = data[step]
    logits = train_model(ids[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    debugger.stop()
    debugger.step()
    losses.append(loss.item())
