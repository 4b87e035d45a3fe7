"""Pre-trains a tiny BERT on masked words with the Trainer; the loss is divided by all masked words of an update."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset
from transformers import BertConfig, BertModel, Trainer, TrainingArguments, set_seed

from msprobe.pytorch import MsprobeCallback

PAD, CLS, SEP, MASK, FIRST_WORD = 0, 1, 2, 3, 4
VOCAB = 64

set_seed(2024)


class Sentences(Dataset):
    def __init__(self, count=16):
        draw = torch.Generator().manual_seed(5)
        self.rows = []
        for _ in range(count):
            first, second = torch.randint(3, 8, (2,), generator=draw).tolist()
            words = torch.randint(FIRST_WORD, VOCAB, (first + second,), generator=draw).tolist()
            ids = [CLS, *words[:first], SEP, *words[first:], SEP]
            self.rows.append({"ids": ids, "segments": [0] * (first + 2) + [1] * (second + 1)})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


class MaskingCollator:
    def __init__(self, rate=0.3):
        self.rate = rate
        self.draw = torch.Generator().manual_seed(77)

    def __call__(self, rows):
        longest = max(len(row["ids"]) for row in rows)
        ids = torch.tensor([row["ids"] + [PAD] * (longest - len(row["ids"])) for row in rows])
        segments = torch.tensor([row["segments"] + [0] * (longest - len(row["ids"])) for row in rows])
        attention = (ids != PAD).long()
        chosen = (torch.rand(ids.shape, generator=self.draw) < self.rate) & (ids >= FIRST_WORD)
        labels = ids.masked_fill(~chosen, -100)
        fate = torch.rand(ids.shape, generator=self.draw)
        noise = torch.randint(FIRST_WORD, VOCAB, ids.shape, generator=self.draw)
        ids = ids.masked_fill(chosen & (fate < 0.8), MASK)
        ids = torch.where(chosen & (fate >= 0.9), noise, ids)
        return {"input_ids": ids, "token_type_ids": segments, "attention_mask": attention, "labels": labels}


class WordHead(nn.Module):
    def __init__(self, config, table):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.decoder.weight = table.weight
        nn.init.zeros_(self.decoder.bias)

    def forward(self, hidden):
        hidden = F.gelu(self.dense(hidden))
        hidden = self.norm(hidden)
        return self.decoder(hidden)


class MaskedModel(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.encoder = BertModel(config, add_pooling_layer=False)
        self.head = WordHead(config, self.encoder.embeddings.word_embeddings)

    def forward(self, input_ids, attention_mask, token_type_ids):
        encoded = self.encoder(input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)
        return {"logits": self.head(encoded.last_hidden_state)}


losses = []


def masked_loss(outputs, labels, num_items_in_batch=None):
    total = F.cross_entropy(outputs["logits"].flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum")
    loss = total / num_items_in_batch
    losses.append(loss.item())
    return loss


def parameter_groups(model, decay):
    plain = [p for name, p in model.named_parameters() if name.endswith("bias") or "norm" in name.lower()]
    left = {id(p) for p in plain}
    rest = [p for p in model.parameters() if id(p) not in left]
    return [{"params": rest, "weight_decay": decay}, {"params": plain, "weight_decay": 0.0}]


config = BertConfig(
    vocab_size=VOCAB,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=24,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    initializer_range=0.06,
    attn_implementation="sdpa",
)
model = MaskedModel(config)
optimizer = torch.optim.AdamW(parameter_groups(model, 0.1), lr=2e-3, betas=(0.9, 0.98), eps=1e-6)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 3))
arguments = TrainingArguments(
    output_dir=sys.argv[1] + "_out",
    max_steps=3,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    max_grad_norm=1.0,
    remove_unused_columns=False,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
    use_cpu=True,
)
trainer = Trainer(
    model=model,
    args=arguments,
    train_dataset=Sentences(),
    data_collator=MaskingCollator(),
    optimizers=(optimizer, schedule),
    compute_loss_func=masked_loss,
)
settings = {"dump_path": sys.argv[1], "task": sys.argv[2], "level": "mix", "step": [0, 1, 2]}
trainer.add_callback(MsprobeCallback(debugger=settings))
trainer.train()
