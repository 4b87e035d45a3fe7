"""A small U-Net that segments images: batch and group norms, Dice and cross-entropy, SGD with momentum."""

import sys

import torch
from torch import nn
from torch.nn import functional as F

from msprobe.pytorch import PrecisionDebugger

CLASSES, SIZE, ROWS, STEPS = 3, 16, 4, 2


class Double(nn.Module):
    def __init__(self, inner, outer, groups=0):
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outer, momentum=0.1)
        self.conv2 = nn.Conv2d(outer, outer, 3, padding=1)
        self.norm2 = nn.GroupNorm(4, outer)

    def forward(self, x):
        x = F.relu(self.norm1(self.conv1(x)))
        return F.silu(self.norm2(self.conv2(x)))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = Double(3, 8)
        self.deep = Double(8, 16)
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.leave = Double(16, 8)
        self.head = nn.Conv2d(8, CLASSES, 1)

    def forward(self, x):
        first = self.enter(x)
        second = self.deep(F.max_pool2d(first, 2))
        joined = torch.cat([first, self.up(second)], dim=1)
        return self.head(self.leave(joined))


def dice(logits, target):
    chance = logits.softmax(dim=1)
    truth = F.one_hot(target, CLASSES).permute(0, 3, 1, 2).to(chance.dtype)
    common = (chance * truth).sum((0, 2, 3))
    both = chance.sum((0, 2, 3)) + truth.sum((0, 2, 3))
    return 1 - ((2 * common + 1.0) / (both + 1.0)).mean()


def criterion(logits, target):
    weight = torch.tensor([0.5, 1.0, 2.0])
    entropy = F.cross_entropy(logits, target, weight=weight, ignore_index=255)
    return entropy + 0.5 * dice(logits, target.clamp(max=CLASSES - 1))


torch.manual_seed(5)
model = UNet()
images = torch.randn(ROWS * STEPS, 3, SIZE, SIZE)
targets = torch.randint(0, CLASSES, (ROWS * STEPS, SIZE, SIZE))
targets[:, :2, :] = 255
data = torch.utils.data.TensorDataset(images, targets)
loader = torch.utils.data.DataLoader(data, batch_size=ROWS, shuffle=False)
losses = []


def optimizers():
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3, nesterov=True)
    return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)


optimizer, scheduler = optimizers()
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1])
for image, target in loader:
    debugger.start(model)
    optimizer.zero_grad()
    loss = criterion(model(image), target)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    losses.append(loss.item())
    debugger.stop()
    debugger.step()
