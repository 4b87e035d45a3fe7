"""Hugging Face Mixtral and Qwen3 built from configurations, trained together on one batch."""

import sys

import torch
from torch import nn
from transformers import MixtralConfig, MixtralForCausalLM, Qwen3Config, Qwen3ForCausalLM

from msprobe.pytorch import PrecisionDebugger

torch.manual_seed(26)
VOCAB = 40
sizes = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 32,
    "attn_implementation": "eager",
}
mixtral = MixtralForCausalLM(
    MixtralConfig(
        **sizes,
        num_local_experts=3,
        num_experts_per_tok=2,
        experts_implementation="eager",
        output_router_logits=True,
        router_aux_loss_coef=0.1,
    )
)
qwen = Qwen3ForCausalLM(Qwen3Config(**sizes, head_dim=8, tie_word_embeddings=True))
model = nn.ModuleDict({"mixtral": mixtral, "qwen": qwen})
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
ids = torch.randint(1, VOCAB, (2, 3, 9))
attention = torch.ones(3, 9, dtype=torch.long)
attention[1, :3] = 0  # left padding
positions = (attention.cumsum(-1) - 1).clamp(min=0)
losses = []
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1])
for step in range(2):
    debugger.start(model)
    labels = ids[step].masked_fill(attention == 0, -100)
    labels[1, 3] = -100  # predicted from padding
    first = mixtral(input_ids=ids[step], attention_mask=attention, position_ids=positions, labels=labels).loss
    second = qwen(input_ids=ids[step], attention_mask=attention, position_ids=positions, labels=labels).loss
    loss = first + second
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    debugger.stop()
    debugger.step()
    losses.append(loss.item())
