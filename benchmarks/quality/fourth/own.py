"""Networks of other kinds: a U-Net that removes noise, two towers with a learned temperature, a temporal convolution
with weight_norm, and PointNet."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from architectures import Batch
from parts import generator
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

SEED = 13000


class Block(nn.Module):
    """Two convolutions with group norms; the time shifts the channels."""

    def __init__(self, inward: int, out: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(2, inward), nn.GroupNorm(2, out)
        self.conv1, self.conv2 = nn.Conv2d(inward, out, 3, padding=1), nn.Conv2d(out, out, 3, padding=1)
        self.time = nn.Linear(16, out)
        self.short = nn.Conv2d(inward, out, 1) if inward != out else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.time(time)[:, :, None, None]
        return self.short(x) + self.conv2(F.silu(self.norm2(h)))


class Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 16))
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.down, self.middle, self.up = Block(8, 16), Block(16, 16), Block(32, 8)
        self.norm, self.last = nn.GroupNorm(2, 8), nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, x: Tensor, moment: Tensor) -> Tensor:
        angles = moment[:, None].float() * torch.exp(torch.arange(4) * -1.0)[None]
        time = self.embed(torch.cat([angles.sin(), angles.cos()], dim=-1))
        kept = self.down(self.first(x), time)
        h = self.middle(F.avg_pool2d(kept, 2), time)
        h = F.interpolate(h, scale_factor=2, mode="nearest")
        h = self.up(torch.cat([h, kept], dim=1), time)
        return self.last(F.silu(self.norm(h)))


def _noisy(step: int) -> Batch:
    made = generator(SEED, step)
    return {
        "clean": torch.randn(4, 3, 8, 8, generator=made),
        "noise": torch.randn(4, 3, 8, 8, generator=made),
        "moment": torch.randint(0, 20, (4,), generator=made),
    }


def noise_loss(model: nn.Module, batch: Batch, quarter: float = 2.0) -> Tensor:
    kept = torch.cos(batch["moment"].float() / 20 * math.pi / quarter)[:, None, None, None]
    noisy = kept * batch["clean"] + torch.sqrt(1 - kept**2) * batch["noise"]
    return F.mse_loss(model(noisy, batch["moment"]), batch["noise"])


class Towers(nn.Module):
    """Words and pictures in one space."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Sequential(nn.EmbeddingBag(50, 24), nn.Linear(24, 24), nn.GELU(), nn.Linear(24, 16))
        self.pictures = nn.Sequential(nn.Linear(30, 24), nn.LayerNorm(24), nn.GELU(), nn.Linear(24, 16))
        self.temperature = nn.Parameter(torch.tensor(math.log(1 / 0.2)))

    def forward(self, words: Tensor, pictures: Tensor) -> Tensor:
        a = F.normalize(self.words(words), dim=-1)
        b = F.normalize(self.pictures(pictures), dim=-1)
        return self.temperature.exp() * (a @ b.t())


def _matches(step: int) -> Batch:
    made = generator(SEED + 100, step)
    return {
        "words": torch.randint(0, 50, (12, 6), generator=made),
        "pictures": torch.randn(12, 30, generator=made),
    }


def _contrast(model: nn.Module, batch: Batch) -> Tensor:
    scores = model(batch["words"], batch["pictures"])
    here = torch.arange(len(scores))
    return (F.cross_entropy(scores, here) + F.cross_entropy(scores.t(), here)) / 2


class Causal(nn.Module):
    """Two dilated convolutions that see the past only."""

    def __init__(self, inward: int, out: int, dilation: int) -> None:
        super().__init__()
        self.past = 2 * dilation
        self.conv1 = weight_norm(nn.Conv1d(inward, out, 3, dilation=dilation))
        self.conv2 = weight_norm(nn.Conv1d(out, out, 3, dilation=dilation))
        self.short = nn.Conv1d(inward, out, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.conv1(F.pad(x, (self.past, 0))))
        h = F.relu(self.conv2(F.pad(h, (self.past, 0))))
        return F.relu(h + self.short(x))


class Temporal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Causal(4, 12, 1), Causal(12, 12, 2), Causal(12, 12, 4)])
        self.head = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x.transpose(1, 2))


def _series(step: int) -> Batch:
    made = generator(SEED + 200, step)
    return {"past": torch.randn(6, 4, 20, generator=made), "next": torch.randn(6, 20, 4, generator=made)}


def _forecast(model: nn.Module, batch: Batch) -> Tensor:
    return F.smooth_l1_loss(model(batch["past"]), batch["next"])


class PointNet(nn.Module):
    """Points are turned by a learned matrix, embedded one by one, and the largest of each feature is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 9))
        self.embed = nn.Sequential(nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.ReLU(), nn.Conv1d(16, 32, 1))
        self.norm = nn.BatchNorm1d(32)
        self.head = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 5))

    def forward(self, points: Tensor) -> Tensor:
        matrix = self.turn(points.mean(dim=1)).view(-1, 3, 3) + torch.eye(3)
        turned = torch.bmm(points, matrix)
        features = self.norm(self.embed(turned.transpose(1, 2)))
        return self.head(features.max(dim=2).values)


def _clouds(step: int) -> Batch:
    made = generator(SEED + 300, step)
    return {"points": torch.randn(8, 24, 3, generator=made), "labels": torch.randint(0, 5, (8,), generator=made)}


def _smooth(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch["points"]), batch["labels"], label_smoothing=0.1)


NETWORKS: dict[str, tuple[Callable[..., nn.Module], Callable[[int], Batch], Callable[[nn.Module, Any], Tensor]]] = {
    "denoiser": (Denoiser, _noisy, noise_loss),
    "towers": (Towers, _matches, _contrast),
    "temporal": (Temporal, _series, _forecast),
    "pointnet": (PointNet, _clouds, _smooth),
}
