"""Segmentation: an encoder and a decoder with gated skips, dice and cross entropy, deep supervision, RAdam."""

import sys

import torch
import torch.nn.functional as F
from torch import nn

from msprobe.pytorch import PrecisionDebugger

torch.manual_seed(81)


class Double(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1, padding_mode="reflect")
        self.norm1 = nn.InstanceNorm2d(outputs, affine=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=2, dilation=2)
        self.norm2 = nn.InstanceNorm2d(outputs, affine=True)

    def forward(self, x):
        x = F.leaky_relu(self.norm1(self.conv1(x)), 0.01)
        return F.leaky_relu(self.norm2(self.conv2(x)), 0.01)


class Gate(nn.Module):
    """Attention on the skip, steered by the coarse features."""

    def __init__(self, skip, coarse):
        super().__init__()
        self.skip = nn.Conv2d(skip, 8, 1)
        self.coarse = nn.Conv2d(coarse, 8, 1)
        self.score = nn.Conv2d(8, 1, 1)

    def forward(self, skip, coarse):
        return skip * torch.sigmoid(self.score(F.relu(self.skip(skip) + self.coarse(coarse))))


class Segmenter(nn.Module):
    def __init__(self, classes=4):
        super().__init__()
        self.enc1, self.enc2, self.enc3 = Double(1, 8), Double(8, 16), Double(16, 24)
        self.up2, self.up1 = nn.ConvTranspose2d(24, 16, 2, stride=2), nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.gate2, self.gate1 = Gate(16, 16), Gate(8, 8)
        self.dec2, self.dec1 = Double(32, 16), Double(16, 8)
        self.side, self.out = nn.Conv2d(16, classes, 1), nn.Conv2d(8, classes, 1)

    def forward(self, x):
        a = self.enc1(x)
        b = self.enc2(F.avg_pool2d(a, 2))
        c = self.enc3(F.avg_pool2d(b, 2))
        d = self.up2(c)
        d = self.dec2(torch.cat([self.gate2(b, d), d], dim=1))
        e = self.up1(d)
        e = self.dec1(torch.cat([self.gate1(a, e), e], dim=1))
        side = F.interpolate(self.side(d), size=x.shape[2:], mode="bilinear", align_corners=False)
        return self.out(e), side


def dice_loss(logits, labels, smooth=1.0):
    probabilities = torch.softmax(logits, dim=1)
    target = F.one_hot(labels, logits.shape[1]).movedim(-1, 1).to(logits.dtype)
    overlap = (probabilities * target).sum((2, 3))
    total = probabilities.sum((2, 3)) + target.sum((2, 3))
    dice = (2 * overlap + smooth) / (total + smooth)
    return 1 - dice[:, 1:].mean()


WEIGHTS = torch.tensor([0.4, 1.0, 1.5, 2.0])


def loss_of(logits, labels):
    return F.cross_entropy(logits, labels, weight=WEIGHTS) + dice_loss(logits, labels)


def batch(step):
    chooser = torch.Generator().manual_seed(step + 1000)
    image = torch.randn(3, 1, 16, 16, generator=chooser)
    smooth = F.avg_pool2d(image, 5, 1, 2)
    labels = torch.bucketize(smooth[:, 0], torch.tensor([-0.2, 0.0, 0.25]))
    return (image - image.mean((2, 3), keepdim=True)) / image.std((2, 3), keepdim=True), labels


model = Segmenter()
for module in model.modules():
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, a=0.01)
optimizer = torch.optim.RAdam(model.parameters(), lr=5e-3, weight_decay=1e-3)
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1, 2])
losses = []
for step in range(3):
    debugger.start(model)
    image, labels = batch(step)
    out, side = model(image)
    loss = loss_of(out, labels) + 0.4 * loss_of(side, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    debugger.stop()
    debugger.step()
