"""Hugging Face Trainer: a small Qwen2 for sequence classification, own compute_loss, class weights."""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from transformers import Qwen2Config, Qwen2ForSequenceClassification, Trainer, TrainingArguments

from msprobe.pytorch import MsprobeCallback

torch.manual_seed(101)
config = Qwen2Config(
    vocab_size=50,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=32,
    num_labels=3,
    pad_token_id=0,
    initializer_range=0.1,
    use_sliding_window=False,
    attn_implementation="eager",
)
model = Qwen2ForSequenceClassification(config)


class Rows(torch.utils.data.Dataset):
    def __init__(self, count=24):
        chooser = torch.Generator().manual_seed(9)
        self.tokens = torch.randint(1, 50, (count, 10), generator=chooser)
        self.kept = torch.randint(5, 11, (count,), generator=chooser)
        self.labels = torch.randint(0, 3, (count,), generator=chooser)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return {"input_ids": self.tokens[i][: self.kept[i]].tolist(), "label": int(self.labels[i])}


def collate(rows):
    width = max(len(row["input_ids"]) for row in rows)
    tokens = torch.zeros(len(rows), width, dtype=torch.long)
    mask = torch.zeros(len(rows), width, dtype=torch.long)
    for i, row in enumerate(rows):
        tokens[i, : len(row["input_ids"])] = torch.tensor(row["input_ids"])
        mask[i, : len(row["input_ids"])] = 1
    return {"input_ids": tokens, "attention_mask": mask, "labels": torch.tensor([row["label"] for row in rows])}


losses = []


class Weighted(Trainer):
    weights = torch.tensor([0.5, 1.0, 2.0])

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = F.cross_entropy(outputs.logits, labels, weight=self.weights)
        losses.append(loss.item())
        return (loss, outputs) if return_outputs else loss

    def _get_train_sampler(self, dataset=None):
        return torch.utils.data.SequentialSampler(self.train_dataset)


arguments = TrainingArguments(
    output_dir=str(Path(sys.argv[1]).parent / "trainer"),
    max_steps=3,
    per_device_train_batch_size=6,
    learning_rate=3e-3,
    weight_decay=0.1,
    max_grad_norm=0.5,
    lr_scheduler_type="cosine",
    warmup_steps=1,
    adam_beta2=0.98,
    use_cpu=True,
    save_strategy="no",
    report_to=[],
    logging_strategy="no",
    disable_tqdm=True,
)
settings = {"dump_path": sys.argv[1], "task": sys.argv[2], "level": "mix", "step": [0, 1, 2]}
trainer = Weighted(model=model, args=arguments, train_dataset=Rows(), data_collator=collate)
trainer.add_callback(MsprobeCallback(debugger=settings))
trainer.train()
