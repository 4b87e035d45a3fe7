"""Does the estimate of `msprobe precision` predict what a format does to the loss? Run by hand.

python benchmarks/precision.py [--steps 200] [--seeds 6]

Trains five tiny models as they are and in nine emulated configurations (a format in all Linear modules, or mxfp4 in one
of them), and prints for each model the rank correlation (Spearman) between the estimated damage, measured while the
model trained as it is, and the loss gap: of the last tenth of the steps, and the mean distance of the loss curves.

Which of two small gaps is larger depends on the seed, so damage and gaps are means over several seeds (weights and
data). How well the gaps of one half of the seeds predict those of the other half shows what an estimate can reach.
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any, Callable, Optional

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from msprobe.dump.reader import open_dump
from msprobe.precision.estimate import estimate
from msprobe.pytorch import PrecisionDebugger
from msprobe.pytorch.emulation.linear import emulating
from msprobe.stats.formats import BY_NAME

FORMATS = ("bf16", "fp8-e4m3", "fp8-e5m2", "mxfp8", "nvfp4", "mxfp4")
SINGLE = "mxfp4"
TEXT = torch.tensor(list((Path(__file__).parents[1] / "README.md").read_bytes()[:20000]))


class Attention(nn.Module):
    def __init__(self, width: int, causal: bool) -> None:
        super().__init__()
        self.qkv, self.out, self.causal = nn.Linear(width, 3 * width), nn.Linear(width, width), causal

    def forward(self, x: Any) -> Any:
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width: int, causal: bool, gated: bool = False) -> None:
        super().__init__()
        norm = nn.RMSNorm if gated else nn.LayerNorm
        self.first, self.second = norm(width), norm(width)
        self.attention = Attention(width, causal)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(2 * width if gated else 4 * width, width)
        self.gated = gated

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.first(x))
        wide = self.up(self.second(x))
        if self.gated:
            gate, wide = wide.chunk(2, -1)
            return x + self.down(F.silu(gate) * wide)
        return x + self.down(F.gelu(wide))


class Language(nn.Module):
    """A model of bytes: one block, as GPT or as Llama."""

    def __init__(self, gated: bool) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(256, 48), nn.Embedding(32, 48)
        self.block, self.head = Block(48, causal=True, gated=gated), nn.Linear(48, 256)

    def forward(self, tokens: Any) -> Any:
        return self.head(self.block(self.words(tokens) + self.places.weight))


class Pictures(nn.Module):
    """Classifies pictures of 8x8 in patches, as a vision transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.block, self.head = nn.Linear(4, 48), Block(48, causal=False), nn.Linear(48, 4)

    def forward(self, pictures: Any) -> Any:
        patches = pictures.unfold(1, 2, 2).unfold(2, 2, 2).flatten(3).flatten(1, 2)
        return self.head(self.block(self.patch(patches)).mean(1))


def language_loss(model: Any, generator: Any) -> Any:
    starts = torch.randint(0, len(TEXT) - 33, (8,), generator=generator)
    tokens = torch.stack([TEXT[start : start + 33] for start in starts.tolist()])
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def picture_loss(model: Any, generator: Any) -> Any:
    classes = torch.randint(0, 4, (32,), generator=generator)
    grid = torch.arange(8.0)
    waves = torch.sin(grid[None] * (classes[:, None] + 1) * 0.7)
    noise = torch.randn(32, 8, 8, generator=generator)
    return F.cross_entropy(model(waves[:, :, None] * waves[:, None] + noise), classes)


def curve_loss(model: Any, generator: Any) -> Any:
    x = torch.randn(64, 16, generator=generator)
    wanted = torch.sin(2 * x[:, :4]) * x[:, 4:8] + x[:, 8:12].square()
    return F.mse_loss(model(x), wanted)


def code_loss(model: Any, generator: Any) -> Any:
    x = torch.randn(64, 8, generator=generator) @ torch.randn(8, 64, generator=torch.Generator().manual_seed(5))
    return F.mse_loss(model(torch.tanh(x)), torch.tanh(x))


MODELS: dict[str, tuple[Callable[[], Any], Callable[[Any, Any], Any]]] = {
    "gpt": (lambda: Language(gated=False), language_loss),
    "llama": (lambda: Language(gated=True), language_loss),
    "vision transformer": (Pictures, picture_loss),
    "mlp": (
        lambda: nn.Sequential(nn.Linear(16, 96), nn.GELU(), nn.Linear(96, 96), nn.GELU(), nn.Linear(96, 4)),
        curve_loss,
    ),
    "autoencoder": (
        lambda: nn.Sequential(
            nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 8), nn.Linear(8, 96), nn.ReLU(), nn.Linear(96, 64)
        ),
        code_loss,
    ),
}  # fmt: skip


def train(name: str, steps: int, seed: int, debugger: Optional[PrecisionDebugger] = None) -> Any:
    """The losses."""
    torch.manual_seed(2 * seed)
    make, loss_of = MODELS[name]
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(2 * seed + 1)
    losses = []
    for _ in range(steps):
        if debugger is not None:
            debugger.start(model)
        loss = loss_of(model, generator)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
        if debugger is not None:
            debugger.stop()
            debugger.step()
    return np.array(losses)


def damages(name: str, steps: int, seed: int) -> tuple[Any, dict[str, dict[str, float]]]:
    """The losses of the model as it is, and the noise of each Linear module in each format."""
    with tempfile.TemporaryDirectory() as folder:
        config = {"task": "statistics", "level": "L0", "dump_path": f"{folder}/dump", "step": [steps // 2]}
        config["precision"] = {"formats": list(FORMATS)}
        file = Path(folder) / "config.json"
        file.write_text(json.dumps(config))
        losses = train(name, steps, seed, PrecisionDebugger(config_path=str(file)))
        found = estimate(open_dump(Path(folder) / "dump"), [BY_NAME[one] for one in FORMATS], None, lambda a, b, c: a)
    noise: dict[str, dict[str, float]] = {}
    for verdict in found.verdicts:
        for row in verdict.rows:
            table = noise.setdefault(verdict.form.name, {})
            table[row.place] = table.get(row.place, 0.0) + 10 ** (-row.damage.level / 10)
    return losses, noise


def configurations(noise: dict[str, dict[str, float]]) -> Iterator[tuple[str, str, list[str], float]]:
    """The name, the format, the modules to keep, and the estimated damage."""
    for name in FORMATS:
        yield name, name, [], sum(noise[name].values())
    modules = sorted(noise[SINGLE], key=lambda one: noise[SINGLE][one])
    for title, module in (("least", modules[0]), ("middle", modules[len(modules) // 2]), ("most", modules[-1])):
        others = [one for one in modules if one != module]
        yield f"{SINGLE} in the {title} damaged module", SINGLE, others, noise[SINGLE][module]


def measure(name: str, steps: int, seed: int) -> tuple[list[str], Any]:
    """The configurations, and for each the estimated damage, the loss gap and the distance."""
    bare, noise = damages(name, steps, seed)
    last = max(steps // 10, 1)
    titles, found = [], []
    for title, form, keep, damage in configurations(noise):
        with emulating(BY_NAME[form], keep):
            away = train(name, steps, seed) - bare
        titles.append(title)
        found.append((damage, away[-last:].mean(), np.abs(away).mean()))
    return titles, np.array(found)


def rank_correlation(one: Any, two: Any) -> float:
    ranks = [np.argsort(np.argsort(values)) for values in (one, two)]
    return float(np.corrcoef(*ranks)[0, 1])


def between_halves(gaps: Any) -> float:
    """The mean rank correlation between the gaps of one half of the seeds and those of the other."""
    seeds = range(len(gaps))
    halves = [list(half) for half in combinations(seeds, len(gaps) // 2)]
    pairs = [(gaps[half].mean(0), gaps[[seed for seed in seeds if seed not in half]].mean(0)) for half in halves]
    return float(np.mean([rank_correlation(*pair) for pair in pairs]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=6, help="at least 2")
    parser.add_argument("--model", choices=MODELS, action="append")
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("msprobe").setLevel(logging.WARNING)
    results = []
    for name in args.model or MODELS:
        print(f"{name}: {args.seeds} seeds", flush=True)
        runs = [measure(name, args.steps, seed) for seed in range(args.seeds)]
        found = np.array([run for _, run in runs])  # seed, configuration, number
        means, scatter = found.mean(0), found[:, :, 1].std(0, ddof=1) / args.seeds**0.5
        for title, (damage, gap, distance), error in zip(runs[0][0], means, scatter):
            print(f"  {title:36} estimated {damage:.3e}  gap {gap:+.5f} ± {error:.5f}  distance {distance:.5f}")
        alone = np.mean([rank_correlation(run[:, 0], run[:, 1]) for run in found])
        results.append([rank_correlation(means[:, 0], means[:, column]) for column in (1, 2)])
        print(
            f"  rank correlation: {results[-1][0]:.2f} with the gap ({alone:.2f} in the mean of the single seeds; "
            f"{between_halves(found[:, :, 1]):.2f} between the gaps of two halves of the seeds), "
            f"{results[-1][1]:.2f} with the distance",
            flush=True,
        )
    mean = np.mean(results, axis=0)
    print(f"mean of {len(results)} models: {mean[0]:.2f} with the gap, {mean[1]:.2f} with the distance")


if __name__ == "__main__":
    main()
