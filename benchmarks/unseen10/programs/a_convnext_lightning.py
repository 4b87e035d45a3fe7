"""Small ConvNeXt on coloured squares with Lightning: mixup, label smoothing, SGD with Nesterov momentum."""

import sys

import lightning.pytorch as pl
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

from msprobe.pytorch import MsprobeCallback

CLASSES = 5
losses = []


class ChannelNorm(nn.Module):
    """LayerNorm over the channels of an image (N, C, H, W)."""

    def __init__(self, channels, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.eps = eps

    def forward(self, image):
        mean = image.mean(1, keepdim=True)
        variance = (image - mean).pow(2).mean(1, keepdim=True)
        image = (image - mean) / torch.sqrt(variance + self.eps)
        return self.weight[:, None, None] * image + self.bias[:, None, None]


class NextBlock(nn.Module):
    def __init__(self, channels, scale=0.1):
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, kernel_size=5, padding=2, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.widen = nn.Linear(channels, 4 * channels)
        self.narrow = nn.Linear(4 * channels, channels)
        self.gamma = nn.Parameter(scale * torch.ones(channels))

    def forward(self, image):
        shortcut = image
        image = self.depthwise(image)
        image = image.permute(0, 2, 3, 1)
        image = self.norm(image)
        image = self.narrow(F.gelu(self.widen(image)))
        image = self.gamma * image
        image = image.permute(0, 3, 1, 2)
        return shortcut + image


class Classifier(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 12, kernel_size=2, stride=2), ChannelNorm(12))
        self.stage1 = nn.Sequential(NextBlock(12), NextBlock(12))
        self.shrink = nn.Sequential(ChannelNorm(12), nn.Conv2d(12, 20, kernel_size=2, stride=2))
        self.stage2 = nn.Sequential(NextBlock(20), NextBlock(20))
        self.last = nn.LayerNorm(20, eps=1e-6)
        self.head = nn.Linear(20, CLASSES)
        self.register_buffer("pixel_mean", torch.tensor([0.45, 0.5, 0.4]).view(3, 1, 1))
        self.register_buffer("pixel_std", torch.tensor([0.25, 0.3, 0.2]).view(3, 1, 1))
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.trunc_normal_(module.weight, std=0.15)
                nn.init.zeros_(module.bias)

    def forward(self, pixels):
        image = (pixels - self.pixel_mean) / self.pixel_std
        image = self.stage1(self.stem(image))
        image = self.stage2(self.shrink(image))
        pooled = image.mean(dim=(2, 3))
        return self.head(self.last(pooled))

    def training_step(self, batch, number):
        pixels, label = batch
        share = 0.7 + 0.1 * (number % 3)
        mixed = share * pixels + (1 - share) * pixels.flip(0)
        scores = self(mixed)
        here = F.cross_entropy(scores, label, label_smoothing=0.1)
        there = F.cross_entropy(scores, label.flip(0), label_smoothing=0.1)
        loss = share * here + (1 - share) * there
        losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        wide = [p for p in self.parameters() if p.ndim > 1]
        flat = [p for p in self.parameters() if p.ndim <= 1]
        groups = [{"params": wide, "weight_decay": 0.01}, {"params": flat, "weight_decay": 0.0}]
        optimizer = torch.optim.SGD(groups, lr=0.05, momentum=0.9, nesterov=True)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=6)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def images(count=24, side=12):
    dice = torch.Generator().manual_seed(99)
    label = torch.randint(0, CLASSES, (count,), generator=dice)
    pixels = 0.2 * torch.rand(count, 3, side, side, generator=dice)
    for i, kind in enumerate(label.tolist()):
        pixels[i, kind % 3, kind : kind + 6, 2 : 8 - kind // 3] += 0.7
    return TensorDataset(pixels, label)


pl.seed_everything(8, verbose=False)
model = Classifier()
trainer = pl.Trainer(
    max_steps=3,
    accelerator="cpu",
    gradient_clip_val=2.0,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
settings = {"dump_path": sys.argv[1], "task": sys.argv[2], "level": "mix", "step": [0, 1, 2]}
trainer.callbacks.append(MsprobeCallback(debugger=settings))
trainer.fit(model, DataLoader(images(), batch_size=8))
