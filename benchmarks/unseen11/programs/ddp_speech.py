"""Two processes train a small convolutional recogniser with DistributedDataParallel."""
# world 2

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from msprobe.pytorch import PrecisionDebugger

BANDS, FRAMES, CLASSES, ROWS, STEPS, PARTS = 12, 20, 6, 3, 2, 2
WORLD = 2


class Recogniser(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv1d(BANDS, 16, 5, stride=2, padding=2)
        self.norm = nn.BatchNorm1d(16)
        self.conv2 = nn.Conv1d(16, 24, 3, padding=1, groups=2)
        self.cell = nn.GRU(24, 16, batch_first=True)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x):
        x = F.relu(self.norm(self.conv1(x)))
        x = F.glu(torch.cat([self.conv2(x), x.repeat_interleave(2, 1)[:, :24]], 1), dim=1)
        x, _ = self.cell(x.transpose(1, 2))
        return self.head(x.mean(1))


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(71)
model = Recogniser()
wrapped = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
torch.manual_seed(72)
sounds = torch.randn(WORLD * ROWS * PARTS * STEPS, BANDS, FRAMES)
classes = torch.randint(0, CLASSES, (len(sounds),))
rows = torch.arange(len(sounds)).view(STEPS, PARTS, ROWS, WORLD)[..., rank]
losses = []
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1])
for step in range(STEPS):
    debugger.start(model)
    total = torch.zeros(())
    for part in range(PARTS):
        chosen = rows[step, part]
        wrapped.require_backward_grad_sync = part == PARTS - 1
        logits = wrapped(sounds[chosen])
        loss = F.cross_entropy(logits, classes[chosen]) / PARTS
        loss.backward()
        total = total + loss.detach()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    dist.all_reduce(total)
    losses.append(total.item() / WORLD)
    debugger.stop()
    debugger.step()
if os.environ.get("RANK") == "0":
    print(losses)
dist.barrier()
dist.destroy_process_group()
