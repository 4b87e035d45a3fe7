"""Mixed precision: a float32 model under autocast with a gradient scaler and skipped normalisation layers."""

import sys

import torch
import torch.nn.functional as F
from torch import nn

from msprobe.pytorch import PrecisionDebugger

torch.manual_seed(20)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(4, 16, 3, padding=1)
        self.norm = nn.LayerNorm(16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.fc1, self.fc2 = nn.Linear(16, 32), nn.Linear(32, 3)

    def forward(self, x):
        x = self.conv(x).transpose(1, 2)
        x = x + self.attention(self.norm(x), self.norm(x), self.norm(x), need_weights=False)[0]
        return self.fc2(F.gelu(self.fc1(x.mean(1))))


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
xs, ys = torch.randn(2, 8, 4, 10), torch.randint(0, 3, (2, 8))
scale = 128.0
losses = []
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1])
for step in range(2):
    debugger.start(model)
    out = model(xs[step])
    loss = F.cross_entropy(out.float(), ys[step])
    (loss * scale).backward()
    for p in model.parameters():
        p.grad.div_(scale)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    optimizer.zero_grad()
    debugger.stop()
    debugger.step()
    losses.append(loss.item())
