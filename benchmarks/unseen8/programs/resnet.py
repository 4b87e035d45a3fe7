"""A residual convolution net: BatchNorm, label smoothing by hand, Nesterov, cosine schedule, an average of weights."""

import copy
import math
import sys

import torch
import torch.nn.functional as F
from torch import nn

from msprobe.pytorch import PrecisionDebugger

torch.manual_seed(3)
CLASSES, SMOOTH = 5, 0.1


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.short = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.short = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + self.short(x))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 1, 1)
        self.layers = nn.Sequential(Block(8, 8, 1), Block(8, 16, 2), Block(16, 16, 1))
        self.fc = nn.Linear(16, CLASSES)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.stem(x)), 2)
        x = self.layers(x)
        x = x.mean((2, 3))
        return self.fc(x)


model = ResNet()
average = copy.deepcopy(model)
models = [model, average]
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
images = torch.randint(0, 256, (2, 8, 3, 12, 12)).to(torch.get_default_dtype())
mean, std = torch.tensor([0.48, 0.45, 0.4]), torch.tensor([0.23, 0.22, 0.22])
labels = torch.randint(0, CLASSES, (2, 8))
losses = []
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1])
for step in range(2):
    debugger.start(model)
    x = (images[step] / 255 - mean[:, None, None]) / std[:, None, None]
    logp = F.log_softmax(model(x), dim=-1)
    nll = -logp.gather(1, labels[step][:, None]).squeeze(1)
    loss = ((1 - SMOOTH) * nll - SMOOTH * logp.mean(-1)).mean()
    optimizer.zero_grad()
    loss.backward()
    for group in optimizer.param_groups:
        group["lr"] = 0.05 * (1 + math.cos(math.pi * step / 4))
    optimizer.step()
    with torch.no_grad():
        for a, p in zip(average.parameters(), model.parameters()):
            a.mul_(0.9).add_(p, alpha=0.1)
        for a, b in zip(average.buffers(), model.buffers()):
            a.copy_(b)
    debugger.stop()
    debugger.step()
    losses.append(loss.item())
