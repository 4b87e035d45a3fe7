"""A frozen encoder with low-rank adapters learns from a frozen, larger teacher: hidden states and soft targets."""

import sys

import torch
from torch import nn
from torch.nn import functional as F

from msprobe.pytorch import PrecisionDebugger

FEATURES, CLASSES, ROWS, LENGTH, RANK, TEMPERATURE = 12, 9, 6, 10, 4, 3.0


class LoraLinear(nn.Module):
    def __init__(self, inner, outer, alpha=16):
        super().__init__()
        self.base = nn.Linear(inner, outer)
        self.down = nn.Parameter(torch.randn(RANK, inner) / inner**0.5)
        self.up = nn.Parameter(torch.randn(outer, RANK) * 0.02)
        self.scale = alpha / RANK

    def forward(self, x):
        return self.base(x) + (x @ self.down.t() @ self.up.t()) * self.scale


class Layer(nn.Module):
    def __init__(self, width, linear):
        super().__init__()
        self.mix = linear(LENGTH, LENGTH)
        self.norm1 = nn.LayerNorm(width)
        self.wide = linear(width, 2 * width)
        self.narrow = linear(2 * width, width)
        self.norm2 = nn.LayerNorm(width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        x = self.norm1(x + self.mix(x.transpose(1, 2)).transpose(1, 2))
        return self.norm2(x + self.drop(self.narrow(F.gelu(self.wide(x)))))


class Encoder(nn.Module):
    def __init__(self, width, layers, linear):
        super().__init__()
        self.enter = nn.Linear(FEATURES, width)
        self.layers = nn.ModuleList(Layer(width, linear) for _ in range(layers))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x):
        x = self.enter(x)
        states = []
        for layer in self.layers:
            x = layer(x)
            states.append(x)
        return self.head(x.mean(1)), states


torch.manual_seed(61)
student = Encoder(24, 2, LoraLinear)
teacher = Encoder(48, 4, nn.Linear)
project = nn.Linear(24, 48, bias=False)
models = [student, project, teacher]
for name, p in student.named_parameters():
    p.requires_grad_(name.endswith((".down", ".up")) or name.startswith("head"))
for p in teacher.parameters():
    p.requires_grad_(False)
student.train()
for module in student.modules():
    if isinstance(module, nn.Dropout):
        module.eval()
teacher.eval()
trained = [p for p in [*student.parameters(), *project.parameters()] if p.requires_grad]
optimizer = torch.optim.RMSprop(trained, lr=1e-3, alpha=0.9, eps=1e-6, momentum=0.5)
inputs = torch.randn(2, ROWS, LENGTH, FEATURES)
classes = torch.randint(0, CLASSES, (2, ROWS))
losses = []
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1])
for x, kind in zip(inputs, classes):
    debugger.start(models)
    with torch.no_grad():
        wanted, goals = teacher(x)
    logits, states = student(x)
    soft = F.kl_div(F.log_softmax(logits / TEMPERATURE, -1), F.softmax(wanted / TEMPERATURE, -1), reduction="batchmean")
    soft = soft * TEMPERATURE**2
    hard = F.cross_entropy(logits, kind)
    hidden = sum(F.mse_loss(project(state), goal) for state, goal in zip(states, goals[1::2]))
    loss = 0.7 * soft + 0.3 * hard + 0.5 * hidden
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    losses.append(loss.item())
    debugger.stop()
    debugger.step()
