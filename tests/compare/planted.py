"""Four small models, each with a switch for faults that people make, and a run of one training step under the debugger.

A fault is a word that the model looks at; `None` is the clean model. The weights and the data depend on the seed
alone, never on the fault.
"""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path
from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch import nn

Fault = Optional[str]


class WrongBackward(torch.autograd.Function):
    """The identity, whose gradient is ten percent too large."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 1.1


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, fault: Fault) -> None:
        super().__init__()
        self.heads, self.fault = heads, fault
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        if self.fault == "lost gradient":
            x = x.detach()
        q, k, v = self.qkv(x).split(width, dim=2)
        if self.fault == "swapped q and k":
            q, k = k, q
        if self.fault == "wrong head split":
            q = q.reshape(batch, self.heads, length, -1)
            k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in (k, v))
        else:
            q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        if self.fault == "half precision scores":
            q = q.half().float()
        scores = torch.matmul(q, k.transpose(-2, -1))
        if self.fault != "missing scale":
            scores = scores * (1.0 / math.sqrt(q.shape[-1]))
        if self.fault != "missing mask":
            mask = torch.ones(length, length, dtype=torch.bool).triu(0 if self.fault == "wrong mask" else 1)
            scores = scores.masked_fill(mask, -1e9)
        weights = F.softmax(scores, dim=-2 if self.fault == "wrong softmax dim" else -1)
        out = torch.matmul(weights, v).transpose(1, 2).reshape(batch, length, width)
        out = self.proj(out)
        if self.fault == "wrong backward":
            out = WrongBackward.apply(out)
        if self.fault == "halved gradient" and out.requires_grad:
            out.register_hook(lambda grad: grad * 0.5)
        return out


class Block(nn.Module):
    def __init__(self, width: int, heads: int, fault: Fault) -> None:
        super().__init__()
        self.fault = fault
        self.ln1 = nn.LayerNorm(width, eps=1e-3 if fault == "wrong eps" else 1e-5)
        self.attn = Attention(width, heads, fault)
        self.ln2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fault == "post norm":
            x = self.ln1(x + self.attn(x))
        else:
            attended = self.attn(self.ln1(x))
            x = attended if self.fault == "missing residual" else x + attended
        h = self.fc1(self.ln2(x))
        if self.fault == "nan source":
            h = h + torch.log(torch.tensor([-1.0] + [1.0] * (h.shape[-1] - 1)))
        if self.fault == "changed activation":
            h = F.relu(h)
        else:
            h = F.gelu(h, approximate="tanh" if self.fault == "approximate activation" else "none")
        h = self.fc2(h)
        if self.fault == "bf16 rounding":
            h = h.to(torch.bfloat16).to(torch.float32)
        return x + self.drop(h)


class Transformer(nn.Module):
    """`fault` is planted in the second block."""

    def __init__(self, fault: Fault = None, width: int = 32, vocabulary: int = 50) -> None:
        super().__init__()
        self.fault = fault
        self.tok = nn.Embedding(vocabulary, width)
        self.pos = nn.Embedding(64, width)
        self.blocks = nn.ModuleList([Block(width, 4, None), Block(width, 4, fault), Block(width, 4, None)])
        self.ln = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(tokens.shape[1]) + (1 if self.fault == "off-by-one position" else 0)
        x = self.tok(tokens) + self.pos(positions)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.ln(x))
        return logits / 0.9 if self.fault == "temperature" else logits


class ConvNet(nn.Module):
    def __init__(self, fault: Fault = None) -> None:
        super().__init__()
        self.fault = fault
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(8)
        dilation = 2 if fault == "wrong dilation" else 1
        self.conv2 = nn.Conv2d(8, 8, 3, padding=dilation, dilation=dilation)
        self.bn2 = nn.BatchNorm2d(8, eps=1e-2 if fault == "wrong eps" else 1e-5)
        self.act = nn.ReLU()
        self.pool = nn.AvgPool2d(2) if fault == "wrong pool" else nn.MaxPool2d(2)
        self.drop = nn.Dropout(0.2)
        self.fc = nn.Linear(8 * 8 * 8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fault != "missing normalisation":
            x = (x - 0.5) / 0.25
        x = self.act(self.bn1(self.conv1(x)))
        x = self.bn2(self.conv2(x))
        x = F.leaky_relu(x, 0.1) if self.fault == "leaky activation" else F.relu(x)
        x = self.pool(x)
        if self.fault == "wrong flatten":
            x = x.permute(0, 2, 3, 1).reshape(x.shape[0], -1)
        else:
            x = x.flatten(1)
        return self.fc(self.drop(x))


class Cell(nn.Module):
    def __init__(self, width: int, fault: Fault) -> None:
        super().__init__()
        self.fault = fault
        self.ih = nn.Linear(width, 4 * width)
        self.hh = nn.Linear(width, 4 * width)

    def forward(self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        i, f, g, o = (self.ih(x) + self.hh(h)).chunk(4, dim=1)
        if self.fault == "swapped gates":
            i, f = f, i
        if self.fault == "forget bias":
            f = f + 1.0
        candidate = torch.sigmoid(g) if self.fault == "changed activation" else torch.tanh(g)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * candidate
        out = torch.tanh(c)
        return torch.sigmoid(o) * out, c


class Recurrent(nn.Module):
    def __init__(self, fault: Fault = None, width: int = 24) -> None:
        super().__init__()
        self.fault, self.width = fault, width
        self.emb = nn.Embedding(40, width)
        self.cell = Cell(width, fault)
        self.out = nn.Linear(width, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.emb(tokens)
        h = torch.zeros(tokens.shape[0], self.width) + (0.1 if self.fault == "stale state" else 0.0)
        c = torch.zeros_like(h)
        steps = range(tokens.shape[1])
        for t in reversed(steps) if self.fault == "wrong time order" else steps:
            h, c = self.cell(x[:, t], h, c)
            if self.fault == "cut through time" and t == 3:
                h = h.detach()
        return self.out(h)


class Experts(nn.Module):
    """Two of four experts a token."""

    def __init__(self, width: int, fault: Fault) -> None:
        super().__init__()
        self.fault = fault
        self.router = nn.Linear(width, 4, bias=False)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = self.router(x)
        if self.fault == "router noise":
            logits = logits + 0.5 * torch.randn_like(logits)
        if self.fault == "softmax after topk":
            weights, chosen = torch.topk(logits, 2, dim=-1)
            weights = F.softmax(weights, dim=-1)  # not a fault: the same as dividing by the sum of the chosen
        elif self.fault == "sigmoid after topk":
            weights, chosen = torch.topk(logits, 2, dim=-1)
            weights = torch.sigmoid(weights)
            weights = weights / weights.sum(dim=-1, keepdim=True)
        else:
            weights, chosen = torch.topk(F.softmax(logits, dim=-1), 1 if self.fault == "one expert" else 2, dim=-1)
            if self.fault != "not normalised":
                weights = weights / weights.sum(dim=-1, keepdim=True)
        if self.fault == "expert off by one":
            chosen = (chosen + 1) % 4
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            share = (weights * (chosen == index)).sum(dim=-1, keepdim=True)
            out = out + share * expert(x)
        return out


class Mixture(nn.Module):
    def __init__(self, fault: Fault = None, width: int = 16) -> None:
        super().__init__()
        self.inp = nn.Linear(10, width)
        self.moe = Experts(width, fault)
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.inp(x))
        return self.out(self.norm(h + self.moe(h)))


MODELS = {"transformer": Transformer, "convnet": ConvNet, "recurrent": Recurrent, "mixture": Mixture}


def batch(kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    if kind == "transformer":
        tokens = torch.randint(0, 50, (4, 17), generator=generator)
        return tokens[:, :-1], tokens[:, 1:]
    if kind == "convnet":
        return torch.rand(4, 3, 16, 16, generator=generator), torch.randint(0, 10, (4,), generator=generator)
    if kind == "recurrent":
        return torch.randint(0, 40, (6, 7), generator=generator), torch.randint(0, 10, (6,), generator=generator)
    return torch.randn(32, 10, generator=generator), torch.randint(0, 5, (32,), generator=generator)


def _change_weights(model: nn.Module, fault: Fault) -> None:
    """Faults that are in the weights, the buffers or the gradients rather than in the code."""
    named = dict(model.named_parameters())
    with torch.no_grad():
        if fault == "transposed weight":
            named["blocks.1.attn.proj.weight"].copy_(named["blocks.1.attn.proj.weight"].t().clone())
        elif fault == "changed weight":
            named["blocks.1.fc2.weight"].add_(1e-3)
        elif fault == "one changed element":
            named["blocks.2.fc1.weight"][3, 5] += 0.05
        elif fault == "flipped kernel":
            named["conv2.weight"].copy_(named["conv2.weight"].flip(-1).clone())
        elif fault == "lost bias":
            named["conv2.bias"].zero_()
        elif fault == "changed router":
            named["moe.router.weight"].mul_(1.01)
        elif fault == "stale buffer":
            model.bn2.running_mean.fill_(0.3)
    double = {"double-counted gradient": "fc1.weight", "double-counted kernel gradient": "conv1.weight"}.get(
        fault or ""
    )
    for name, parameter in named.items():
        if double and name.endswith(double) and not name.startswith(("blocks.0", "blocks.2")):
            parameter.register_hook(lambda grad: grad * 2)


def run(
    kind: str,
    path: Path,
    fault: Fault = None,
    level: str = "mix",
    task: str = "statistics",
    summary: str = "statistics",
    steps: int = 1,
    evaluate: bool = False,
    threads: int = 1,
    mkldnn: bool = True,
    width: Optional[int] = None,
    adam: bool = False,
) -> Path:
    """Trains one model for `steps` steps and returns the dump's path."""
    from msprobe.pytorch import PrecisionDebugger

    torch.manual_seed(3)
    torch.set_num_threads(threads)
    model = MODELS[kind](fault, width) if width else MODELS[kind](fault)
    _change_weights(model, fault)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.train(fault == "dropout left on")
    if evaluate:
        model.eval()
    elif fault != "dropout left on":
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.eval()
    data, labels = batch(kind)
    if fault == "one wrong token":
        data = data.clone()
        data[2, 5] = (data[2, 5] + 1) % 40
    if fault == "wrong labels":
        labels = labels.roll(1, 0)
    section: dict[str, Any] = {"summary_mode": summary} if task == "statistics" else {}
    path.mkdir(parents=True, exist_ok=True)
    config = path / "config.json"
    config.write_text(
        json.dumps(
            {"task": task, "level": level, "dump_path": str(path / "dump"), "step": list(range(steps)), task: section}
        )
    )
    rate = 1.1 if fault == "wrong learning rate" else 1.0
    optimiser: Any = torch.optim.SGD(model.parameters(), lr=0.05 * rate)
    if adam:
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3 * rate)
    debugger = PrecisionDebugger(str(config))
    kernels = contextlib.nullcontext() if mkldnn else torch.backends.mkldnn.flags(enabled=False)
    with kernels:
        for _ in range(steps):
            debugger.start(model)
            optimiser.zero_grad()
            logits = model(data)
            reduction = "sum" if fault == "wrong reduction" else "mean"
            loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), reduction=reduction)
            loss.backward()
            debugger.stop()
            optimiser.step()
            debugger.step()
    return path / "dump"
