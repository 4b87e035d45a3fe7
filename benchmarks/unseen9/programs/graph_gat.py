"""A graph attention network over edge lists: scatter softmax, degree norms, mean pooling per graph, regression."""

import sys

import torch
import torch.nn.functional as F
from torch import nn

from msprobe.pytorch import PrecisionDebugger

torch.manual_seed(31)


def scatter_sum(values, index, size):
    out = values.new_zeros(size, *values.shape[1:])
    return out.index_add(0, index, values)


def scatter_softmax(scores, index, size):
    where = index[:, None].expand_as(scores)
    top = scores.new_full((size, scores.shape[1]), -1e9).scatter_reduce(0, where, scores, "amax")
    weights = torch.exp(scores - top[index].detach())
    return weights / (scatter_sum(weights, index, size)[index] + 1e-16)


class GATLayer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.lift = nn.Linear(width, width, bias=False)
        self.source = nn.Parameter(torch.randn(heads, width // heads) * 0.3)
        self.target = nn.Parameter(torch.randn(heads, width // heads) * 0.3)
        self.edge = nn.Linear(4, heads, bias=False)
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x, edges, features):
        n = x.shape[0]
        h = self.lift(x).view(n, self.heads, -1)
        src, dst = edges
        left = (h * self.source).sum(-1)
        right = (h * self.target).sum(-1)
        scores = F.leaky_relu(left[src] + right[dst] + self.edge(features), 0.2)
        weights = scatter_softmax(scores, dst, n)
        messages = h[src] * weights.unsqueeze(-1)
        return scatter_sum(messages, dst, n).flatten(1) + self.bias


class GraphModel(nn.Module):
    def __init__(self, width=32, layers=2, heads=4):
        super().__init__()
        self.atoms = nn.Embedding(10, width)
        self.degree = nn.Embedding(16, width)
        self.layers = nn.ModuleList(GATLayer(width, heads) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.head = nn.Sequential(nn.Linear(width, width), nn.ELU(), nn.Linear(width, 1))

    def forward(self, kinds, edges, features, graph, graphs):
        ones = torch.ones(edges.shape[1], dtype=torch.long)
        degrees = torch.zeros(len(kinds), dtype=torch.long).index_add(0, edges[1], ones)
        x = self.atoms(kinds) + self.degree(degrees.clamp(max=15))
        for layer, norm in zip(self.layers, self.norms):
            x = x + F.elu(layer(norm(x), edges, features))
        counts = torch.bincount(graph, minlength=graphs).clamp(min=1)
        pooled = scatter_sum(x, graph, graphs) / counts[:, None]
        return self.head(pooled).squeeze(-1)


def batch(step):
    chooser = torch.Generator().manual_seed(step + 7)
    nodes = 30
    kinds = torch.randint(0, 10, (nodes,), generator=chooser)
    graph = torch.arange(nodes) // 6
    graph[:3] = 0
    pairs = torch.randint(0, 6, (2, 60), generator=chooser)
    base = torch.randint(0, 5, (60,), generator=chooser) * 6
    edges = pairs + base
    edges = torch.cat([edges, edges.flip(0)], dim=1)
    loops = torch.arange(nodes).repeat(2, 1)
    features = torch.randn(60, 4, generator=chooser).to(torch.get_default_dtype())
    features = torch.cat([features, features, torch.zeros(nodes, 4)], dim=0)
    edges = torch.cat([edges, loops], dim=1)
    targets = torch.randn(5, generator=chooser).to(torch.get_default_dtype())
    return kinds, edges, features, graph, targets


model = GraphModel()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, betas=(0.9, 0.99))
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1, 2])
losses = []
for step in range(3):
    debugger.start(model)
    kinds, edges, features, graph, targets = batch(step)
    prediction = model(kinds, edges, features, graph, 5)
    loss = F.smooth_l1_loss(prediction, targets, beta=0.5)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(model.parameters(), 0.1)
    optimizer.step()
    losses.append(loss.item())
    debugger.stop()
    debugger.step()
