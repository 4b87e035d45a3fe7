"""A selective state space model (Mamba style) in bf16 with float32 master weights and a fixed loss scale."""

import sys

import torch
import torch.nn.functional as F
from torch import nn

from msprobe.pytorch import PrecisionDebugger

torch.manual_seed(161)


class Mixer(nn.Module):
    def __init__(self, width=24, inner=32, states=6, rank=4):
        super().__init__()
        self.inp = nn.Linear(width, 2 * inner, bias=False)
        self.conv = nn.Conv1d(inner, inner, 4, groups=inner, padding=3)
        self.select = nn.Linear(inner, rank + 2 * states, bias=False)
        self.delta = nn.Linear(rank, inner)
        self.log_a = nn.Parameter(torch.log(torch.arange(1.0, states + 1)).repeat(inner, 1))
        self.skip = nn.Parameter(torch.ones(inner))
        self.out = nn.Linear(inner, width, bias=False)
        self.rank, self.states = rank, states

    def forward(self, x):
        u, gate = self.inp(x).chunk(2, dim=-1)
        u = F.silu(self.conv(u.mT)[..., : x.shape[1]].mT)
        step, b, c = self.select(u).split([self.rank, self.states, self.states], dim=-1)
        step = F.softplus(self.delta(step).float())
        decay = torch.exp(step[..., None] * -torch.exp(self.log_a.float()))
        drive = (step * u.float())[..., None] * b.float()[:, :, None]
        state = torch.zeros_like(decay[:, 0])
        outputs = []
        for t in range(x.shape[1]):
            state = decay[:, t] * state + drive[:, t]
            outputs.append((state * c[:, t, None].float()).sum(-1))
        y = torch.stack(outputs, dim=1) + u.float() * self.skip.float()
        return self.out((y * F.silu(gate.float())).to(x.dtype))


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)
        return (wide * self.weight.float()).to(x.dtype)


class Model(nn.Module):
    def __init__(self, vocabulary=40, width=24, layers=2):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.norms = nn.ModuleList(Norm(width) for _ in range(layers + 1))
        self.mixers = nn.ModuleList(Mixer(width) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for norm, mixer in zip(self.norms, self.mixers):
            x = x + mixer(norm(x))
        return self.head(self.norms[-1](x)).float()


class Master(torch.optim.Optimizer):
    """AdamW on float32 copies of bf16 weights."""

    def __init__(self, params, lr=4e-3, betas=(0.9, 0.95), eps=1e-8):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self, scale):
        for group in self.param_groups:
            for p in group["params"]:
                s = self.state[p]
                if not s:
                    s.update(t=0, wide=p.float().clone(), m=torch.zeros(p.shape), v=torch.zeros(p.shape))
                s["t"] += 1
                gradient = p.grad.float() / scale
                s["m"].lerp_(gradient, 1 - group["betas"][0])
                s["v"].lerp_(gradient.square(), 1 - group["betas"][1])
                m = s["m"] / (1 - group["betas"][0] ** s["t"])
                v = s["v"] / (1 - group["betas"][1] ** s["t"])
                s["wide"].sub_(group["lr"] * m / (v.sqrt() + group["eps"]))
                p.copy_(s["wide"])


model = Model().to(torch.bfloat16)
optimizer = Master(model.parameters())
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1, 2])
losses = []
SCALE = 128.0
for step in range(3):
    debugger.start(model)
    tokens = torch.randint(0, 40, (6, 15), generator=torch.Generator().manual_seed(step + 60))
    logits = model(tokens[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    (loss * SCALE).backward()
    optimizer.step(SCALE)
    optimizer.zero_grad()
    losses.append(loss.item())
    debugger.stop()
    debugger.step()
