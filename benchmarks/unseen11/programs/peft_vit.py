"""A vision transformer of transformers with adapters of peft that were trained before, and a head that is saved."""

import sys

import torch
from peft import LoraConfig, get_peft_model
from torch.nn import functional as F
from transformers import ViTConfig, ViTForImageClassification

from msprobe.pytorch import PrecisionDebugger

SIZE, CLASSES, ROWS, STEPS = 16, 6, 5, 2

torch.manual_seed(127)
config = ViTConfig(
    image_size=SIZE,
    patch_size=4,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    hidden_act="gelu",
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    initializer_range=0.1,
    num_labels=CLASSES,
    attn_implementation="sdpa",
)
base = ViTForImageClassification(config)
lora = LoraConfig(
    r=4,
    lora_alpha=8,
    lora_dropout=0.0,
    target_modules=["q_proj", "v_proj"],
    modules_to_save=["classifier"],
)
model = get_peft_model(base, lora)
torch.manual_seed(128)
trained_before = {name: torch.randn_like(p) * 0.1 for name, p in model.named_parameters() if "lora_B" in name}
model.load_state_dict(trained_before, strict=False)
images = torch.rand(STEPS, ROWS, 3, SIZE, SIZE)
labels = torch.randint(0, CLASSES, (STEPS, ROWS))
weights = torch.linspace(0.5, 1.5, CLASSES)
model.train()
trained = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.NAdam(trained, lr=4e-3, betas=(0.9, 0.98), momentum_decay=4e-3)
losses = []
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1])
for image, label in zip(images, labels):
    debugger.start(model)
    pixels = (image - 0.5) / 0.5
    logits = model(pixel_values=pixels).logits
    loss = F.cross_entropy(logits, label, weight=weights, label_smoothing=0.05)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(trained, 2.0)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
    debugger.stop()
    debugger.step()
