"""peft: LoRA on a small T5, frozen base, label smoothing, gradients of two tasks, AdamW for the adapters only."""

import sys

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from transformers import T5Config, T5ForConditionalGeneration

from msprobe.pytorch import PrecisionDebugger

torch.manual_seed(131)
config = T5Config(
    vocab_size=60,
    d_model=32,
    d_kv=8,
    d_ff=48,
    num_layers=2,
    num_heads=4,
    relative_attention_num_buckets=8,
    relative_attention_max_distance=16,
    dropout_rate=0.0,
    feed_forward_proj="gated-gelu",
    decoder_start_token_id=0,
    use_cache=False,
)
base = T5ForConditionalGeneration(config)
lora = LoraConfig(
    r=4,
    lora_alpha=16,
    lora_dropout=0.0,
    target_modules=["q", "v", "wo"],
    use_rslora=False,
    init_lora_weights=False,
    bias="none",
)
model = get_peft_model(base, lora)


def batch(step):
    chooser = torch.Generator().manual_seed(step + 8)
    source = torch.randint(2, 60, (4, 11), generator=chooser)
    kept = torch.tensor([11, 9, 6, 10])
    mask = (torch.arange(11) < kept[:, None]).long()
    labels = torch.randint(2, 60, (4, 7), generator=chooser)
    labels[1, 5:] = -100
    labels[3, 4:] = -100
    return source * mask, mask, labels


def shift(labels):
    start = torch.zeros_like(labels[:, :1])
    return torch.cat([start, labels[:, :-1].clamp(min=0)], dim=1)


def loss_of(logits, labels, smoothing=0.1):
    log_probs = F.log_softmax(logits, dim=-1)
    real = labels != -100
    near = -log_probs.gather(-1, labels.clamp(min=0)[..., None]).squeeze(-1)
    even = -log_probs.mean(-1)
    rows = (1 - smoothing) * near + smoothing * even
    return (rows * real).sum() / real.sum()


trained = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(trained, lr=4e-3, weight_decay=0.05)
schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=6, power=1.0)
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1, 2])
losses = []
for step in range(3):
    debugger.start(model)
    source, mask, labels = batch(step)
    logits = model(input_ids=source, attention_mask=mask, decoder_input_ids=shift(labels)).logits
    loss = loss_of(logits, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    losses.append(loss.item())
    debugger.stop()
    debugger.step()
