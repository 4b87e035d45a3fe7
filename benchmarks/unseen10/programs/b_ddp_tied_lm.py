# world 2
"""Two processes train a language model whose output layer is the embedding; each has its own share of the texts."""

import math
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from msprobe.pytorch import PrecisionDebugger

torch.set_num_threads(1)
dist.init_process_group("gloo")
RANK, WORLD = dist.get_rank(), dist.get_world_size()
WORDS, WIDTH, HEADS, CONTEXT, PADDING = 80, 32, 4, 12, 0


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.join = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (part(x).view(b, t, HEADS, -1).transpose(1, 2) for part in (self.query, self.key, self.value))
        later = torch.ones(t, t, dtype=torch.bool).triu(1)
        scores = (q @ k.mT / math.sqrt(WIDTH // HEADS)).masked_fill(later, float("-inf"))
        return self.join((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, WIDTH))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.up, self.down = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.attention(self.before(x))
        return x + self.down(F.relu(self.up(self.between(x))).square())


class TiedModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, padding_idx=PADDING)
        self.layers = nn.Sequential(Layer(), Layer())
        self.last = nn.LayerNorm(WIDTH)
        self.bias = nn.Parameter(torch.zeros(WORDS))
        nn.init.normal_(self.words.weight, std=WIDTH**-0.5)

    @staticmethod
    def waves(length):
        place = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, WIDTH, 2) / WIDTH)
        return torch.stack([place.sin(), place.cos()], dim=-1).flatten(1)

    def forward(self, tokens):
        x = self.words(tokens) * math.sqrt(WIDTH) + self.waves(tokens.shape[1])
        x = self.last(self.layers(x))
        return F.linear(x, self.words.weight, self.bias)


def texts(step):
    draw = torch.Generator().manual_seed(step * 7 + 3)
    lengths = torch.randint(5, CONTEXT + 1, (8,), generator=draw)
    rows = torch.randint(1, WORDS, (8, CONTEXT), generator=draw)
    return rows.masked_fill(torch.arange(CONTEXT) >= lengths[:, None], PADDING)


torch.manual_seed(6)
inner = TiedModel()
model = DistributedDataParallel(inner)
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, betas=(0.9, 0.99), eps=1e-7)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.7)
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1, 2])
losses = []
for step in range(3):
    debugger.start(model)
    mine = texts(step)[RANK::WORLD]
    optimizer.zero_grad(set_to_none=True)
    logits = model(mine[:, :-1])
    wanted = mine[:, 1:]
    summed = F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=PADDING, reduction="sum")
    count = (wanted != PADDING).sum().to(summed.dtype)
    dist.all_reduce(count)
    loss = summed * WORLD / count
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    shown = loss.detach() / WORLD
    dist.all_reduce(shown)
    losses.append(shown.item())
    debugger.stop()
    debugger.step()
dist.destroy_process_group()
