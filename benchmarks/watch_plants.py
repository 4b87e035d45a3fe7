"""Ten sicknesses that the rules of the monitor were not made for, each in a small model of its own kind.

python benchmarks/watch_plants.py [--seed 0] [--only NAME]

Every plant says beforehand which rules may name which target. It counts as found when no alarm comes before it, and an
alarm of one of these rules names this target within five steps. The same model without the plant must raise no alarm.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

import tables
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from msprobe.pytorch import Monitor
from msprobe.watch.reading.run import Run

STEPS, AT, NEAR = 160, 100, 5
TARGETS = ["weight", "grad", "grad_before_clip", "state", "update", "output"]
Step = Callable[[bool], Tensor]
"""Trains one step; the argument says whether the sickness has begun. Returns the loss."""


class Recurrent(nn.Module):
    """An LSTM that sums numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 16, batch_first=True)
        self.head = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class Language(nn.Module):
    """A transformer without a causal mask, or with one."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(32, 16)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 32)
        self.masked = True
        self.factor = 1.0

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1]) if self.masked else None
        return self.factor * self.head(self.block(self.tokens(tokens), src_mask=mask))


def images(data: torch.Generator) -> tuple[Tensor, Tensor]:
    labels = torch.randint(4, (16,), generator=data)
    return torch.randn(16, 3, 8, 8, generator=data) + 0.3 * labels[:, None, None, None], labels


def tokens_of(data: torch.Generator) -> Tensor:
    jumps = torch.randint(1, 4, (8, 13), generator=data)
    return (torch.randint(32, (8, 1), generator=data) + jumps.cumsum(1)) % 32


def conv_net() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(32, 4),
    )


@dataclass
class Trained:
    """The model, its optimizers and one step of training."""

    model: nn.Module
    optimizer: Any
    step: Step


def conv(spoil: Callable[[Trained, Tensor, Tensor], tuple[Tensor, Tensor]], data: torch.Generator) -> Trained:
    model = conv_net()
    optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)

    def step(sick: bool) -> Tensor:
        inputs, labels = images(data)
        if sick:
            inputs, labels = spoil(trained, inputs, labels)
        loss = F.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    trained = Trained(model, optimizer, step)
    return trained


def language(spoil: Callable[[Trained, Tensor], Tensor], data: torch.Generator, reduction: str = "mean") -> Trained:
    model = Language()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)

    def step(sick: bool) -> Tensor:
        tokens = tokens_of(data)
        if sick:
            tokens = spoil(trained, tokens)
        logits = model(tokens[:, :-1]).flatten(0, 1)
        loss = F.cross_entropy(logits, tokens[:, 1:].flatten(), reduction=reduction if sick else "mean")
        trained.optimizer.zero_grad()
        loss.backward()
        trained.optimizer.step()
        return loss.detach()

    trained = Trained(model, optimizer, step)
    return trained


def raw_images(data: torch.Generator) -> Trained:
    return conv(lambda trained, inputs, labels: (255 * inputs, labels), data)


def everything_dropped(data: torch.Generator) -> Trained:
    def spoil(trained: Trained, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        trained.model[5].p = 1.0  # type: ignore[index]
        return inputs, labels

    return conv(spoil, data)


def only_padding(data: torch.Generator) -> Trained:
    return language(lambda trained, tokens: torch.zeros_like(tokens), data)


def hot_logits(data: torch.Generator) -> Trained:
    def spoil(trained: Trained, tokens: Tensor) -> Tensor:
        trained.model.factor = 100.0  # type: ignore[assignment]
        return tokens

    return language(spoil, data)


def summed_loss(data: torch.Generator) -> Trained:
    return language(lambda trained, tokens: tokens, data, "sum")


def new_optimizer(data: torch.Generator) -> Trained:
    """A loop that makes its optimizer again at every step: the moments never grow."""

    def spoil(trained: Trained, tokens: Tensor) -> Tensor:
        trained.optimizer.state.clear()
        return tokens

    return language(spoil, data)


def broken_recurrence(data: torch.Generator) -> Trained:
    model = Recurrent()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    done: list[bool] = []

    def step(sick: bool) -> Tensor:
        inputs = torch.randn(16, 6, 4, generator=data)
        if sick and not done:
            done.append(True)
            with torch.no_grad():
                model.lstm.weight_hh_l0.mul_(50)
        loss = F.mse_loss(model(inputs), inputs.sum((1, 2))[:, None] / 5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Trained(model, optimizer, step)


def ascent(data: torch.Generator) -> Trained:
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)

    def step(sick: bool) -> Tensor:
        inputs = torch.randn(32, 8, generator=data)
        loss = F.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
        optimizer.zero_grad()
        (-loss if sick else loss).backward()
        optimizer.step()
        return loss.detach()

    return Trained(model, optimizer, step)


def idle_critic(data: torch.Generator) -> Trained:
    """A GAN whose discriminator is no longer stepped."""
    maker = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    critic = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    model = nn.ModuleDict({"maker": maker, "critic": critic})
    steps = {name: torch.optim.Adam(part.parameters(), 1e-3, betas=(0.5, 0.9)) for name, part in model.items()}

    def step(sick: bool) -> Tensor:
        real = torch.randn(32, 2, generator=data) + 1
        fake = maker(torch.randn(32, 4, generator=data))
        judged = F.softplus(-critic(real)).mean() + F.softplus(critic(fake.detach())).mean()
        steps["critic"].zero_grad()
        judged.backward()
        if not sick:
            steps["critic"].step()
        made = F.softplus(-critic(fake)).mean()
        steps["maker"].zero_grad()
        made.backward()
        steps["maker"].step()
        return made.detach()

    return Trained(model, list(steps.values()), step)


def one_token(data: torch.Generator) -> Trained:
    def spoil(trained: Trained, tokens: Tensor) -> Tensor:
        return tokens[:, :1].expand(-1, tokens.shape[1]).contiguous()

    return language(spoil, data)


LOSS = ("loss_spike", "loss_drift")
PLANTS: dict[str, tuple[Callable[[torch.Generator], Trained], tuple[str, ...], str]] = {
    "images are not normalised": (raw_images, ("spike",), "output/0"),
    "dropout drops everything": (everything_dropped, ("zero",), "output/5"),
    "all tokens are padding": (only_padding, ("dead", "zero", "spike"), "tokens"),
    "logits are 100 times larger": (hot_logits, ("spike", *LOSS), ""),
    "the loss is a sum": (summed_loss, LOSS, "loss"),
    "a new optimizer at every step": (new_optimizer, ("state_decay", "update_large"), "state"),
    "recurrent weights grow 50 times": (broken_recurrence, ("update_large", "spike"), "lstm"),
    "gradient ascent": (ascent, ("loss_drift", "loss_spike", "spike"), ""),
    "the critic of a GAN is not stepped": (idle_critic, ("frozen",), "critic"),
    "the data repeat one token": (one_token, LOSS, "loss"),
}


def train(make: Callable[[torch.Generator], Trained], seed: int, folder: Path, sick: bool) -> list[Any]:
    torch.manual_seed(seed)
    trained = make(torch.Generator().manual_seed(seed + 1))
    monitor = Monitor(trained.model, trained.optimizer, {"dump_path": str(folder), "targets": TARGETS})
    for step in range(STEPS):
        monitor.step(loss=trained.step(sick and step >= AT))
    monitor.close()
    run = Run(folder)
    alarms = run.alarms()
    run.close()
    return alarms


def judge(alarms: list[Any], rules: tuple[str, ...], target: str) -> str:
    early = [alarm for alarm in alarms if alarm.step < AT]
    if early:
        return f"too early: {early[0].sentence}"
    for alarm in alarms:
        if alarm.rule in rules and target in f"{alarm.kind}/{alarm.name}" and alarm.step <= AT + NEAR:
            return "found"
    return "missed" + (f": {alarms[0].rule} at {alarms[0].step}" if alarms else "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=PLANTS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    work = Path(tempfile.mkdtemp(prefix="msprobe-plants-"))
    rows = []
    try:
        for number, (name, (make, rules, target)) in enumerate(PLANTS.items()):
            if args.only in (None, name):
                clean = train(make, args.seed, work / f"clean{number}", False)
                alarms = train(make, args.seed, work / f"sick{number}", True)
                first = alarms[0].sentence if alarms else ""
                healthy = f"{len(clean)} alarms: {clean[0].sentence}" if clean else "no alarm"
                rows.append([name, judge(alarms, rules, target), healthy, first])
                print(*rows[-1], sep=" | ", flush=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(tables.table(["plant", "result", "without the plant", "first alarm"], rows))
    return sum(row[1] != "found" or row[2] != "no alarm" for row in rows)


if __name__ == "__main__":
    sys.exit(main())
