"""A Hugging Face Llama from a small config: gradient accumulation, checkpointing, packed batches, a Lion optimizer."""

import sys

import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from msprobe.pytorch import PrecisionDebugger

torch.manual_seed(91)
config = LlamaConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    rms_norm_eps=1e-6,
    rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    initializer_range=0.08,
    attn_implementation="eager",
    use_cache=False,
)
model = LlamaForCausalLM(config)
model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
model.train()


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr, betas=(0.9, 0.99), decay=0.1):
        super().__init__(params, {"lr": lr, "betas": betas, "decay": decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            first, second = group["betas"]
            for p in group["params"]:
                if not self.state[p]:
                    self.state[p]["m"] = torch.zeros_like(p)
                m = self.state[p]["m"]
                update = m * first + p.grad * (1 - first)
                update = torch.tanh(update / (update.square().mean().sqrt() + 1e-8))
                p.mul_(1 - group["lr"] * group["decay"])
                p.add_(update, alpha=-group["lr"])
                m.mul_(second).add_(p.grad, alpha=1 - second)


def micro_batches(step):
    chooser = torch.Generator().manual_seed(step + 20)
    for width in (12, 8):
        tokens = torch.randint(3, 64, (3, width), generator=chooser)
        kept = torch.tensor([width, width - 2, width - 3])
        mask = (torch.arange(width) < kept[:, None]).long()
        tokens = tokens * mask
        labels = tokens.masked_fill(mask == 0, -100)
        labels[:, :2] = -100
        yield tokens, mask, labels


def loss_sum(logits, labels):
    logits, labels = logits[:, :-1], labels[:, 1:]
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum")


decayed = [p for name, p in model.named_parameters() if p.ndim > 1 and "embed" not in name]
others = [p for name, p in model.named_parameters() if not (p.ndim > 1 and "embed" not in name)]
optimizer = Lion([{"params": decayed}, {"params": others, "decay": 0.0}], lr=2e-3)
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1, 2])
losses = []
for step in range(3):
    debugger.start(model)
    micros = list(micro_batches(step))
    total = sum((labels[:, 1:] != -100).sum() for _, _, labels in micros)
    running = 0.0
    for tokens, mask, labels in micros:
        logits = model(input_ids=tokens, attention_mask=mask).logits
        loss = loss_sum(logits, labels) / total
        loss.backward()
        running += loss.item()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(running)
    debugger.stop()
    debugger.step()
