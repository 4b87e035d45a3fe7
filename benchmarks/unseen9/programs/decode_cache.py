"""REINFORCE for a language model: tokens come out of a static cache, then the policy learns beside a reference."""

import sys

import torch
import torch.nn.functional as F
from torch import nn

from msprobe.pytorch import PrecisionDebugger

torch.manual_seed(151)
ROOM = 16


def rotate(x, places):
    half = x.shape[-1] // 2
    angles = places[..., None] * 10000.0 ** (-torch.arange(half) / half)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class Cache:
    """Keys and values of all layers, allocated once."""

    def __init__(self, layers, batch, heads, width):
        self.keys = torch.zeros(layers, batch, heads, ROOM, width)
        self.values = torch.zeros(layers, batch, heads, ROOM, width)
        self.used = 0

    def put(self, layer, k, v):
        end = self.used + k.shape[2]
        self.keys[layer, :, :, self.used : end] = k
        self.values[layer, :, :, self.used : end] = v
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]


class Layer(nn.Module):
    def __init__(self, number, width=32, heads=4, kv_heads=2):
        super().__init__()
        self.number, self.heads, self.kv_heads = number, heads, kv_heads
        self.norm1, self.norm2 = nn.RMSNorm(width, eps=1e-6), nn.RMSNorm(width, eps=1e-6)
        self.q = nn.Linear(width, width)
        self.kv = nn.Linear(width, 2 * kv_heads * width // heads)
        self.out = nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, 48, bias=False), nn.Linear(width, 48, bias=False)
        self.down = nn.Linear(48, width, bias=False)

    def forward(self, x, places, cache=None):
        y = self.norm1(x)
        q = self.q(y).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.kv(y).unflatten(-1, (2, self.kv_heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = rotate(q, places), rotate(k, places)
        if cache is not None:
            k, v = cache.put(self.number, k, v)
        seen = torch.arange(k.shape[2])[None, None] <= places[..., None]
        k, v = (part.repeat_interleave(self.heads // self.kv_heads, dim=1) for part in (k, v))
        scores = q @ k.mT / q.shape[-1] ** 0.5
        weights = scores.masked_fill(~seen[:, None], float("-inf")).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Policy(nn.Module):
    def __init__(self, vocabulary=32, width=32, layers=2):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Layer(i) for i in range(layers))
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens, cache=None):
        start = 0 if cache is None else cache.used
        places = torch.arange(start, start + tokens.shape[1]).expand(len(tokens), -1)
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, places, cache)
        if cache is not None:
            cache.used += tokens.shape[1]
        return self.head(self.norm(x))


@torch.no_grad()
def decode(policy, prompts, count):
    cache = Cache(len(policy.layers), len(prompts), 2, 8)
    logits = policy(prompts, cache)[:, -1]
    tokens, scores = [], []
    for _ in range(count):
        scores.append(F.log_softmax(logits / 0.8, dim=-1))
        tokens.append((scores[-1] + preference).argmax(-1))
        logits = policy(tokens[-1][:, None], cache)[:, -1]
    return torch.stack(tokens, dim=1), torch.stack(scores, dim=1)


preference = torch.linspace(-1.5, 1.5, 32).sin()
model, reference = Policy(), Policy()
reference.load_state_dict(model.state_dict())
reference.requires_grad_(False)
models = [model, reference]
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1, 2])
losses = []
for step in range(3):
    debugger.start(model=models)
    prompts = torch.randint(0, 32, (6, 5), generator=torch.Generator().manual_seed(step))
    tokens, old = decode(model, prompts, 4)
    rewards = torch.randn(6, 4, generator=torch.Generator().manual_seed(step + 10)).flip(1).cumsum(1).flip(1)
    advantages = (rewards - rewards.mean(0)) / (rewards.std(0) + 1e-6)
    complete = torch.cat([prompts, tokens], dim=1)
    logits = model(complete[:, :-1])[:, 4:] / 0.8
    log_probs = F.log_softmax(logits, dim=-1)
    with torch.no_grad():
        trusted = F.log_softmax(reference(complete[:, :-1])[:, 4:] / 0.8, dim=-1)
    chosen = log_probs.gather(-1, tokens[..., None]).squeeze(-1)
    ratio = torch.exp(chosen - old.gather(-1, tokens[..., None]).squeeze(-1))
    gap = trusted.gather(-1, tokens[..., None]).squeeze(-1) - chosen
    kl = gap.exp() - gap - 1
    loss = -(ratio * advantages).mean() + 0.1 * kl.mean() + 0.01 * (log_probs.exp() * log_probs).sum(-1).mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    losses.append(loss.item())
    debugger.stop()
    debugger.step()
