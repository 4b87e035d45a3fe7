"""Hugging Face BERT, built from a configuration: masked words, padding, accumulation over two micro-batches."""

import sys

import torch
from transformers import BertConfig, BertForMaskedLM

from msprobe.pytorch import PrecisionDebugger

torch.manual_seed(12)
VOCAB, LENGTH = 60, 10
config = BertConfig(
    vocab_size=VOCAB,
    hidden_size=24,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=32,
    max_position_embeddings=16,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    attn_implementation="eager",
)
model = BertForMaskedLM(config)
model.train()
named = list(model.named_parameters())
skip = ("bias", "LayerNorm.weight")
groups = [
    {"params": [p for n, p in named if not n.endswith(skip)], "weight_decay": 0.05},
    {"params": [p for n, p in named if n.endswith(skip)], "weight_decay": 0.0},
]
optimizer = torch.optim.AdamW(groups, lr=2e-3, eps=1e-6)
PARTS = 2
ids = torch.randint(5, VOCAB, (2, 6, LENGTH))
masked = torch.rand(2, 6, LENGTH) < 0.3
masked[..., 0] = True
attention = torch.ones_like(ids)
for row, length in enumerate([10, 9, 8, 7, 6, 5]):
    attention[:, row, length:] = 0
losses = []
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1])
for step in range(2):
    debugger.start(model)
    for part in range(PARTS):
        rows = slice(part * 6 // PARTS, (part + 1) * 6 // PARTS)
        hidden = masked[step, rows] & (attention[step, rows] == 1)
        inputs = ids[step, rows].masked_fill(hidden, 3)
        labels = ids[step, rows].masked_fill(~hidden, -100)
        output = model(input_ids=inputs, attention_mask=attention[step, rows], labels=labels)
        loss = output.loss / PARTS
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    debugger.stop()
    debugger.step()
    losses.append(loss.item())
