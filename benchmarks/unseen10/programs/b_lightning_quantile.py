"""Lightning: three quantiles of a demand are forecast from a series and categories; the learning rate warms up."""

import sys

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from msprobe.pytorch import MsprobeCallback

QUANTILES = (0.1, 0.5, 0.9)
SHOPS, PAST = 6, 10


class ResidualUnit(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=1e-5)
        self.fc1 = nn.Linear(width, 2 * width)
        self.fc2 = nn.Linear(2 * width, width)

    def forward(self, x):
        y = self.fc1(self.norm(x))
        return x + 0.5 * self.fc2(nn.functional.softplus(y))


class CausalConv(nn.Module):
    def __init__(self, width, dilation):
        super().__init__()
        self.conv = nn.Conv1d(width, 2 * width, 2, dilation=dilation)
        self.dilation = dilation

    def forward(self, x):
        y = self.conv(nn.functional.pad(x, (self.dilation, 0)))
        return x + nn.functional.glu(y, dim=1)


class Forecaster(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.inputs = nn.Conv1d(1, 16, 1)
        self.past = nn.Sequential(CausalConv(16, 1), CausalConv(16, 2), CausalConv(16, 4))
        self.shop = nn.Embedding(SHOPS, 8)
        self.units = nn.Sequential(ResidualUnit(24), ResidualUnit(24))
        self.out = nn.Linear(24, len(QUANTILES))
        self.register_buffer("levels", torch.tensor(QUANTILES))

    def forward(self, series, shop):
        level = series.mean(dim=1, keepdim=True)
        spread = series.std(dim=1, keepdim=True, correction=0) + 1e-3
        x = ((series - level) / spread).unsqueeze(1)
        x = self.past(self.inputs(x))[:, :, -1]
        x = self.units(torch.cat([x, self.shop(shop)], dim=1))
        return self.out(x) * spread + level

    def pinball(self, forecast, demand):
        error = demand[:, None] - forecast
        return torch.maximum(self.levels * error, (self.levels - 1) * error).sum(dim=1).mean()

    def training_step(self, batch, index):
        series, shop, demand = batch
        forecast = self(series, shop)
        crossing = torch.relu(forecast[:, :-1] - forecast[:, 1:]).mean()
        loss = self.pinball(forecast, demand) + 0.1 * crossing
        losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.NAdam(self.parameters(), lr=1e-2, weight_decay=1e-2, decoupled_weight_decay=True)
        warm = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 3))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": warm, "interval": "step"}}


def load(rows=12):
    rng = torch.Generator().manual_seed(55)
    dtype = torch.get_default_dtype()
    shop = torch.randint(0, SHOPS, (rows,), generator=rng)
    walk = torch.randn(rows, PAST + 1, generator=rng, dtype=dtype).cumsum(1) + shop[:, None] * 0.7
    return DataLoader(TensorDataset(walk[:, :-1], shop, walk[:, -1]), batch_size=4, shuffle=False)


losses = []
pl.seed_everything(3, verbose=False)
model = Forecaster()
trainer = pl.Trainer(
    max_steps=3,
    accelerator="cpu",
    devices=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    gradient_clip_val=1.0,
    gradient_clip_algorithm="norm",
)
settings = {"dump_path": sys.argv[1], "task": sys.argv[2], "level": "mix", "step": [0, 1, 2]}
trainer.callbacks.append(MsprobeCallback(debugger=settings))
trainer.fit(model, load())
