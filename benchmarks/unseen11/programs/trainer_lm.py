"""A GPT-2 of transformers with padded rows and hidden tokens, two micro-batches a step, in a loop of its own."""

import sys

import torch
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel, get_linear_schedule_with_warmup

from msprobe.pytorch import PrecisionDebugger

VOCAB, LENGTH, ROWS, PARTS, STEPS = 53, 18, 4, 2, 2

torch.manual_seed(23)
config = GPT2Config(
    vocab_size=VOCAB,
    n_positions=LENGTH,
    n_embd=32,
    n_layer=2,
    n_head=4,
    resid_pdrop=0.0,
    embd_pdrop=0.0,
    attn_pdrop=0.0,
    initializer_range=0.1,
    attn_implementation="eager",
)
model = GPT2LMHeadModel(config)
count = ROWS * PARTS * STEPS
ids = torch.randint(1, VOCAB, (count, LENGTH))
lengths = torch.randint(LENGTH // 2, LENGTH + 1, (count,))
mask = (torch.arange(LENGTH) < lengths[:, None]) & (torch.rand(count, LENGTH) > 0.15)
mask[:, 0] = True
mask = mask.long()
ids = ids * mask
labels = ids.masked_fill(mask == 0, -100)
labels[:, 0] = -100
data = [{"input_ids": ids[i], "attention_mask": mask[i], "labels": labels[i]} for i in range(count)]


def collate(rows):
    return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}


def decays(name, p):
    return p.dim() > 1


losses = []
model.train()
groups = [
    {"params": [p for n, p in model.named_parameters() if decays(n, p)], "weight_decay": 0.1},
    {"params": [p for n, p in model.named_parameters() if not decays(n, p)], "weight_decay": 0.0},
]
optimizer = torch.optim.AdamW(groups, lr=2e-3, betas=(0.9, 0.999), eps=1e-8)
scheduler = get_linear_schedule_with_warmup(optimizer, 0, STEPS)
loader = list(torch.utils.data.DataLoader(data, batch_size=ROWS, collate_fn=collate))
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1])
for step in range(STEPS):
    parts = loader[step * PARTS : (step + 1) * PARTS]
    items = sum((part["labels"][:, 1:] != -100).sum() for part in parts)
    debugger.start(model)
    total = 0.0
    for part in parts:
        logits = model(input_ids=part["input_ids"], attention_mask=part["attention_mask"]).logits
        shifted = part["labels"][:, 1:].flatten()
        flat = logits[:, :-1].flatten(0, 1)
        loss = F.cross_entropy(flat, shifted, ignore_index=-100, reduction="sum") / items
        loss.backward()
        total += loss.item()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    losses.append(total)
    debugger.stop()
    debugger.step()
