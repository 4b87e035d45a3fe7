"""A policy writes digits with a static key/value cache and is then updated: clipped ratio, entropy, a reference."""

import copy
import sys

import torch
from torch import nn
from torch.nn import functional as fn

from msprobe.pytorch import PrecisionDebugger

DIGITS, START, LIMIT, PROMPT = 12, 0, 14, 4
dim, heads = 32, 4


class Cache:
    def __init__(self, batch):
        self.keys = torch.zeros(batch, heads, LIMIT, dim // heads)
        self.values = torch.zeros(batch, heads, LIMIT, dim // heads)

    def write(self, start, keys, values):
        end = start + keys.shape[2]
        self.keys[:, :, start:end] = keys
        self.values[:, :, start:end] = values
        return self.keys, self.values


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn_in = nn.Linear(dim, 3 * dim)
        self.attn_out = nn.Linear(dim, dim)
        self.fc1, self.fc2 = nn.Linear(dim, 3 * dim), nn.Linear(3 * dim, dim)

    def forward(self, x, places, cache=None):
        n, t, _ = x.shape
        q, k, v = (
            part.view(n, t, heads, dim // heads).transpose(1, 2) for part in self.attn_in(self.ln1(x)).chunk(3, dim=-1)
        )
        if cache is not None:
            k, v = cache.write(int(places[0]), k, v)
        seen = torch.arange(k.shape[2])[None, :] <= places[:, None]
        scores = torch.einsum("nhqd,nhkd->nhqk", q, k) * (dim // heads) ** -0.5
        scores = torch.where(seen, scores, float("-inf"))
        mixed = torch.einsum("nhqk,nhkd->nhqd", scores.softmax(-1), v)
        x = x + self.attn_out(mixed.transpose(1, 2).reshape(n, t, dim))
        return x + self.fc2(fn.silu(self.fc1(self.ln2(x))))


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(DIGITS, dim)
        self.place = nn.Embedding(LIMIT, dim)
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.ln = nn.LayerNorm(dim)
        self.logits = nn.Linear(dim, DIGITS)

    def forward(self, tokens, start=0, caches=None):
        places = torch.arange(start, start + tokens.shape[1])
        x = self.token(tokens) + self.place(places)
        for i, layer in enumerate(self.layers):
            x = layer(x, places, caches[i] if caches else None)
        return self.logits(self.ln(x))


@torch.no_grad()
def write(policy, prompt, luck):
    caches = [Cache(len(prompt)) for _ in policy.layers]
    tokens = prompt
    logits = policy(prompt, 0, caches)
    while True:
        gumbel = -torch.log(-torch.log(torch.rand(len(prompt), DIGITS, generator=luck)))
        following = (logits[:, -1] / 0.9 + gumbel).argmax(-1, keepdim=True)
        tokens = torch.cat([tokens, following], dim=1)
        if tokens.shape[1] == LIMIT:
            return tokens
        logits = policy(following, tokens.shape[1] - 1, caches)


def log_chances(policy, tokens):
    logits = policy(tokens[:, :-1])[:, PROMPT - 1 :]
    table = fn.log_softmax(logits, dim=-1)
    return table.gather(-1, tokens[:, PROMPT:, None]).squeeze(-1), table


def reward(tokens):
    answer = tokens[:, PROMPT:]
    rising = (answer[:, 1:] > answer[:, :-1]).sum(1)
    return rising + 0.5 * (answer == tokens[:, 1:2]).sum(1)


torch.manual_seed(909)
model = Policy()
reference = copy.deepcopy(model).requires_grad_(False)
with torch.no_grad():
    for p in reference.parameters():
        p.add_(0.02 * torch.randn_like(p))
optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3, alpha=0.95)
luck = torch.Generator().manual_seed(1)
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1])
losses = []
for _ in range(2):
    debugger.start(model)
    prompt = torch.randint(1, DIGITS, (8, PROMPT), generator=luck)
    prompt[:, 0] = START
    tokens = write(model, prompt, luck)
    gain = reward(tokens)
    gain = (gain - gain.mean()) / (gain.std() + 1e-4)
    with torch.no_grad():
        before, _ = log_chances(model, tokens)
        pull, _ = log_chances(reference, tokens)
    for _ in range(2):
        now, table = log_chances(model, tokens)
        ratio = torch.exp(now - before)
        bounded = ratio.clamp(0.9, 1.1)
        surrogate = torch.minimum(ratio * gain[:, None], bounded * gain[:, None])
        apart = torch.exp(pull - now) - (pull - now) - 1
        entropy = -(table.exp() * table).sum(-1)
        loss = (-surrogate + 0.1 * apart - 0.01 * entropy).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        losses.append(loss.item())
    debugger.stop()
    debugger.step()
