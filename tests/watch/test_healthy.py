"""Ten thousand healthy steps over five models: not one alarm with the default rules."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from msprobe.pytorch import Monitor
from msprobe.watch.reading.run import Run

pytestmark = pytest.mark.slow
STEPS = 2000


class Sequence(nn.Module):
    """Embedding, a body over the sequence, and a head for the next token."""

    def __init__(self, body):
        super().__init__()
        self.tokens = nn.Embedding(32, 32)
        self.body = body
        self.head = nn.Linear(32, 32)

    def forward(self, x):
        x = self.body(self.tokens(x))
        return self.head(x[0] if isinstance(x, tuple) else x)


def tokens(generator):
    """Each token follows from the one before it, with some noise."""
    start = torch.randint(32, (8, 1), generator=generator)
    steps = 5 + (torch.rand(8, 16, generator=generator) < 0.1).long()
    x = (start + torch.cat([torch.zeros(8, 1).long(), steps.cumsum(1)], 1)) % 32
    return x[:, :-1], x[:, 1:].flatten(), lambda out: out.flatten(0, 1)


def images(generator):
    y = torch.randint(4, (16,), generator=generator)
    x = torch.randn(16, 1, 8, 8, generator=generator) + y[:, None, None, None] * 0.5
    return x, y, lambda out: out


def table(generator):
    x = torch.randn(16, 12, generator=generator)
    return x, (x[:, :3].sum(1) > 0).long(), lambda out: out


def transformer():
    layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.1, batch_first=True, norm_first=True)
    return Sequence(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))


def convnet():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 4)
    )


MODELS = {
    "transformer, AdamW with warm-up and cosine": (transformer, tokens, torch.optim.AdamW, 1e-3, True),
    "LSTM, Adam": (lambda: Sequence(nn.LSTM(32, 32, batch_first=True)), tokens, torch.optim.Adam, 2e-3, False),
    "convnet, SGD": (convnet, images, torch.optim.SGD, 0.02, False),
    "perceptron, AdamW": (
        lambda: nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.Linear(32, 2)), table, torch.optim.AdamW, 1e-3, True,
    ),
    "GRU, RMSprop": (lambda: Sequence(nn.GRU(32, 32, batch_first=True)), tokens, torch.optim.RMSprop, 1e-3, False),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_a_healthy_run_has_no_alarm(name, tmp_path):
    make, batch, optimizer_type, rate, scheduled = MODELS[name]
    torch.manual_seed(0)
    model = make()
    optimizer = optimizer_type(model.parameters(), rate)
    schedule = None
    if scheduled:
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=STEPS)
    monitor = Monitor(model, optimizer, {"dump_path": str(tmp_path), "targets": ["weight", "grad", "state", "update"]})
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        x, y, shaped = batch(generator)
        optimizer.zero_grad()
        loss = F.cross_entropy(shaped(model(x)), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if schedule is not None:
            schedule.step()
        monitor.step(loss=loss)
    monitor.close()
    assert [alarm.sentence for alarm in Run(tmp_path).alarms()] == []
