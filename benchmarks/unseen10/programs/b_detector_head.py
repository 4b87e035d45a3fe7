"""A one-stage detector: two levels of features, anchors, focal loss for the classes, smooth L1 for the boxes."""

import math
import sys

import torch
from torch import nn
from torch.nn import functional as F

from msprobe.pytorch import PrecisionDebugger

CLASSES, PICTURE = 4, 32
LEVELS = ((4, 7.0), (8, 13.0))  # stride, side of the anchors
RATIOS = (0.5, 1.0, 2.0)


class Backbone(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.c1 = nn.Conv2d(3, width, 3, stride=2, padding=1)
        self.c2 = nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.c3 = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.lateral2, self.lateral3 = nn.Conv2d(width, width, 1), nn.Conv2d(2 * width, width, 1)
        self.smooth = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x):
        p2 = F.silu(self.c2(F.silu(self.c1(x))))
        p3 = self.lateral3(F.silu(self.c3(p2)))
        wide = F.interpolate(p3, scale_factor=2, mode="nearest")
        return self.smooth(self.lateral2(p2) + wide), p3


class Head(nn.Module):
    def __init__(self, outputs, width=16):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.GroupNorm(4, width)
        self.out = nn.Conv2d(width, len(RATIOS) * outputs, 3, padding=1)
        self.outputs = outputs

    def forward(self, x):
        x = self.out(F.relu(self.norm(self.conv(x))))
        return x.permute(0, 2, 3, 1).reshape(x.shape[0], -1, self.outputs)


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = Backbone()
        self.scores, self.boxes = Head(CLASSES), Head(4)
        nn.init.constant_(self.scores.out.bias, -math.log((1 - 0.05) / 0.05))

    def forward(self, x):
        features = self.backbone(x)
        return torch.cat([self.scores(f) for f in features], 1), torch.cat([self.boxes(f) for f in features], 1)


def all_anchors():
    """Centre and size (x, y, w, h) of each anchor, in the order of the outputs."""
    found = []
    for stride, size in LEVELS:
        steps = (torch.arange(PICTURE // stride) + 0.5) * stride
        for y in steps:
            for x in steps:
                for ratio in RATIOS:
                    found.append((float(x), float(y), size / math.sqrt(ratio), size * math.sqrt(ratio)))
    return torch.tensor(found)


def corners(boxes):
    return torch.cat([boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2], 1)


def overlap(first, second):
    a, b = corners(first)[:, None], corners(second)[None]
    sides = (torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])).clamp(min=0)
    shared = sides.prod(-1)
    return shared / (first[:, 2:].prod(-1)[:, None] + second[:, 2:].prod(-1)[None] - shared)


def match(anchors, boxes, kinds):
    """The wanted scores (-1: does not count), the wanted offsets, and which anchors have an object."""
    iou = overlap(anchors, boxes)
    best, which = iou.max(1)
    positive = best >= 0.4
    positive[iou.argmax(0)] = True
    wanted = F.one_hot(kinds[which], CLASSES).to(anchors.dtype) * positive[:, None]
    wanted[(best >= 0.25) & ~positive] = -1
    near = boxes[which]
    offsets = torch.cat([(near[:, :2] - anchors[:, :2]) / anchors[:, 2:], torch.log(near[:, 2:] / anchors[:, 2:])], 1)
    return wanted, offsets / torch.tensor([0.1, 0.1, 0.2, 0.2]), positive


def focal(logits, wanted, alpha=0.25, gamma=2.0):
    counts = wanted >= 0
    chance = torch.sigmoid(logits)
    right = torch.where(wanted == 1, chance, 1 - chance)
    weight = torch.where(wanted == 1, alpha, 1 - alpha) * (1 - right) ** gamma
    bce = F.binary_cross_entropy_with_logits(logits, wanted.clamp(min=0), reduction="none")
    return (weight * bce * counts).sum()


def sample(seed):
    draw = torch.Generator().manual_seed(seed)
    dtype = torch.get_default_dtype()
    picture = torch.rand(2, 3, PICTURE, PICTURE, generator=draw, dtype=dtype) - 0.5
    centre = torch.rand(2, 2, 2, generator=draw, dtype=dtype) * 20 + 6
    sides = torch.rand(2, 2, 2, generator=draw, dtype=dtype) * 9 + 6
    return picture, torch.cat([centre, sides], -1), torch.randint(0, CLASSES, (2, 2), generator=draw)


torch.manual_seed(31)
model = Detector()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-3)
anchors = all_anchors()
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1, 2])
losses = []
for step in range(3):
    picture, boxes, kinds = sample(step + 40)
    debugger.start(model)
    optimizer.zero_grad()
    scores, deltas = model(picture)
    class_loss, box_loss, objects = 0.0, 0.0, 0
    for row in range(len(picture)):
        wanted, offsets, positive = match(anchors, boxes[row], kinds[row])
        class_loss = class_loss + focal(scores[row], wanted)
        box_loss = box_loss + F.smooth_l1_loss(deltas[row][positive], offsets[positive], beta=0.11, reduction="sum")
        objects += int(positive.sum())
    loss = (class_loss + 0.5 * box_loss) / max(objects, 1)
    loss.backward()
    optimizer.step()
    debugger.stop()
    debugger.step()
    losses.append(loss.item())
