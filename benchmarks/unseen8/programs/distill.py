"""Distillation with a teacher that is an average of the student, views with noise, and a feature loss."""

import copy
import sys

import torch
import torch.nn.functional as F
from torch import nn

from msprobe.pytorch import PrecisionDebugger

torch.manual_seed(18)
CLASSES, T = 6, 3.0


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 20), nn.LayerNorm(20), nn.SiLU(), nn.Linear(20, 16), nn.Dropout(0.1))
        self.head = nn.Linear(16, CLASSES)
        self.register_buffer("centre", torch.zeros(CLASSES))

    def forward(self, x):
        features = self.body(x)
        return features, self.head(features)


student = Net()
teacher = copy.deepcopy(student).eval()
with torch.no_grad():
    for p in teacher.parameters():
        p.add_(0.1 * torch.randn_like(p))
teacher.requires_grad_(False)
models = [student, teacher]
optimizer = torch.optim.AdamW(student.parameters(), lr=3e-3, weight_decay=0.05)
xs, ys = torch.randn(2, 8, 10), torch.randint(0, CLASSES, (2, 8))
losses = []
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1])
for step in range(2):
    debugger.start([student, teacher])
    torch.manual_seed(step)
    view = xs[step] + 0.1 * torch.randn_like(xs[step])
    features, logits = student(view)
    with torch.no_grad():
        wanted_features, wanted = teacher(xs[step])
        soft = F.softmax((wanted - teacher.centre) / T, dim=-1)
        teacher.centre.mul_(0.9).add_(wanted.mean(0), alpha=0.1)
    kl = F.kl_div(F.log_softmax(logits / T, dim=-1), soft, reduction="batchmean") * T * T
    pull = 1 - F.cosine_similarity(features, wanted_features, dim=-1).mean()
    loss = 0.5 * F.cross_entropy(logits, ys[step]) + 0.5 * kl + 0.1 * pull
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        for t, s in zip(teacher.parameters(), student.parameters()):
            t.mul_(0.99).add_(s, alpha=0.01)
    debugger.stop()
    debugger.step()
    losses.append(loss.item())
