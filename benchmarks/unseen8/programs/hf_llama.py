"""Hugging Face Llama, built from a configuration, and a plain training loop."""

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from msprobe.pytorch import PrecisionDebugger

torch.manual_seed(13)
VOCAB, LENGTH = 48, 8
config = LlamaConfig(
    vocab_size=VOCAB,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=32,
    attn_implementation="eager",
)
model = LlamaForCausalLM(config)
data = torch.randint(1, VOCAB, (8, LENGTH))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
losses = []
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1])
for step in range(2):
    debugger.start(model)
    ids = data[4 * step : 4 * step + 4]
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    debugger.stop()
    debugger.step()
    losses.append(loss.item())
