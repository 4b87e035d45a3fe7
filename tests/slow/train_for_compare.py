"""A training script of a user's, run by test_peer_compare.py: every kind of value that a dump can hold.

Usage: train_for_compare.py CONFIG
"""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from msprobe.pytorch import PrecisionDebugger


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.bn = nn.BatchNorm2d(4)
        self.act = nn.ReLU(inplace=True)
        self.norm = nn.LayerNorm(36)
        self.rnn = nn.LSTM(36, 8, batch_first=True)
        self.fc = nn.Linear(8, 5)

    def forward(self, images: Tensor) -> Tensor:
        x = self.act(self.bn(self.conv(images))).flatten(1)
        x = self.norm(x) * 2 + 1
        states, _ = self.rnn(x.unsqueeze(1))
        x = torch.cat([states[:, 0], states[:, -1]], dim=0)
        half = x.to(torch.bfloat16).float()
        largest = torch.topk(half, k=3, dim=1, largest=True)
        mask = torch.isfinite(half) & (half > -10)
        x = torch.where(mask, half, torch.zeros_like(half))
        return self.fc(x) + largest.values.sum(dim=-1, keepdim=True) + self.fc(x)


def main() -> None:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    debugger = PrecisionDebugger(config_path=sys.argv[1])
    for _ in range(2):
        debugger.start(model=model)
        loss = F.cross_entropy(model(torch.randn(4, 1, 5, 5)), torch.randint(5, (8,)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        debugger.stop()
        debugger.step()


if __name__ == "__main__":
    main()
