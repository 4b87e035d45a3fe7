"""Reverses sequences with an LSTM encoder and an attending LSTM decoder; Adam by hand on lists of tensors."""

import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

from msprobe.pytorch import PrecisionDebugger

torch.manual_seed(616)
PAD, BOS, EOS, SYMBOLS = 0, 1, 2, 26


class ListAdam:
    def __init__(self, params, lr=4e-3, beta1=0.9, beta2=0.99, eps=1e-8, clip=1.0):
        self.params = list(params)
        self.lr, self.beta1, self.beta2, self.eps, self.clip = lr, beta1, beta2, eps, clip
        self.count = 0
        self.first = [torch.zeros_like(p) for p in self.params]
        self.second = [torch.zeros_like(p) for p in self.params]

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def step(self):
        grads = [p.grad for p in self.params]
        norm = torch.stack(torch._foreach_norm(grads)).norm()
        grads = torch._foreach_mul(grads, (self.clip / (norm + 1e-6)).clamp(max=1.0))
        self.count += 1
        torch._foreach_mul_(self.first, self.beta1)
        torch._foreach_add_(self.first, grads, alpha=1 - self.beta1)
        torch._foreach_mul_(self.second, self.beta2)
        torch._foreach_addcmul_(self.second, grads, grads, 1 - self.beta2)
        size = self.lr / (1 - self.beta1**self.count)
        root = torch._foreach_sqrt(torch._foreach_div(self.second, 1 - self.beta2**self.count))
        torch._foreach_add_(root, self.eps)
        torch._foreach_addcdiv_(self.params, self.first, root, -size)


class Reader(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.lstm = nn.LSTM(width, hidden, batch_first=True, bidirectional=True)
        self.join_h = nn.Linear(2 * hidden, hidden)
        self.join_c = nn.Linear(2 * hidden, hidden)

    def forward(self, embedded, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(embedded, lengths, batch_first=True, enforce_sorted=False)
        states, (h, c) = self.lstm(packed)
        states, _ = nn.utils.rnn.pad_packed_sequence(states, batch_first=True, total_length=embedded.shape[1])
        h = torch.tanh(self.join_h(torch.cat([h[0], h[1]], dim=-1)))
        c = self.join_c(torch.cat([c[0], c[1]], dim=-1))
        return states, h, c


class Writer(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.cell = nn.LSTMCell(width + hidden, hidden)
        self.keys = nn.Linear(2 * hidden, hidden, bias=False)
        self.combine = nn.Linear(3 * hidden, hidden)

    def forward(self, embedded, states, padding, h, c):
        feed = torch.zeros_like(h)
        keys = self.keys(states)
        outputs = []
        for step in range(embedded.shape[1]):
            h, c = self.cell(torch.cat([embedded[:, step], feed], dim=-1), (h, c))
            scores = torch.bmm(keys, h.unsqueeze(-1)).squeeze(-1)
            scores = scores.masked_fill(padding, -1e9)
            context = torch.bmm(scores.softmax(dim=-1).unsqueeze(1), states).squeeze(1)
            feed = torch.tanh(self.combine(torch.cat([context, h], dim=-1)))
            outputs.append(feed)
        return torch.stack(outputs, dim=1)


class Seq2Seq(nn.Module):
    def __init__(self, width=16, hidden=20):
        super().__init__()
        self.source = nn.Embedding(SYMBOLS, width, padding_idx=PAD)
        self.target = nn.Embedding(SYMBOLS, width, padding_idx=PAD)
        self.reader = Reader(width, hidden)
        self.writer = Writer(width, hidden)
        self.vocab = nn.Linear(hidden, SYMBOLS)
        for name, p in self.named_parameters():
            if "bias_" in name:
                nn.init.zeros_(p)
                if "bias_ih" in name:
                    p.data[p.numel() // 4 : p.numel() // 2] = 1.0  # the forget gate

    def forward(self, source, lengths, previous):
        states, h, c = self.reader(self.source(source), lengths)
        return self.vocab(self.writer(self.target(previous), states, source == PAD, h, c))


def pairs(step):
    coin = torch.Generator().manual_seed(3 * step + 1)
    lengths = torch.randint(4, 9, (10,), generator=coin)
    source = torch.full((10, 8), PAD)
    target = torch.full((10, 10), PAD)
    for row, length in enumerate(lengths.tolist()):
        letters = torch.randint(3, SYMBOLS, (length,), generator=coin)
        source[row, :length] = letters
        target[row, : length + 2] = torch.cat([torch.tensor([BOS]), letters.flip(0), torch.tensor([EOS])])
    return source, lengths, target


model = Seq2Seq()
adam = ListAdam(model.parameters())
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1, 2])
losses = []
for step in range(3):
    debugger.start(model)
    source, lengths, target = pairs(step)
    logits = model(source, lengths, target[:, :-1])
    loss = F.cross_entropy(logits.transpose(1, 2), target[:, 1:], ignore_index=PAD)
    adam.zero_grad()
    loss.backward()
    adam.step()
    losses.append(loss.item())
    debugger.stop()
    debugger.step()
