"""Generation with a static key-value cache: prefill, then one token at a time; no training. A prompt is a step."""

import sys

import torch
import torch.nn.functional as F
from torch import nn

from msprobe.pytorch import PrecisionDebugger

torch.manual_seed(19)
VOCAB, WIDTH, HEADS, LAYERS, ROOM, PROMPT, NEW = 40, 24, 3, 2, 16, 6, 4
HEAD = WIDTH // HEADS


def slopes():
    return 2.0 ** (-8.0 * torch.arange(1, HEADS + 1) / HEADS)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x, cache, start):
        b, t, _ = x.shape
        h = self.norm1(x)
        q, k, v = (part(h).view(b, t, HEADS, HEAD).transpose(1, 2) for part in (self.q, self.k, self.v))
        keys, values = cache
        keys[:, :, start : start + t] = k
        values[:, :, start : start + t] = v
        distance = torch.arange(ROOM)[None, :] - torch.arange(start, start + t)[:, None]
        bias = (distance * slopes()[:, None, None]).masked_fill(distance > 0, float("-inf"))
        scores = q @ keys.transpose(-1, -2) / HEAD**0.5 + bias
        y = scores.softmax(-1) @ values
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.relu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB)

    def forward(self, ids, caches, start):
        x = self.embed(ids)
        for layer, cache in zip(self.layers, caches):
            x = layer(x, cache, start)
        return self.head(self.norm(x))


model = Model().eval()
prompts = torch.randint(0, VOCAB, (2, 2, PROMPT))
losses = []
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1])
caches = [[torch.zeros(2, HEADS, ROOM, HEAD) for _ in range(2)] for _ in range(LAYERS)]
for step in range(2):
    debugger.start(model)
    with torch.no_grad():
        for cache in caches:
            for tensor in cache:
                tensor.zero_()
        logits = model(prompts[step], caches, 0)[:, -1]
        total = torch.zeros(2)
        for n in range(NEW):
            logp = F.log_softmax(logits / 0.8, dim=-1)
            token = logp.argmax(-1)
            total = total + logp.gather(-1, token[:, None])[:, 0]
            logits = model(token[:, None], caches, PROMPT + n)[:, -1]
    debugger.stop()
    debugger.step()
    losses += [*total.tolist(), logits.abs().sum().item()]
