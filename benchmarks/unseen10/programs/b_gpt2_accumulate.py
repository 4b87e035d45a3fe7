"""GPT-2 of transformers is tuned on rows of two documents each; an update has the gradients of two micro-batches."""

import math
import sys

import torch
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel

from msprobe.pytorch import PrecisionDebugger

VOCABULARY, LENGTH, ROWS, MICRO, UPDATES = 90, 20, 3, 2, 3
BASE_RATE, WARMUP = 4e-3, 2

torch.manual_seed(21)
config = GPT2Config(
    vocab_size=VOCABULARY,
    n_positions=32,
    n_embd=32,
    n_layer=2,
    n_head=4,
    resid_pdrop=0.0,
    embd_pdrop=0.0,
    attn_pdrop=0.0,
    use_cache=False,
    initializer_range=0.08,
    attn_implementation="eager",
)
model = GPT2LMHeadModel(config)


def read_rows(number):
    """Tokens, the document of each token, and how far each token is in its document."""
    draw = torch.Generator().manual_seed(900 + number)
    tokens = torch.randint(3, VOCABULARY, (ROWS, LENGTH), generator=draw)
    border = torch.randint(6, 15, (ROWS, 1), generator=draw)
    place = torch.arange(LENGTH).expand(ROWS, LENGTH)
    document = (place >= border).long()
    position = place - border * document
    labels = tokens.masked_fill(position == 0, -100)
    labels = labels.masked_fill((document == 0) & (place < 2 + number % 3), -100)
    return tokens, document, position, labels


def document_mask(document):
    same = document[:, :, None] == document[:, None, :]
    allowed = same & torch.ones(LENGTH, LENGTH).tril().bool()
    dtype = torch.get_default_dtype()
    return torch.zeros(allowed.shape, dtype=dtype).masked_fill(~allowed, torch.finfo(dtype).min)[:, None]


def token_loss(logits, labels):
    logits, labels = logits[:, :-1], labels[:, 1:]
    return F.cross_entropy(logits.reshape(-1, VOCABULARY), labels.reshape(-1), ignore_index=-100, reduction="sum")


matrices = [weight for weight in model.parameters() if weight.ndim == 2]
vectors = [weight for weight in model.parameters() if weight.ndim < 2]
optimizer = torch.optim.AdamW(
    [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
    lr=BASE_RATE,
    betas=(0.9, 0.95),
    eps=1e-8,
)
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1, 2])
losses = []
model.train()
for update in range(UPDATES):
    debugger.start(model)
    rate = BASE_RATE * min(1.0, (update + 1) / WARMUP) * (0.5 + 0.5 * math.cos(math.pi * update / 6))
    for group in optimizer.param_groups:
        group["lr"] = rate
    micro_batches = [read_rows(update * MICRO + part) for part in range(MICRO)]
    counted = sum((labels[:, 1:] != -100).sum() for _, _, _, labels in micro_batches)
    total = 0.0
    for tokens, document, position, labels in micro_batches:
        logits = model(input_ids=tokens, attention_mask=document_mask(document), position_ids=position).logits
        loss = token_loss(logits, labels) / counted
        loss.backward()
        total += loss.item()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.7)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(total)
    debugger.stop()
    debugger.step()
