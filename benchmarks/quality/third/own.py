"""Networks of the third set, as users write them: graph attention, a flow, a GAN, a radiance field, a PINN."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Batch = dict[str, Any]


def _generator(step: int) -> torch.Generator:
    return torch.Generator().manual_seed(7000 + step)


class Attend(nn.Module):
    """One layer of graph attention: scores of edges, a softmax over the neighbours of each node."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(width, width, bias=False)
        self.source = nn.Parameter(torch.randn(heads, width // heads) * 0.3)
        self.goal = nn.Parameter(torch.randn(heads, width // heads) * 0.3)
        self.norm = nn.GroupNorm(2, width)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        nodes = x.shape[0]
        h = self.project(x).view(nodes, self.heads, -1)
        start, end = edges
        score = F.leaky_relu((h * self.source).sum(-1)[start] + (h * self.goal).sum(-1)[end], 0.2)
        weight = torch.exp(score - score.max())
        total = torch.zeros(nodes, self.heads).index_add(0, end, weight)
        mixed = torch.zeros_like(h).index_add(0, end, h[start] * weight[..., None])
        return F.elu(self.norm((mixed / (total[..., None] + 1e-9)).flatten(1)))


class GraphAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inward = nn.Linear(6, 16)
        self.layers = nn.ModuleList(Attend(16, 4) for _ in range(2))
        self.out = nn.Linear(16, 3)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = self.inward(x)
        for layer in self.layers:
            x = x + layer(x, edges)
        return self.out(x)


def _graph(step: int) -> Batch:
    generator = _generator(step)
    edges = torch.cat([torch.randint(0, 12, (2, 30), generator=generator), torch.arange(12).repeat(2, 1)], dim=1)
    return {"x": torch.randn(12, 6, generator=generator), "edges": edges,
            "labels": torch.randint(0, 3, (12,), generator=generator)}  # fmt: skip


def _graph_loss(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch["x"], batch["edges"]), batch["labels"], label_smoothing=0.1)


class Coupling(nn.Module):
    """An affine coupling: one half of the features scales and shifts the other."""

    def __init__(self, flip: bool) -> None:
        super().__init__()
        self.flip = flip
        self.net = nn.Sequential(nn.Linear(3, 24), nn.Softplus(), nn.Linear(24, 6))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        fixed, free = x.chunk(2, dim=-1)
        if self.flip:
            fixed, free = free, fixed
        log_scale, shift = self.net(fixed).chunk(2, dim=-1)
        log_scale = 0.5 * torch.tanh(log_scale)
        moved = free * torch.exp(log_scale) + shift
        parts = (moved, fixed) if self.flip else (fixed, moved)
        return torch.cat(parts, dim=-1), log_scale.sum(-1)


class Flow(nn.Module):
    """A normalizing flow with a learned base."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.ModuleList(Coupling(bool(n % 2)) for n in range(4))
        self.centre = nn.Parameter(torch.zeros(6))
        self.register_buffer("order", torch.tensor([3, 0, 4, 1, 5, 2]))

    def forward(self, x: Tensor) -> Tensor:
        volume = torch.zeros(x.shape[0])
        for step in self.steps:
            x, more = step(x)
            volume = volume + more
            x = x[:, self.order]
        density = -0.5 * ((x - self.centre) ** 2).sum(-1) - 3 * math.log(2 * math.pi)
        return density + volume


def _samples(step: int) -> Batch:
    return {"x": torch.randn(20, 6, generator=_generator(step)) * 1.5 + 0.5}


def _likelihood(model: nn.Module, batch: Batch) -> Tensor:
    return -model(batch["x"]).mean()


class Gan(nn.Module):
    """A generator and a critic; the loop has an optimizer for each."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(4, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 6))
        self.critic = nn.Sequential(
            nn.utils.parametrizations.spectral_norm(nn.Linear(6, 24)), nn.LeakyReLU(0.2), nn.Linear(24, 1)
        )

    def forward(self, noise: Tensor) -> Tensor:
        return self.critic(self.generator(noise))


def _noise(step: int) -> Batch:
    generator = _generator(step)
    return {"noise": torch.randn(16, 4, generator=generator), "real": torch.randn(16, 6, generator=generator)}


def _fooled(model: nn.Module, batch: Batch) -> Tensor:
    fake = model(batch["noise"])
    real = model.critic(batch["real"])
    return F.softplus(-fake).mean() + F.softplus(real).mean()


class Field(nn.Module):
    """A radiance field: encoded positions, densities that are composed along a ray."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequencies", 2.0 ** torch.arange(3))
        self.first = nn.Linear(18, 32)
        self.second = nn.Linear(32 + 18, 32)
        self.density = nn.Linear(32, 1)
        self.colour = nn.Sequential(nn.Linear(32 + 3, 16), nn.ReLU(), nn.Linear(16, 3), nn.Sigmoid())

    def encode(self, points: Tensor) -> Tensor:
        angles = (points[..., None] * self.frequencies).flatten(-2)
        return torch.cat([torch.sin(angles), torch.cos(angles)], dim=-1)

    def forward(self, origins: Tensor, directions: Tensor, depths: Tensor) -> Tensor:
        points = origins[:, None] + directions[:, None] * depths[..., None]
        code = self.encode(points)
        hidden = F.relu(self.first(code))
        hidden = F.relu(self.second(torch.cat([hidden, code], dim=-1)))
        density = F.softplus(self.density(hidden)).squeeze(-1)
        colour = self.colour(torch.cat([hidden, directions[:, None].expand(-1, depths.shape[1], -1)], dim=-1))
        gaps = torch.diff(depths, append=depths[:, -1:] + 0.5)
        alpha = 1 - torch.exp(-density * gaps)
        seen = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-6], dim=1), dim=1)[:, :-1]
        return ((alpha * seen)[..., None] * colour).sum(1)


def _rays(step: int) -> Batch:
    generator = _generator(step)
    return {
        "origins": torch.randn(8, 3, generator=generator),
        "directions": F.normalize(torch.randn(8, 3, generator=generator), dim=-1),
        "depths": torch.linspace(0.5, 3, 7).repeat(8, 1),
        "colours": torch.rand(8, 3, generator=generator),
    }


def _photo_loss(model: nn.Module, batch: Batch) -> Tensor:
    seen = model(batch["origins"], batch["directions"], batch["depths"])
    return F.smooth_l1_loss(seen, batch["colours"], beta=0.3)


class Pinn(nn.Module):
    """u(x, t) of the heat equation; the residual needs second derivatives."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 20), nn.Linear(20, 20), nn.Linear(20, 1)])
        self.slopes = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h = torch.stack([x, t], dim=-1)
        for n, layer in enumerate(self.layers[:-1]):
            h = torch.tanh(self.slopes[n] * layer(h))
        return self.layers[-1](h).squeeze(-1)


def _places(step: int) -> Batch:
    generator = _generator(step)
    return {"x": torch.rand(24, generator=generator), "t": torch.rand(24, generator=generator)}


def residual(model: nn.Module, batch: Batch, diffusivity: float = 0.1, boundary: float = 1.0) -> Tensor:
    x, t = batch["x"].clone().requires_grad_(), batch["t"].clone().requires_grad_()
    u = model(x, t)
    du_dx, du_dt = torch.autograd.grad(u.sum(), (x, t), create_graph=True)
    (d2u,) = torch.autograd.grad(du_dx.sum(), x, create_graph=True)
    inside = (du_dt - diffusivity * d2u).pow(2).mean()
    start = (model(batch["x"], torch.zeros_like(batch["t"])) - torch.sin(math.pi * batch["x"])).pow(2).mean()
    return inside + boundary * start


NETWORKS = {
    "graph_attention": (GraphAttention, _graph, _graph_loss),
    "flow": (Flow, _samples, _likelihood),
    "gan": (Gan, _noise, _fooled),
    "field": (Field, _rays, _photo_loss),
    "pinn": (Pinn, _places, residual),
}
