"""Two small training scripts with switches for faults, and what `msprobe prove` must name for each."""

from __future__ import annotations

SCRIPT = """
import sys
import torch
import torch.nn.functional as F
from torch import nn

faults = sys.argv[1].split(",") if len(sys.argv) > 1 else []
has = faults.__contains__
torch.manual_seed(0)


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (2.2 if has("backward") else 2.0)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        weights = torch.matmul(q, k.transpose(-1, -2)) / (5.0 if has("divisor") else 4.0)
        if has("mask"):
            weights = weights.masked_fill(torch.ones(4, 4).triu(1).bool(), -1e4)
        weights = F.softmax(weights, -2 if has("softmax") else -1)
        return self.out(torch.matmul(weights, v))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.up, self.down = Attention(), nn.Linear(16, 32), nn.Linear(32, 16)
        self.norm, self.norm2 = nn.LayerNorm(16), nn.LayerNorm(16, eps=1e-2 if has("eps") else 1e-5)

    def forward(self, x):
        x = x + self.attention(self.norm(x))
        h = F.gelu(self.up(self.norm2(x)), approximate="tanh" if has("gelu") else "none")
        h = h.clamp(-1, 0.5 if has("clamp") else 1.0)
        h = h.mul_(1.1 if has("inplace") else 1.0)
        h = Double.apply(h)
        if has("half"):
            h = h.bfloat16().float()
        return x * (1.02 if has("residual") else 1.0) + self.down(h)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.block, self.head = nn.Embedding(20, 16), Block(), nn.Linear(16, 4)

    def forward(self, tokens):
        x = self.embed(tokens)
        x = F.normalize(x, dim=-1, eps=1e-12, p=1.0 if has("normalize") else 2.0)
        x = torch.addcmul(x, x, x, value=0.2 if has("addcmul") else float("nan") if has("nan") else 0.1)
        x = self.block(x)
        x = torch.cumsum(x, 2 if has("cumsum") else 1)
        return self.head(x.sum(1) if has("sum") else x.mean(1))


model = Net()
if has("weight"):
    with torch.no_grad():
        model.head.weight.mul_(1.05)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5 if has("lr") else 0.1)
tokens, labels = torch.randint(0, 20, (2, 8, 4)), torch.randint(0, 4, (2, 8))
if has("data"):
    tokens = tokens.roll(1, 1)
for step in range(2):
    logits = model(tokens[step])
    loss = F.cross_entropy(logits, labels[step], label_smoothing=0.1 if has("smoothing") else 0.0)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""

IMAGE = """
import sys
import torch
import torch.nn.functional as F
from torch import nn

faults = sys.argv[1].split(",") if len(sys.argv) > 1 else []
has = faults.__contains__
torch.manual_seed(0)


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(8, 8)

    def forward(self, x):
        state = torch.zeros(x.shape[0], 8)
        for part in x.unbind(1):
            state = torch.lerp(state, self.cell(part, state), 0.6 if has("lerp") else 0.5)
        return state


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8, eps=1e-2 if has("batch_eps") else 1e-5)
        self.mix, self.gate, self.head = nn.Conv2d(8, 8, 1), Gate(), nn.Linear(8, 4)

    def forward(self, x):
        x = torch.roll(x, 2 if has("roll") else 1, 3)
        x = F.leaky_relu(self.norm(self.conv(x)), 0.05 if has("slope") else 0.01)
        x = F.avg_pool2d(x, 3, 2, 1, count_include_pad=not has("pool"))
        x = F.interpolate(x, size=(5, 5), mode="bilinear", align_corners=has("corners"))
        x = F.group_norm(x, 4 if has("groups") else 2)
        x = F.softplus(self.mix(x), beta=1.3 if has("softplus") else 1.0)
        x = x ** (2.1 if has("power") else 2.0)
        x = torch.tril(x, 1 if has("tril") else 0)
        x = torch.einsum("bcik,bckj->bcij" if not has("einsum") else "bcik,bcjk->bcij", x, x)
        x = x / (1 + x.var((2, 3), keepdim=True, correction=0 if has("variance") else 1))
        x = torch.logsumexp(x, 3 if has("axis") else 2)
        x = self.gate(x.transpose(1, 2))
        if has("second_step") and step == 1:
            x = torch.mul(x, 1.1)
        else:
            x = torch.mul(x, 1.0)
        return self.head(x)


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
images, targets = torch.randn(2, 4, 3, 8, 8), torch.randn(2, 4, 4)
for step in range(2):
    loss = F.smooth_l1_loss(model(images[step]), targets[step], beta=0.7 if has("beta") else 1.0)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""

FAULTS = {
    "eps": "Functional.layer_norm.1.forward",
    "divisor": "Tensor.__truediv__.0.forward",
    "softmax": "Functional.softmax.0.forward",
    "gelu": "Functional.gelu.0.forward",
    "clamp": "Tensor.clamp.0.forward",
    "inplace": "Tensor.mul_.0.forward",
    "residual": "Tensor.__mul__",
    "normalize": "Functional.normalize.0.forward",
    "addcmul": "Torch.addcmul.0.forward",
    "cumsum": "Torch.cumsum.0.forward",
    "smoothing": "Functional.cross_entropy.0.forward",
    "weight": "Module.head.Linear.forward.0",
    "backward": "Tensor.__mul__.2.forward",  # the call inside the backward of the function
    "mask": "Module.block.attention.Attention",
    "half": "Module.block.Block",
    "data": "embed",
    "sum": "",
}
"""The beginning or a part of the name that is grafted."""
IMAGE_FAULTS = {
    "roll": "Torch.roll.0.forward",
    "batch_eps": "Functional.batch_norm.0.forward",
    "slope": "Functional.leaky_relu.0.forward",
    "pool": "Functional.avg_pool2d.0.forward",
    "corners": "Functional.interpolate.0.forward",
    "groups": "Functional.group_norm.0.forward",
    "softplus": "Functional.softplus.0.forward",
    "power": "Tensor.__pow__.0.forward",
    "tril": "Torch.tril.0.forward",
    "einsum": "Torch.einsum.0.forward",
    "variance": "Tensor.var.0.forward",
    "axis": "Torch.logsumexp.0.forward",
    "lerp": "Torch.lerp.0.forward",
    "second_step": "Torch.mul.0.forward",
    "beta": "Functional.smooth_l1_loss.0.forward",
}
SCRIPTS = {"attention": SCRIPT, "image": IMAGE}
PAIRS = {
    "attention": (
        ("eps", "smoothing"),
        ("divisor", "gelu"),
        ("clamp", "softmax"),
        ("addcmul", "inplace"),
        ("cumsum", "eps"),
        ("residual", "smoothing"),
        ("normalize", "cumsum"),
        ("weight", "gelu"),
    ),
    "image": (
        ("roll", "beta"),
        ("batch_eps", "power"),
        ("slope", "tril"),
        ("pool", "variance"),
        ("groups", "softplus"),
        ("corners", "second_step"),
        ("einsum", "beta"),
    ),
}
OTHERS = {
    "eps": ("Functional.softmax.0.forward", "Functional.gelu.0.forward", "Functional.linear.0.forward"),
    "gelu": ("Functional.layer_norm.0.forward", "Torch.cumsum.0.forward", "Functional.linear.3.forward"),
    "divisor": ("Torch.addcmul.0.forward", "Functional.linear.1.forward", "Functional.embedding.0.forward"),
    "smoothing": ("Functional.linear.4.forward", "Tensor.mean.0.forward", "Functional.softmax.0.forward"),
    "addcmul": ("Functional.linear.3.forward", "Functional.gelu.0.forward", "Functional.layer_norm.1.forward"),
}
"""Calls that are not the cause of a fault."""
