"""Hugging Face T5, built from a configuration; decoder inputs and loss by hand; Adafactor by hand."""

import sys

import torch
import torch.nn.functional as F
from transformers import T5Config, T5ForConditionalGeneration

from msprobe.pytorch import PrecisionDebugger

torch.manual_seed(14)
VOCAB = 40
config = T5Config(
    vocab_size=VOCAB, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2, dropout_rate=0.0, decoder_start_token_id=0
)
model = T5ForConditionalGeneration(config)
model.train()


class Adafactor(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-2, eps=1e-30, threshold=1.0, decay=0.8):
        super().__init__(params, {"lr": lr, "eps": eps, "threshold": threshold, "decay": decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state["step"] = state.get("step", 0) + 1
                rho = 1.0 - state["step"] ** -group["decay"]
                square = p.grad.square() + group["eps"]
                if p.dim() == 2:
                    row = state.setdefault("row", torch.zeros(p.shape[0]))
                    column = state.setdefault("column", torch.zeros(p.shape[1]))
                    row.mul_(rho).add_(square.mean(1), alpha=1 - rho)
                    column.mul_(rho).add_(square.mean(0), alpha=1 - rho)
                    second = torch.outer(row / row.mean(), column)
                else:
                    second = state.setdefault("second", torch.zeros_like(p))
                    second.mul_(rho).add_(square, alpha=1 - rho)
                update = p.grad / second.sqrt()
                rms = update.norm() / update.numel() ** 0.5
                update = update / torch.clamp(rms / group["threshold"], min=1.0)
                p.sub_(group["lr"] * update)


optimizer = Adafactor(model.parameters())
source, labels = torch.randint(2, VOCAB, (2, 4, 7)), torch.randint(2, VOCAB, (2, 4, 6))
keep = torch.ones(4, 7, dtype=torch.long)
keep[1, 5:] = 0
labels[:, 2, 4:] = -100
losses = []
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1])
for step in range(2):
    debugger.start(model)
    start = torch.zeros(4, 1, dtype=torch.long)
    decoder_input = torch.cat([start, labels[step][:, :-1]], dim=1).clamp(min=0)
    logits = model(input_ids=source[step], attention_mask=keep, decoder_input_ids=decoder_input).logits
    loss = F.cross_entropy(logits.reshape(-1, VOCAB), labels[step].reshape(-1), ignore_index=-100)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    debugger.stop()
    debugger.step()
    losses.append(loss.item())
