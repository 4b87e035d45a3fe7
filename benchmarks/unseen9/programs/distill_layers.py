"""Distillation: a frozen teacher, a student with checkpointed blocks, losses on logits and on hidden states."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from msprobe.pytorch import PrecisionDebugger

torch.manual_seed(171)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.fc1, self.fc2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x, hidden):
        y = self.attention(x, x, x, key_padding_mask=hidden, need_weights=False)[0]
        x = self.norm1(x + y)
        return self.norm2(x + self.fc2(F.gelu(self.fc1(x))))


class Encoder(nn.Module):
    def __init__(self, width, heads, layers, vocabulary=70, keep=False):
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width, padding_idx=0), nn.Embedding(16, width)
        self.norm = nn.LayerNorm(width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.pool, self.head = nn.Linear(width, width), nn.Linear(width, 6)
        self.keep = keep

    def forward(self, tokens):
        hidden = tokens == 0
        x = self.norm(self.words(tokens) + self.places(torch.arange(tokens.shape[1])))
        states = []
        for block in self.blocks:
            x = checkpoint(block, x, hidden, use_reentrant=False) if self.keep else block(x, hidden)
            states.append(x)
        real = (~hidden).unsqueeze(-1).to(x.dtype)
        mean = (x * real).sum(1) / real.sum(1)
        return self.head(torch.tanh(self.pool(mean))), states


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder(24, 3, 2, keep=True)
        self.lifts = nn.ModuleList(nn.Linear(24, 32, bias=False) for _ in range(2))

    def forward(self, tokens):
        logits, states = self.encoder(tokens)
        return logits, [lift(state) for lift, state in zip(self.lifts, states)]


def batch(step):
    chooser = torch.Generator().manual_seed(step + 33)
    tokens = torch.randint(1, 70, (6, 11), generator=chooser)
    kept = torch.tensor([11, 8, 10, 5, 7, 11])
    return tokens * (torch.arange(11) < kept[:, None]), torch.randint(0, 6, (6,), generator=chooser)


teacher, model = Encoder(32, 4, 4).eval(), Student()
teacher.requires_grad_(False)
models = [model, teacher]
model.encoder.words.weight.requires_grad_(False)
trained = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(trained, lr=3e-3, amsgrad=True)
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1, 2])
losses = []
for step in range(3):
    debugger.start(model=[model, teacher])
    tokens, labels = batch(step)
    with torch.no_grad():
        goal, targets = teacher(tokens)
    logits, states = model(tokens)
    real = tokens != 0
    soft = F.kl_div(F.log_softmax(logits / 3, -1), F.log_softmax(goal / 3, -1), reduction="batchmean", log_target=True)
    match = sum(F.mse_loss(mine[real], theirs[real]) for mine, theirs in zip(states, targets[1::2]))
    cosine = 1 - F.cosine_similarity(states[-1][real], targets[-1][real], dim=-1).mean()
    loss = 0.3 * F.cross_entropy(logits, labels) + 9 * soft + match + 0.5 * cosine
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(trained, 2.0)
    optimizer.step()
    losses.append(loss.item())
    debugger.stop()
    debugger.step()
