"""A graph network on a small random graph: normalised sums over neighbours, attention over edges."""

import sys

import torch
import torch.nn.functional as F
from torch import nn

from msprobe.pytorch import PrecisionDebugger

torch.manual_seed(10)
NODES, FEATURES, HIDDEN, CLASSES = 20, 7, 12, 4


class GCN(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, bias=False)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x, source, target):
        degree = torch.zeros(NODES).index_add(0, target, torch.ones(len(target)))
        scale = degree.rsqrt()
        messages = self.linear(x)[source] * (scale[source] * scale[target])[:, None]
        return torch.zeros(NODES, messages.shape[1]).index_add(0, target, messages) + self.bias


class GAT(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, bias=False)
        self.to_source, self.to_target = nn.Parameter(torch.randn(outputs)), nn.Parameter(torch.randn(outputs))

    def forward(self, x, source, target):
        h = self.linear(x)
        score = F.leaky_relu((h @ self.to_source)[source] + (h @ self.to_target)[target], 0.2)
        top = torch.full((NODES,), float("-inf")).scatter_reduce(0, target, score, "amax", include_self=True)
        weight = torch.exp(score - top[target].detach())
        total = torch.zeros(NODES).index_add(0, target, weight)
        weight = weight / (total[target] + 1e-16)
        return torch.zeros_like(h).index_add(0, target, h[source] * weight[:, None])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gcn, self.gat = GCN(FEATURES, HIDDEN), GAT(HIDDEN, HIDDEN)
        self.norm = nn.BatchNorm1d(HIDDEN)
        self.out = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x, source, target):
        h = F.relu(self.gcn(x, source, target))
        h = h + F.elu(self.gat(self.norm(h), source, target))
        return self.out(h)


model = Net()
optimizer = torch.optim.NAdam(model.parameters(), lr=1e-2)
edges = torch.randint(0, NODES, (2, 50))
loops = torch.arange(NODES)
source, target = torch.cat([edges[0], loops]), torch.cat([edges[1], loops])
features, labels = torch.rand(NODES, FEATURES), torch.randint(0, CLASSES, (NODES,))
train = torch.arange(NODES) % 3 != 0
losses = []
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1])
for _ in range(2):
    debugger.start(model)
    x = features / features.sum(1, keepdim=True)
    logits = model(x, source, target)
    loss = F.nll_loss(logits[train].log_softmax(-1), labels[train])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    debugger.stop()
    debugger.step()
    losses.append(loss.item())
