"""A hinge GAN on small glyphs: two optimizers, a frozen critic of features and an averaged generator."""

import copy
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

from msprobe.pytorch import PrecisionDebugger

NOISE = 12
rng = torch.Generator().manual_seed(51)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(NOISE, 16 * 3 * 3)
        self.bn0 = nn.BatchNorm2d(16)
        self.conv1 = nn.Conv2d(16, 12, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(12)
        self.conv2 = nn.Conv2d(12, 1, 3, padding=1)

    def forward(self, z):
        h = self.project(z).view(-1, 16, 3, 3)
        h = F.relu(self.bn0(h))
        h = F.interpolate(h, scale_factor=2, mode="nearest")
        h = F.relu(self.bn1(self.conv1(h)))
        h = F.interpolate(h, scale_factor=2, mode="nearest")
        return torch.tanh(self.conv2(h))


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 12, 4, stride=2, padding=1)
        self.conv2 = nn.Conv2d(12, 20, 4, stride=2, padding=1)
        self.norm = nn.GroupNorm(4, 20)
        self.score = nn.Linear(20 * 3 * 3, 1)

    def forward(self, picture):
        h = F.leaky_relu(self.conv1(picture), 0.2)
        h = F.leaky_relu(self.norm(self.conv2(h)), 0.2)
        return self.score(h.flatten(1)).squeeze(1)


class Features(nn.Module):
    """Stands for a pretrained network: never trained, always in evaluation mode."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AvgPool2d(2))
        self.body[1].running_mean.normal_(0, 0.3)
        self.body[1].running_var.uniform_(0.5, 1.5)
        self.requires_grad_(False)
        self.eval()

    def forward(self, picture):
        return self.body(picture).mean(dim=(2, 3))


def glyphs(count=12):
    canvas = -torch.ones(count, 1, 12, 12)
    corner = torch.randint(0, 6, (count, 2), generator=rng)
    for i, (row, column) in enumerate(corner.tolist()):
        canvas[i, 0, row : row + 6, column + i % 3] = 1.0
        canvas[i, 0, row + 2, column : column + 5] = 1.0
    return canvas + 0.05 * torch.randn(count, 1, 12, 12, generator=rng)


def d_objective(real, fake):
    return F.relu(1 - real).mean() + F.relu(1 + fake).mean()


@torch.no_grad()
def follow(average, current, keep=0.9):
    for slow, fast in zip(average.parameters(), current.parameters()):
        slow.mul_(keep).add_(fast, alpha=1 - keep)
    for slow, fast in zip(average.buffers(), current.buffers()):
        slow.copy_(fast)


torch.manual_seed(62)
generator, discriminator, features = Generator(), Discriminator(), Features()
average = copy.deepcopy(generator).requires_grad_(False)
models = [generator, discriminator, features, average]
g_adam = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.99))
d_adam = torch.optim.Adam(discriminator.parameters(), lr=4e-3, betas=(0.5, 0.99))
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1, 2])
losses = []
for _ in range(3):
    debugger.start(models)
    real = glyphs()

    d_adam.zero_grad()
    z = torch.randn(12, NOISE, generator=rng)
    fake = generator(z).detach()
    d_loss = d_objective(discriminator(real), discriminator(fake))
    d_loss.backward()
    d_adam.step()

    g_adam.zero_grad()
    z = torch.randn(12, NOISE, generator=rng)
    made = generator(z)
    closeness = F.l1_loss(features(made).mean(0), features(real).mean(0))
    g_loss = -discriminator(made).mean() + 2.0 * closeness
    g_loss.backward()
    g_adam.step()
    follow(average, generator)

    losses += [d_loss.item(), g_loss.item()]
    debugger.stop()
    debugger.step()
