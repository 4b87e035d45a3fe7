"""A small residual network for images: SGD with Nesterov momentum, mixup, label smoothing, a warm-up, weight groups."""

import sys

import torch
import torch.nn.functional as F
from torch import nn

from msprobe.pytorch import PrecisionDebugger

torch.manual_seed(5)


class SqueezeExcite(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.reduce = nn.Conv2d(channels, channels // 4, 1)
        self.expand = nn.Conv2d(channels // 4, channels, 1)

    def forward(self, x):
        weight = x.mean((2, 3), keepdim=True)
        weight = self.expand(F.relu(self.reduce(weight)))
        return x * weight.sigmoid()


class Residual(nn.Module):
    def __init__(self, inputs, outputs, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.se = SqueezeExcite(outputs)
        self.down = None
        if stride != 1 or inputs != outputs:
            self.down = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        skip = x if self.down is None else self.down(x)
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.se(self.bn2(self.conv2(x)))
        return F.relu(x + skip)


class Net(nn.Module):
    def __init__(self, classes=7):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.blocks = nn.Sequential(Residual(16, 16), Residual(16, 32, 2), Residual(32, 32))
        self.fc = nn.Linear(32, classes)

    def forward(self, x):
        x = self.pool(self.stem(x))
        x = self.blocks(x)
        return self.fc(x.mean((2, 3)))


MEAN, STD = torch.tensor([0.48, 0.46, 0.41]), torch.tensor([0.23, 0.22, 0.26])


def batch(step):
    chooser = torch.Generator().manual_seed(step + 50)
    pixels = torch.randint(0, 256, (8, 3, 16, 16), generator=chooser)
    images = pixels / 255
    images = (images - MEAN[:, None, None]) / STD[:, None, None]
    labels = torch.randint(0, 7, (8,), generator=chooser)
    share = 0.3 + 0.1 * step
    mixed = share * images + (1 - share) * images.flip(0)
    return mixed, labels, labels.flip(0), share


model = Net()
with torch.no_grad():
    for block in model.blocks:
        block.bn2.weight.fill_(0.5)
decayed = [p for p in model.parameters() if p.ndim > 1]
plain = [p for p in model.parameters() if p.ndim <= 1]
groups = [{"params": decayed, "weight_decay": 5e-2}, {"params": plain, "weight_decay": 0.0}]
optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.25, total_iters=4)
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1, 2])
losses = []
for step in range(3):
    model.train()
    debugger.start(model)
    images, labels, others, share = batch(step)
    logits = model(images)
    near = F.cross_entropy(logits, labels, label_smoothing=0.1)
    far = F.cross_entropy(logits, others, label_smoothing=0.1)
    loss = share * near + (1 - share) * far
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    losses.append(loss.item())
    debugger.stop()
    debugger.step()
