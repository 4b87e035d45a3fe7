"""LoRA on a Mistral with grouped keys and a sliding window, trained by the Trainer on prompts with answers."""

import sys

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import MistralConfig, MistralForCausalLM, Trainer, TrainingArguments

from msprobe.pytorch import MsprobeCallback

torch.manual_seed(77)
PAD = 0
config = MistralConfig(
    vocab_size=101,
    hidden_size=32,
    intermediate_size=56,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    sliding_window=7,
    rms_norm_eps=1e-5,
    rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    initializer_range=0.15,
    use_cache=False,
    pad_token_id=PAD,
    attn_implementation="eager",
)
base = MistralForCausalLM(config)
for name, weight in base.named_parameters():
    if "layernorm" in name:
        nn.init.uniform_(weight, 0.6, 1.4)
lora = LoraConfig(r=4, lora_alpha=16, lora_dropout=0.0, target_modules=["q_proj", "v_proj", "down_proj"])
model = get_peft_model(base, lora)
with torch.no_grad():
    for name, weight in model.named_parameters():
        if "lora_" in name:
            weight.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(len(name))) * 0.1)


class Dialogues(torch.utils.data.Dataset):
    def __init__(self, amount):
        chooser = torch.Generator().manual_seed(4)
        self.samples = []
        for _ in range(amount):
            prompt = torch.randint(3, 101, (int(torch.randint(4, 9, (), generator=chooser)),), generator=chooser)
            answer = torch.randint(3, 101, (int(torch.randint(4, 8, (), generator=chooser)),), generator=chooser)
            self.samples.append((prompt.tolist(), [*answer.tolist(), 2]))

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        prompt, answer = self.samples[index]
        return {"input_ids": prompt + answer, "labels": [-100] * len(prompt) + answer}


def collate(samples):
    longest = max(len(sample["input_ids"]) for sample in samples)
    tokens, labels, mask = [], [], []
    for sample in samples:
        missing = longest - len(sample["input_ids"])
        tokens.append(sample["input_ids"] + [PAD] * missing)
        labels.append(sample["labels"] + [-100] * missing)
        mask.append([1] * (longest - missing) + [0] * missing)
    return {
        "input_ids": torch.tensor(tokens),
        "labels": torch.tensor(labels),
        "attention_mask": torch.tensor(mask),
    }


losses = []


class AnswerTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs["labels"]
        logits = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits
        shifted = nn.functional.pad(labels, (0, 1), value=-100)[:, 1:]
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), shifted.flatten(), ignore_index=-100)
        losses.append(loss.item())
        return loss


arguments = TrainingArguments(
    output_dir=sys.argv[1] + "_trainer",
    per_device_train_batch_size=3,
    max_steps=3,
    learning_rate=2e-2,
    lr_scheduler_type="linear",
    warmup_steps=0,
    weight_decay=0.05,
    max_grad_norm=0.5,
    adam_beta2=0.98,
    optim="adamw_torch",
    save_strategy="no",
    logging_strategy="no",
    report_to=[],
    use_cpu=True,
    disable_tqdm=True,
    remove_unused_columns=False,
    seed=13,
)
trainer = AnswerTrainer(model=model, args=arguments, train_dataset=Dialogues(12), data_collator=collate)
settings = {"dump_path": sys.argv[1], "task": sys.argv[2], "level": "mix", "step": [0, 1, 2]}
trainer.add_callback(MsprobeCallback(debugger=settings))
trainer.train()
