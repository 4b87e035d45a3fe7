"""Messages along the edges of small molecules, gathered with index_add; SGD with momentum written by hand."""

import sys

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from msprobe.pytorch import PrecisionDebugger

KINDS, BONDS, HIDDEN = 7, 3, 24


def scatter_sum(values: Tensor, index: Tensor, size: int) -> Tensor:
    return values.new_zeros(size, *values.shape[1:]).index_add(0, index, values)


class EdgeConv(nn.Module):
    def __init__(self):
        super().__init__()
        self.bond = nn.Embedding(BONDS, HIDDEN)
        self.message = nn.Linear(2 * HIDDEN, HIDDEN)
        self.gate = nn.Linear(2 * HIDDEN, HIDDEN)
        self.update = nn.GRUCell(HIDDEN, HIDDEN)
        self.norm = nn.BatchNorm1d(HIDDEN)

    def forward(self, atoms: Tensor, source: Tensor, target: Tensor, bonds: Tensor) -> Tensor:
        pair = torch.cat([atoms[source], self.bond(bonds)], dim=1)
        messages = torch.tanh(self.message(pair)) * torch.sigmoid(self.gate(pair))
        received = scatter_sum(messages, target, len(atoms))
        degree = scatter_sum(torch.ones_like(target), target, len(atoms)).clamp(min=1)
        received = received / degree.sqrt()[:, None]
        return self.norm(self.update(received, atoms) + atoms)


class MoleculeNet(nn.Module):
    def __init__(self, depth: int = 3):
        super().__init__()
        self.kinds = nn.Embedding(KINDS, HIDDEN, padding_idx=0)
        self.layers = nn.ModuleList(EdgeConv() for _ in range(depth))
        self.attention = nn.Linear(HIDDEN, 1)
        self.regress = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.ELU(), nn.Linear(HIDDEN, 1))

    def forward(self, kinds, source, target, bonds, member, graphs):
        atoms = self.kinds(kinds)
        for layer in self.layers:
            atoms = layer(atoms, source, target, bonds)
        weight = self.attention(atoms).squeeze(1)
        highest = torch.full((graphs,), float("-inf"), dtype=weight.dtype).scatter_reduce(0, member, weight, "amax")
        weight = torch.exp(weight - highest[member])
        weight = weight / scatter_sum(weight, member, graphs)[member]
        pooled = scatter_sum(atoms * weight[:, None], member, graphs)
        return self.regress(pooled).squeeze(1)


def molecules(seed: int, graphs: int = 4):
    dice = torch.Generator().manual_seed(seed)
    kinds, source, target, bonds, member, start = [], [], [], [], [], 0
    for graph in range(graphs):
        size = int(torch.randint(4, 9, (), generator=dice))
        kinds += torch.randint(1, KINDS, (size,), generator=dice).tolist()
        member += [graph] * size
        for atom in range(1, size):
            parent = int(torch.randint(0, atom, (), generator=dice))
            bond = int(torch.randint(0, BONDS, (), generator=dice))
            source += [start + atom, start + parent]
            target += [start + parent, start + atom]
            bonds += [bond, bond]
        start += size
    edges = torch.tensor(source), torch.tensor(target), torch.tensor(bonds)
    wanted = torch.randn(graphs, generator=dice, dtype=torch.get_default_dtype())
    return (torch.tensor(kinds), *edges, torch.tensor(member), graphs), 40.0 + 6.0 * wanted


torch.manual_seed(99)
model = MoleculeNet()
speed = {name: torch.zeros_like(weight) for name, weight in model.named_parameters()}
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1, 2])
losses: list[float] = []
for step, rate in enumerate((0.05, 0.05, 0.025)):
    graph, energy = molecules(step)
    energy = (energy - 40.0) / 6.0
    model.train()
    debugger.start(model)
    guess = model(*graph)
    loss = F.huber_loss(guess, energy, delta=0.5)
    for weight in model.parameters():
        weight.grad = None
    loss.backward()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            push = weight.grad + 1e-2 * weight
            speed[name].mul_(0.9).add_(push)
            weight.sub_(rate * speed[name])
    model.eval()
    with torch.no_grad():
        checked = F.l1_loss(model(*graph), energy)
    debugger.stop()
    debugger.step()
    losses.extend((loss.item(), checked.item()))
