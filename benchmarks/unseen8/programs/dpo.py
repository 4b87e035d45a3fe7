"""Preference training (DPO): a policy and a frozen reference, log-probabilities by hand."""

import copy
import sys

import torch
import torch.nn.functional as F
from torch import nn

from msprobe.pytorch import PrecisionDebugger

torch.manual_seed(16)
VOCAB, WIDTH, LENGTH, PROMPT, BETA = 32, 16, 10, 4, 0.5


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, ids):
        mask = torch.triu(torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool), 1)
        return self.head(self.layer(self.embed(ids), src_mask=mask))


def log_probability(model, ids, answer):
    logits = model(ids)[:, :-1]
    each = logits.log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
    return (each * answer[:, 1:]).sum(-1)


policy = LM()
reference = copy.deepcopy(policy)
with torch.no_grad():
    for p in policy.parameters():
        p.add_(0.05 * torch.randn_like(p))
for p in reference.parameters():
    p.requires_grad_(False)
models = [policy, reference]
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3, weight_decay=0.0)
chosen, rejected = torch.randint(1, VOCAB, (2, 4, LENGTH)), torch.randint(1, VOCAB, (2, 4, LENGTH))
rejected[..., :PROMPT] = chosen[..., :PROMPT]
answer = (torch.arange(LENGTH) >= PROMPT).expand(4, LENGTH).clone()
answer[0, 8:] = False
losses = []
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1])
for step in range(2):
    debugger.start([policy, reference])
    good = log_probability(policy, chosen[step], answer)
    bad = log_probability(policy, rejected[step], answer)
    with torch.no_grad():
        good_reference = log_probability(reference, chosen[step], answer)
        bad_reference = log_probability(reference, rejected[step], answer)
    margin = BETA * ((good - good_reference) - (bad - bad_reference))
    loss = -F.logsigmoid(margin).mean() - 0.1 * (good / answer[:, 1:].sum(-1)).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    debugger.stop()
    debugger.step()
    losses.append(loss.item())
