"""A tagger whose norm, gate, convolution and loss are autograd functions of its own, as kernels of a device are."""

import sys

import torch
from torch import nn
from torch.nn import functional as F

from msprobe.pytorch import PrecisionDebugger

WORDS, TAGS, LENGTH, WIDTH, ROWS, STEPS = 43, 9, 14, 24, 5, 2


class LayerNormKernel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        mean = x.mean(-1, keepdim=True)
        factor = (x.var(-1, correction=0, keepdim=True) + eps).rsqrt()
        normal = (x - mean) * factor
        ctx.save_for_backward(normal, factor, weight)
        return normal * weight + bias

    @staticmethod
    def backward(ctx, grad):
        normal, factor, weight = ctx.saved_tensors
        inner = grad * weight
        inner = inner - inner.mean(-1, keepdim=True) - normal * (inner * normal).mean(-1, keepdim=True)
        return inner * factor, (grad * normal).sum((0, 1)), grad.sum((0, 1)), None


class GateKernel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        gate, value = x.chunk(2, dim=-1)
        ctx.save_for_backward(gate, value)
        return F.silu(gate) * value

    @staticmethod
    def backward(ctx, grad):
        gate, value = ctx.saved_tensors
        chance = gate.sigmoid()
        slope = chance * (1 + gate * (1 - chance))
        return torch.cat([grad * value * slope, grad * gate * chance], dim=-1)


class ShiftKernel(torch.autograd.Function):
    """Each channel is the weighted sum of the last three positions."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        padded = F.pad(x, (0, 0, 2, 0))
        return sum(padded[:, i : i + x.shape[1]] * weight[i] for i in range(3))

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        length = x.shape[1]
        later = F.pad(grad, (0, 0, 0, 2))
        padded = F.pad(x, (0, 0, 2, 0))
        grad_x = sum(later[:, 2 - i : 2 - i + length] * weight[i] for i in range(3))
        grad_weight = torch.stack([(grad * padded[:, i : i + length]).sum((0, 1)) for i in range(3)])
        return grad_x, grad_weight


class LossKernel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, tags):
        chances = logits.log_softmax(-1)
        known = tags >= 0
        count = known.sum()
        ctx.save_for_backward(chances, tags, known, count)
        chosen = chances.gather(-1, tags.clamp(min=0)[..., None])[..., 0]
        return -(chosen * known).sum() / count

    @staticmethod
    def backward(ctx, grad):
        chances, tags, known, count = ctx.saved_tensors
        slope = chances.exp() - F.one_hot(tags.clamp(min=0), TAGS)
        return grad * slope * known[..., None] / count, None


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(1 + 0.2 * torch.randn(WIDTH))
        self.bias = nn.Parameter(torch.zeros(WIDTH))
        self.shift = nn.Parameter(torch.randn(3, WIDTH) * 0.5)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def norm(self, x):
        return LayerNormKernel.apply(x, self.weight, self.bias, 1e-5)

    def forward(self, x):
        mixed = ShiftKernel.apply(self.norm(x), self.shift)
        return x + self.down(GateKernel.apply(self.up(mixed)))


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, padding_idx=0)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, TAGS)

    def forward(self, ids):
        x = self.words(ids) * WIDTH**0.5
        for block in self.blocks:
            x = block(x)
        return self.head(x)


torch.manual_seed(97)
model = Tagger()
data = torch.randint(0, WORDS, (STEPS, ROWS, LENGTH))
goals = torch.randint(0, TAGS, (STEPS, ROWS, LENGTH)).masked_fill(data == 0, -1)
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.02, initial_accumulator_value=0.1, eps=1e-10)
losses = []
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1])
for ids, tags in zip(data, goals):
    debugger.start(model)
    loss = LossKernel.apply(model(ids), tags)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    debugger.stop()
    debugger.step()
