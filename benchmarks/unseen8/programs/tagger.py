"""A tagger with a bidirectional LSTM written by hand, padded sentences and a masked loss."""

import sys

import torch
import torch.nn.functional as F
from torch import nn

from msprobe.pytorch import PrecisionDebugger

torch.manual_seed(7)
WORDS, TAGS, WIDTH, HIDDEN, LENGTH = 40, 6, 10, 12, 7


class Direction(nn.Module):
    def __init__(self):
        super().__init__()
        self.inputs, self.hidden = nn.Linear(WIDTH, 4 * HIDDEN), nn.Linear(HIDDEN, 4 * HIDDEN, bias=False)

    def forward(self, x, mask, backwards):
        h = x.new_zeros(x.shape[0], HIDDEN)
        c = x.new_zeros(x.shape[0], HIDDEN)
        outputs = []
        order = range(x.shape[1] - 1, -1, -1) if backwards else range(x.shape[1])
        for t in order:
            gates = self.inputs(x[:, t]) + self.hidden(h)
            i, f, g, o = gates.chunk(4, dim=-1)
            new_c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            new_h = torch.sigmoid(o) * torch.tanh(new_c)
            m = mask[:, t, None]
            c = torch.where(m, new_c, c)
            h = torch.where(m, new_h, h)
            outputs.append(h)
        if backwards:
            outputs.reverse()
        return torch.stack(outputs, dim=1)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, padding_idx=0)
        self.forwards, self.backwards = Direction(), Direction()
        self.drop = nn.Dropout(0.2)
        self.out = nn.Linear(2 * HIDDEN, TAGS)

    def forward(self, ids):
        mask = ids != 0
        x = self.words(ids)
        both = torch.cat([self.forwards(x, mask, False), self.backwards(x, mask, True)], dim=-1)
        return self.out(self.drop(both)), mask


model = Tagger()
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
ids, tags = torch.randint(1, WORDS, (2, 5, LENGTH)), torch.randint(0, TAGS, (2, 5, LENGTH))
for row, length in enumerate([7, 6, 5, 3, 2]):
    ids[:, row, length:] = 0
losses = []
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1])
for step in range(2):
    debugger.start(model)
    torch.manual_seed(100 + step)
    logits, mask = model(ids[step])
    each = F.cross_entropy(logits.transpose(1, 2), tags[step], reduction="none")
    loss = (each * mask).sum() / mask.sum()
    loss.backward()
    torch.nn.utils.clip_grad_value_(model.parameters(), 0.05)
    optimizer.step()
    optimizer.zero_grad()
    debugger.stop()
    debugger.step()
    losses.append(loss.item())
