"""Group-relative policy optimisation on a small policy, two updates on one batch of samples per step."""

import sys

import torch
import torch.nn.functional as F
from torch import nn

from msprobe.pytorch import PrecisionDebugger

torch.manual_seed(17)
VOCAB, WIDTH, LENGTH, GROUP, PROMPTS = 20, 12, 6, 4, 2


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.rnn = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, VOCAB)
        self.value = nn.Linear(WIDTH, 1)

    def forward(self, ids):
        h, _ = self.rnn(self.embed(ids))
        return self.head(h), self.value(h).squeeze(-1)


policy = Policy()
model = policy
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
samples = torch.randint(0, VOCAB, (2, PROMPTS * GROUP, LENGTH + 1))
rewards = torch.randn(2, PROMPTS * GROUP)
lengths = torch.tensor([6, 5, 4, 6, 3, 6, 5, 2])
valid = torch.arange(LENGTH)[None] < lengths[:, None]
old_shift, reference_shift = 0.3 * torch.randn(2, 8, LENGTH), 0.3 * torch.randn(2, 8, LENGTH)
losses = []
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1])
for step in range(2):
    debugger.start(policy)
    ids, actions = samples[step, :, :-1], samples[step, :, 1:]
    grouped = rewards[step].view(PROMPTS, GROUP)
    advantage = (grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)
    advantage = advantage.view(-1, 1)
    logits, values = policy(ids)
    logp_all = F.log_softmax(logits, dim=-1)
    logp = logp_all.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
    old, reference = logp.detach() + old_shift[step], logp.detach() + reference_shift[step]
    ratio = torch.exp(logp - old)
    clipped = ratio.clamp(0.8, 1.2)
    surrogate = torch.minimum(ratio * advantage, clipped * advantage)
    kl = torch.exp(reference - logp) - (reference - logp) - 1
    entropy = -(logp_all.exp() * logp_all).sum(-1)
    value_loss = F.smooth_l1_loss(values, rewards[step][:, None].expand_as(values), reduction="none")
    each = -surrogate + 0.05 * kl - 0.01 * entropy + 0.5 * value_loss
    loss = ((each * valid).sum(1) / valid.sum(1)).mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
    optimizer.step()
    debugger.stop()
    debugger.step()
    losses.append(loss.item())
