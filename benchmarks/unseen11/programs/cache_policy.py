"""A policy that writes its answers with a static cache and learns from their rewards, with a frozen reference."""

import copy
import math
import sys

import torch
from torch import nn

from msprobe.pytorch import PrecisionDebugger

VOCAB, WIDTH, HEADS, PROMPT, ANSWER, ROWS = 31, 32, 4, 6, 5, 4
SIZE, FULL = WIDTH // HEADS, PROMPT + ANSWER


class StaticCache:
    def __init__(self, layers, rows):
        shape = (rows, HEADS, FULL + 2, SIZE)
        self.keys = [torch.zeros(shape) for _ in range(layers)]
        self.values = [torch.zeros(shape) for _ in range(layers)]

    def update(self, layer, k, v, places):
        self.keys[layer] = self.keys[layer].index_copy(2, places, k)
        self.values[layer] = self.values[layer].index_copy(2, places, v)
        return self.keys[layer], self.values[layer]


class Layer(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.number = number
        self.norm1 = nn.LayerNorm(WIDTH)
        self.q = nn.Linear(WIDTH, WIDTH)
        self.k = nn.Linear(WIDTH, WIDTH)
        self.v = nn.Linear(WIDTH, WIDTH)
        self.o = nn.Linear(WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 64), nn.SiLU(), nn.Linear(64, WIDTH))

    def forward(self, x, cache, places):
        normal = self.norm1(x)
        q, k, v = (part(normal).unflatten(-1, (HEADS, SIZE)).transpose(1, 2) for part in (self.q, self.k, self.v))
        k, v = cache.update(self.number, k, v, places)
        seen = torch.arange(k.shape[2]) <= places[:, None]
        scores = q @ k.transpose(-2, -1) / math.sqrt(SIZE)
        chances = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        x = x + self.o((chances @ v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, WIDTH)
        self.positions = nn.Embedding(FULL, WIDTH)
        self.layers = nn.ModuleList(Layer(number) for number in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB)
        nn.init.normal_(self.tokens.weight, std=0.5)
        nn.init.normal_(self.positions.weight, std=0.5)

    def forward(self, ids, cache, places):
        x = self.tokens(ids) + self.positions(places)
        for layer in self.layers:
            x = layer(x, cache, places)
        return self.head(self.norm(x))


def log_chances(policy, ids):
    cache = StaticCache(2, len(ids))
    logits = [policy(ids[:, :PROMPT], cache, torch.arange(PROMPT))[:, -1:]]
    for place in range(PROMPT, FULL - 1):
        logits.append(policy(ids[:, place : place + 1], cache, torch.tensor([place])))
    chances = torch.cat(logits, dim=1).log_softmax(-1)
    return chances, chances.gather(-1, ids[:, PROMPT:, None])[..., 0]


torch.manual_seed(53)
model = Policy()
reference = copy.deepcopy(model).requires_grad_(False)
with torch.no_grad():
    for p in model.parameters():
        p.add_(torch.randn_like(p), alpha=0.05)
models = [model, reference]
answers = torch.randint(0, VOCAB, (2, ROWS, FULL))
lengths = torch.randint(2, ANSWER + 1, (2, ROWS))
rewards = torch.randn(2, ROWS)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
losses = []
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1])
for ids, length, reward in zip(answers, lengths, rewards):
    debugger.start(models)
    chances, chosen = log_chances(model, ids)
    with torch.no_grad():
        other, before = log_chances(reference, ids)
    mask = (torch.arange(ANSWER) < length[:, None]).to(chosen.dtype)
    gain = (reward - reward.mean()) / (reward.std() + 1e-4)
    ratio = (chosen - before).exp()
    clipped = ratio.clamp(0.8, 1.2)
    surrogate = -torch.minimum(ratio * gain[:, None], clipped * gain[:, None])
    drift = before - chosen
    drift = drift.exp() - drift - 1
    entropy = -(chances.exp() * chances).sum(-1)
    each = surrogate + 0.1 * drift - 0.01 * entropy
    loss = (each * mask).sum() / mask.sum()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    losses.append(loss.item())
    debugger.stop()
    debugger.step()
