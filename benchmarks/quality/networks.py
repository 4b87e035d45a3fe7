"""Networks that are not from transformers, written as users write them: vision, recurrence, graphs, recommendation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def _generator(step: int) -> torch.Generator:
    return torch.Generator().manual_seed(2000 + step)


class ResidualBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x
        x = self.act(self.bn1(self.conv1(x)))
        x = self.bn2(self.conv2(x))
        x = x + shortcut
        return self.act(x)


class ResNet(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(ResidualBlock(width) for _ in range(3))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(width, 5)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.stem(pixels)
        for block in self.blocks:
            x = block(x)
        x = self.pool(x).flatten(1)
        return self.head(x)


class DoubleConv(nn.Module):
    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inside, outside, 3, padding=1)
        self.norm = nn.GroupNorm(2, outside)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.norm(self.conv(x)))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1 = DoubleConv(3, 8)
        self.down2 = DoubleConv(8, 16)
        self.middle = DoubleConv(16, 16)
        self.up2 = DoubleConv(32, 8)
        self.up1 = DoubleConv(16, 8)
        self.out = nn.Conv2d(8, 3, 1)

    def forward(self, pixels: Tensor) -> Tensor:
        first = self.down1(pixels)
        second = self.down2(F.max_pool2d(first, 2))
        x = self.middle(F.max_pool2d(second, 2))
        x = F.interpolate(x, scale_factor=2, mode="nearest")
        x = self.up2(torch.cat([x, second], dim=1))
        x = F.interpolate(x, scale_factor=2, mode="nearest")
        x = self.up1(torch.cat([x, first], dim=1))
        return self.out(x)


class LanguageLSTM(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(96, 24)
        self.lstm = nn.LSTM(24, 32, num_layers=2, batch_first=True, dropout=dropout)
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 96)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        x, _ = self.lstm(x)
        x = self.norm(x)
        return self.head(x)


class MessageLayer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.message = nn.Linear(2 * width, width)
        self.update = nn.Linear(2 * width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        messages = F.relu(self.message(torch.cat([nodes[source], nodes[target]], dim=-1)))
        gathered = torch.zeros_like(nodes).index_add(0, target, messages)
        degree = torch.zeros(nodes.shape[0]).index_add(0, target, torch.ones(target.shape[0])).clamp(min=1)
        gathered = gathered / degree.unsqueeze(-1)
        update = self.update(torch.cat([nodes, gathered], dim=-1))
        return self.norm(nodes + update)


class GNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(12, 24)
        self.layers = nn.ModuleList(MessageLayer(24) for _ in range(3))
        self.head = nn.Linear(24, 4)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        x = self.encode(nodes)
        for layer in self.layers:
            x = layer(x, edges)
        return self.head(x)


class EncoderClassifier(nn.Module):
    def __init__(self, dropout: float = 0.1, norm_first: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(96, 32)
        self.position = nn.Parameter(torch.randn(1, 10, 32) * 0.02)
        layer = nn.TransformerEncoderLayer(32, 4, 48, dropout, "gelu", batch_first=True, norm_first=norm_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 5)

    def forward(self, ids: Tensor, padding: Tensor) -> Tensor:
        x = self.embed(ids) + self.position
        x = self.encoder(x, src_key_padding_mask=padding)
        x = x.mean(dim=1)
        return self.head(x)


class MixerBlock(nn.Module):
    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.tokens = nn.Sequential(nn.Linear(patches, 24), nn.GELU(), nn.Linear(24, patches))
        self.norm2 = nn.LayerNorm(width)
        self.channels = nn.Sequential(nn.Linear(width, 48), nn.GELU(), nn.Linear(48, width))

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        x = x + mixed
        return x + self.channels(self.norm2(x))


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 4, stride=4)
        self.blocks = nn.Sequential(*(MixerBlock(16, 32) for _ in range(2)))
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 5)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.patches(pixels).flatten(2).transpose(1, 2)
        x = self.norm(self.blocks(x))
        return self.head(x.mean(dim=1))


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(64, 32), nn.Tanh())
        self.mean = nn.Linear(32, 8)
        self.log_variance = nn.Linear(32, 8)
        self.decode = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.encode(x)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        deviation = torch.exp(0.5 * log_variance)
        z = mean + deviation * torch.randn_like(deviation)
        return self.decode(z), mean, log_variance


class Translator(nn.Module):
    """GRU encoder and decoder with dot-product attention and teacher forcing."""

    def __init__(self) -> None:
        super().__init__()
        self.source = nn.Embedding(96, 24)
        self.target = nn.Embedding(96, 24)
        self.encoder = nn.GRU(24, 32, batch_first=True)
        self.decoder = nn.GRUCell(24, 32)
        self.combine = nn.Linear(64, 32)
        self.head = nn.Linear(32, 96)

    def forward(self, ids: Tensor, answers: Tensor) -> Tensor:
        states, last = self.encoder(self.source(ids))
        hidden = last[0]
        logits = []
        for position in range(answers.shape[1]):
            hidden = self.decoder(self.target(answers[:, position]), hidden)
            scores = torch.bmm(states, hidden.unsqueeze(2)).squeeze(2)
            weights = torch.softmax(scores, dim=1)
            context = torch.bmm(weights.unsqueeze(1), states).squeeze(1)
            combined = torch.tanh(self.combine(torch.cat([hidden, context], dim=1)))
            logits.append(self.head(combined))
        return torch.stack(logits, dim=1)


class Recommender(nn.Module):
    """Embeddings of categories, pairwise products, and a tower of dense layers."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8))
        self.tables = nn.ModuleList(nn.EmbeddingBag(20, 8, mode="sum") for _ in range(3))
        self.tower = nn.Sequential(nn.Linear(14, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        dense = self.dense(numbers)
        features = torch.stack([dense, *(table(categories[:, i]) for i, table in enumerate(self.tables))], dim=1)
        products = torch.bmm(features, features.transpose(1, 2))
        rows, columns = torch.triu_indices(4, 4, offset=1)
        x = torch.cat([dense, products[:, rows, columns]], dim=1)
        return torch.sigmoid(self.tower(x)).squeeze(1)


def _images(step: int) -> dict[str, Any]:
    generator = _generator(step)
    pixels = torch.randn(4, 3, 16, 16, generator=generator)
    return {"pixels": pixels, "labels": torch.randint(0, 5, (4,), generator=generator)}


def _ids(step: int) -> dict[str, Any]:
    generator = _generator(step)
    ids = torch.randint(3, 96, (4, 10), generator=generator)
    padding = torch.zeros(4, 10, dtype=torch.bool)
    padding[-1, 7:] = True
    return {"ids": ids, "padding": padding, "labels": torch.randint(0, 5, (4,), generator=generator)}


def _graph(step: int) -> dict[str, Any]:
    generator = _generator(step)
    return {
        "nodes": torch.randn(16, 12, generator=generator),
        "edges": torch.randint(0, 16, (2, 40), generator=generator),
        "labels": torch.randint(0, 4, (16,), generator=generator),
    }


def _vectors(step: int) -> dict[str, Any]:
    return {"x": torch.rand(8, 64, generator=_generator(step))}


def _sentences(step: int) -> dict[str, Any]:
    generator = _generator(step)
    draw = lambda: torch.randint(3, 96, (4, 6), generator=generator)  # noqa: E731
    return {"ids": draw(), "answers": draw()}


def _clicks(step: int) -> dict[str, Any]:
    generator = _generator(step)
    return {
        "numbers": torch.rand(8, 6, generator=generator),
        "categories": torch.randint(0, 20, (8, 3, 2), generator=generator),
        "labels": torch.randint(0, 2, (8,), generator=generator).float(),
    }


def _classify(*names: str) -> Callable[[nn.Module, dict[str, Any]], Tensor]:
    return lambda model, batch: F.cross_entropy(model(*(batch[name] for name in names)), batch["labels"])


def _denoise(model: nn.Module, batch: dict[str, Any]) -> Tensor:
    return F.mse_loss(model(batch["pixels"]), batch["pixels"].roll(1, dims=-1))


def _next_token(model: nn.Module, batch: dict[str, Any]) -> Tensor:
    logits = model(batch["ids"])
    return F.cross_entropy(logits[:, :-1].reshape(-1, 96), batch["ids"][:, 1:].reshape(-1))


def _evidence(model: nn.Module, batch: dict[str, Any]) -> Tensor:
    rebuilt, mean, log_variance = model(batch["x"])
    divergence = -0.5 * torch.mean(1 + log_variance - mean.pow(2) - log_variance.exp())
    return F.mse_loss(rebuilt, batch["x"]) + 0.1 * divergence


def _translate(model: nn.Module, batch: dict[str, Any]) -> Tensor:
    logits = model(batch["ids"], batch["answers"])
    return F.cross_entropy(logits[:, :-1].reshape(-1, 96), batch["answers"][:, 1:].reshape(-1))


def _click(model: nn.Module, batch: dict[str, Any]) -> Tensor:
    return F.binary_cross_entropy(model(batch["numbers"], batch["categories"]), batch["labels"])


NETWORKS: dict[str, tuple[Any, Any, Any]] = {
    "resnet": (ResNet, _images, _classify("pixels")),
    "unet": (UNet, _images, _denoise),
    "lstm": (LanguageLSTM, _ids, _next_token),
    "gnn": (GNN, _graph, _classify("nodes", "edges")),
    "encoder": (EncoderClassifier, _ids, _classify("ids", "padding")),
    "mixer": (Mixer, _images, _classify("pixels")),
    "vae": (VAE, _vectors, _evidence),
    "translator": (Translator, _sentences, _translate),
    "recommender": (Recommender, _clicks, _click),
}
"""name: (class, data of a step, loss)."""
