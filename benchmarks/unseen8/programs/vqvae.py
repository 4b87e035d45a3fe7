"""A vector-quantised auto-encoder on short sequences; the codebook moves by averages."""

import sys

import torch
import torch.nn.functional as F
from torch import nn

from msprobe.pytorch import PrecisionDebugger

torch.manual_seed(6)
CODES, WIDTH = 8, 6


class Quantizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("codebook", torch.randn(CODES, WIDTH))
        self.register_buffer("counts", torch.ones(CODES))
        self.register_buffer("sums", self.codebook.clone())

    def forward(self, z):
        flat = z.reshape(-1, WIDTH)
        distance = flat.pow(2).sum(1, keepdim=True) - 2 * flat @ self.codebook.t() + self.codebook.pow(2).sum(1)
        chosen = distance.argmin(dim=1)
        quantized = F.embedding(chosen, self.codebook).view_as(z)
        commitment = F.mse_loss(z, quantized.detach())
        with torch.no_grad():
            hot = F.one_hot(chosen, CODES).to(z.dtype)
            self.counts.mul_(0.9).add_(hot.sum(0), alpha=0.1)
            self.sums.mul_(0.9).add_(hot.t() @ flat, alpha=0.1)
            total = self.counts.sum()
            smooth = (self.counts + 1e-2) / (total + CODES * 1e-2) * total
            self.codebook.copy_(self.sums / smooth[:, None])
        return z + (quantized - z).detach(), commitment


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Conv1d(2, 12, 4, 2, 1), nn.ReLU(), nn.Conv1d(12, WIDTH, 3, 1, 1))
        self.quantizer = Quantizer()
        self.decode = nn.Sequential(nn.ConvTranspose1d(WIDTH, 12, 4, 2, 1), nn.ReLU(), nn.Conv1d(12, 2, 3, 1, 1))

    def forward(self, x):
        z = self.encode(x).transpose(1, 2)
        q, commitment = self.quantizer(z)
        return self.decode(q.transpose(1, 2)), commitment


model = Autoencoder()
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
data = torch.randn(2, 4, 2, 16)
losses = []
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1])
for step in range(2):
    debugger.start(model)
    output, commitment = model(data[step])
    loss = F.l1_loss(output, data[step]) + 0.25 * commitment
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    debugger.stop()
    debugger.step()
    losses.append(loss.item())
