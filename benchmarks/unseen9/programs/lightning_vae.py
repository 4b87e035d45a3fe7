"""Lightning: a variational autoencoder with a conditional prior, KL warm-up, free bits, two parameter groups."""

import sys

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from torch import nn

from msprobe.pytorch import MsprobeCallback

torch.manual_seed(111)
losses = []


class Vae(pl.LightningModule):
    def __init__(self, pixels=64, hidden=40, latent=6, classes=4):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(pixels, hidden), nn.BatchNorm1d(hidden), nn.SiLU())
        self.to_mean, self.to_log_var = nn.Linear(hidden, latent), nn.Linear(hidden, latent)
        self.prior = nn.Embedding(classes, latent)
        self.decoder = nn.Sequential(
            nn.Linear(latent, hidden),
            nn.LayerNorm(hidden),
            nn.SiLU(),
            nn.utils.parametrizations.weight_norm(nn.Linear(hidden, pixels)),
        )

    def forward(self, x, noise):
        h = self.encoder(x)
        mean, log_var = self.to_mean(h), self.to_log_var(h).clamp(-6, 2)
        z = mean + torch.exp(0.5 * log_var) * noise
        return self.decoder(z), mean, log_var

    def training_step(self, batch, index):
        x, labels, noise = batch
        logits, mean, log_var = self(x, noise)
        rebuilt = F.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(1)
        apart = (mean - self.prior(labels)).square()
        kl = 0.5 * (apart + log_var.exp() - 1 - log_var)
        kl = kl.mean(0).clamp(min=0.02).sum()
        beta = min(1.0, 0.2 * (self.global_step + 1))
        loss = rebuilt.mean() + beta * kl
        losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        prior = list(self.prior.parameters())
        rest = [p for name, p in self.named_parameters() if not name.startswith("prior")]
        groups = [{"params": rest}, {"params": prior, "lr": 0.05}]
        optimizer = torch.optim.NAdam(groups, lr=5e-3)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7), "interval": "step"}]


def examples():
    chooser = torch.Generator().manual_seed(5)
    x = torch.rand(36, 64, generator=chooser)
    labels = torch.randint(0, 4, (36,), generator=chooser)
    return x, labels, torch.randn(36, 6, generator=chooser)


model = Vae()
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*examples()), batch_size=12)
settings = {"dump_path": sys.argv[1], "task": sys.argv[2], "level": "mix", "step": [0, 1, 2]}
trainer = pl.Trainer(
    max_steps=3,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    gradient_clip_val=5.0,
)
trainer.callbacks.append(MsprobeCallback(debugger=settings))
trainer.fit(model, loader)
