"""Hugging Face Whisper, built from a configuration; frozen encoder positions, label smoothing."""

import sys

import torch
import torch.nn.functional as F
from transformers import WhisperConfig, WhisperForConditionalGeneration

from msprobe.pytorch import PrecisionDebugger

torch.manual_seed(15)
VOCAB = 45
config = WhisperConfig(
    vocab_size=VOCAB,
    num_mel_bins=6,
    d_model=16,
    encoder_layers=1,
    decoder_layers=1,
    encoder_attention_heads=2,
    decoder_attention_heads=2,
    encoder_ffn_dim=24,
    decoder_ffn_dim=24,
    max_source_positions=12,
    max_target_positions=10,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    decoder_start_token_id=1,
    dropout=0.0,
    init_std=0.2,
    attn_implementation="eager",
)
model = WhisperForConditionalGeneration(config)
model.train()
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.8)
mel, labels = torch.randn(2, 3, 6, 24), torch.randint(3, VOCAB, (2, 3, 7))
losses = []
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1])
for step in range(2):
    debugger.start(model)
    features = mel[step]
    features = torch.maximum(features, features.amax((1, 2), keepdim=True) - 3.0)
    features = (features + 4.0) / 4.0
    decoder_input = F.pad(labels[step][:, :-1], (1, 0), value=1)
    logits = model(input_features=features, decoder_input_ids=decoder_input).logits
    loss = F.cross_entropy(logits.transpose(1, 2), labels[step], label_smoothing=0.1)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    debugger.stop()
    debugger.step()
    losses.append(loss.item())
