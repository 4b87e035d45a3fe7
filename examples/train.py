"""A training script without msprobe. Run it with `msprobe run --config examples/config.json examples/train.py`."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
images, labels = torch.randn(64, 1, 12, 12), torch.randint(0, 10, (64,))
model = nn.Sequential(
    nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(200, 10)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for epoch in range(4):
    loss = F.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")
