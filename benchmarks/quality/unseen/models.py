"""The models of the unseen cases: none of them is in the tuned suite. Importing this adds them to MODELS."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from architectures import (
    DECODER,
    ENCODER,
    MODELS,
    SIZE,
    VOCABULARY,
    Batch,
    Model,
    _builder,
    _own_loss,
    images,
    masked_tokens,
    tokens,
)
from parts import IDS, NO_DROPOUT, generator, sentences, sound, translation, waves
from torch import Tensor, nn

SEED = 5000


def _generator(step: int) -> torch.Generator:
    return generator(SEED, step)


def maps(step: int) -> Batch:
    made = _generator(step)
    pixels = torch.randn(SIZE, 3, 32, 32, generator=made)
    return {"pixel_values": pixels, "labels": torch.randint(0, 5, (SIZE, 32, 32), generator=made)}


class Diffusion(nn.Module):
    """A denoiser with a time embedding, trained on noise that it draws itself."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("betas", torch.linspace(1e-3, 0.2, 20))
        self.time = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 32))
        self.inward = nn.Linear(8, 32)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32), nn.SiLU()) for _ in range(3))
        self.out = nn.Linear(32, 8)

    def embed(self, moment: Tensor) -> Tensor:
        frequencies = torch.exp(torch.arange(8) * (-4.6 / 8))
        angles = moment[:, None].float() * frequencies[None]
        return torch.cat([angles.sin(), angles.cos()], dim=-1)

    def forward(self, clean: Tensor, moment: Tensor) -> tuple[Tensor, Tensor]:
        kept = torch.cumprod(1 - self.betas, dim=0)[moment][:, None]
        noise = torch.randn(clean.shape)
        noisy = kept.sqrt() * clean + (1 - kept).sqrt() * noise
        time = self.time(self.embed(moment))
        x = self.inward(noisy)
        for block in self.blocks:
            x = x + block(x + time)
        return self.out(x), noise


def _points(step: int) -> Batch:
    made = _generator(step)
    clean = torch.randn(16, 8, generator=made)
    return {"clean": clean, "moment": torch.randint(0, 20, (16,), generator=made)}


def _noise_loss(model: nn.Module, batch: Batch) -> Tensor:
    guess, noise = model(batch["clean"], batch["moment"])
    return F.mse_loss(guess, noise)


class Speech(nn.Module):
    """Convolutions, a GRU and a CTC loss."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(8, 24, 3, padding=1)
        self.norm = nn.BatchNorm1d(24)
        self.gru = nn.GRU(24, 20, batch_first=True, bidirectional=True)
        self.head = nn.Linear(40, 12)

    def forward(self, features: Tensor) -> Tensor:
        x = F.leaky_relu(self.norm(self.conv(features)), 0.1)
        x, _ = self.gru(x.transpose(1, 2))
        return self.head(x).log_softmax(-1)


def _utterances(step: int) -> Batch:
    made = _generator(step)
    return {
        "features": torch.randn(SIZE, 8, 24, generator=made),
        "text": torch.randint(1, 12, (SIZE, 5), generator=made),
    }


def _ctc(model: nn.Module, batch: Batch) -> Tensor:
    scores = model(batch["features"]).transpose(0, 1)
    text = batch["text"]
    lengths = torch.full((scores.shape[1],), scores.shape[0])
    return F.ctc_loss(scores, text, lengths, torch.full((text.shape[0],), text.shape[1]), zero_infinity=True)


class ActorCritic(nn.Module):
    """A policy and a value with a shared trunk, trained on log-probabilities and advantages."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
        self.policy = nn.Linear(32, 6)
        self.value = nn.Linear(32, 1)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        x = self.trunk(state)
        return self.policy(x), self.value(x).squeeze(-1)


def _episodes(step: int) -> Batch:
    made = _generator(step)
    return {
        "state": torch.randn(32, 10, generator=made),
        "action": torch.randint(0, 6, (32,), generator=made),
        "reward": torch.randn(32, generator=made),
    }


def _advantage_loss(model: nn.Module, batch: Batch) -> Tensor:
    logits, value = model(batch["state"])
    advantage = batch["reward"] - value.detach()
    chosen = F.log_softmax(logits, dim=-1).gather(1, batch["action"][:, None]).squeeze(1)
    policy = -(chosen * advantage).mean()
    entropy = -(F.softmax(logits, dim=-1) * F.log_softmax(logits, dim=-1)).sum(-1).mean()
    return policy + 0.5 * F.mse_loss(value, batch["reward"]) - 0.01 * entropy


def _gpt(name: str, family: str, sizes: dict[str, Any], batch: Any = tokens, attention: bool = True) -> Model:
    return Model(name, _builder(family, "ForCausalLM", sizes), batch, _own_loss, attention)


def _encoder(name: str, family: str, head: str, sizes: dict[str, Any], attention: bool = True) -> Model:
    return Model(name, _builder(family, head, {**ENCODER, **NO_DROPOUT, **sizes}), masked_tokens, _own_loss, attention)


JAMBA = {
    **DECODER, "num_experts": 4, "num_experts_per_tok": 2, "attn_layer_period": 2, "attn_layer_offset": 1,
    "expert_layer_period": 2, "expert_layer_offset": 1, "mamba_d_state": 4, "mamba_dt_rank": 4,
    "use_mamba_kernels": False,
}  # fmt: skip
TRANSFORMERS = [
    _gpt("falcon", "Falcon", {**IDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}),
    _gpt("olmo2", "Olmo2", DECODER),
    _gpt("gpt_neox", "GPTNeoX", {**ENCODER, "bos_token_id": 1, "eos_token_id": 2}, masked_tokens),
    _gpt("bloom", "Bloom", {**IDS, "hidden_size": 32, "n_layer": 2, "n_head": 4}, masked_tokens, attention=False),
    _gpt("starcoder2", "Starcoder2", DECODER),
    _gpt("cohere", "Cohere", {**DECODER, "use_qk_norm": True}),
    _gpt("glm", "Glm", {**DECODER, "head_dim": 8}, masked_tokens),
    _gpt("granite", "Granite", {**DECODER, "residual_multiplier": 0.7, "embedding_multiplier": 3.0,
                                "logits_scaling": 2.0, "attention_multiplier": 0.3}),
    _gpt("gptj", "GPTJ", {**IDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4, "n_positions": 64,
                          "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}, attention=False),
    _gpt("rwkv", "Rwkv", {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": VOCABULARY, "context_length": 32,
                          "attention_hidden_size": 32, "intermediate_size": 48}, attention=False),
    _gpt("jamba", "Jamba", JAMBA),
    _encoder("electra", "Electra", "ForMaskedLM", {"embedding_size": 24}),
    _encoder("deberta_v2", "DebertaV2", "ForMaskedLM", {
        "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 8, "type_vocab_size": 0,
        "max_relative_positions": 64, "share_att_key": True, "norm_rel_ebd": "layer_norm"}, attention=False),
    _encoder("albert", "Albert", "ForMaskedLM", {"embedding_size": 24, "num_hidden_layers": 3}),
    Model("bart", _builder("Bart", "ForConditionalGeneration", translation(32, 4, 48, 64)),
          sentences(SEED, (9, 7), (1, 6), (2, 5)), _own_loss, True),
    Model("swin", _builder("Swin", "ForImageClassification", {
        "image_size": 16, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4,
        "drop_path_rate": 0.0, "num_labels": 5}), images, _own_loss),
    Model("convnext", _builder("ConvNext", "ForImageClassification", {
        "hidden_sizes": [8, 16], "depths": [2, 2], "num_stages": 2, "patch_size": 2, "num_labels": 5,
        "layer_scale_init_value": 0.5}), images, _own_loss),
    Model("wav2vec2", _builder("Wav2Vec2", "ForCTC", sound(32, 4, 48, 20, 16)), waves(SEED, 400, 20, 6),
          _own_loss, True),
    Model("segformer", _builder("Segformer", "ForSemanticSegmentation", {
        "num_encoder_blocks": 2, "depths": [2, 2], "sr_ratios": [2, 1], "hidden_sizes": [16, 32],
        "patch_sizes": [3, 3], "strides": [2, 2], "num_attention_heads": [2, 4], "mlp_ratios": [2, 2],
        "decoder_hidden_size": 24, "drop_path_rate": 0.0, "classifier_dropout_prob": 0.0, "num_labels": 5}),
        maps, _own_loss),
]  # fmt: skip
OTHERS = [
    Model("diffusion", lambda changes: Diffusion(), _points, _noise_loss),
    Model("speech", lambda changes: Speech(), _utterances, _ctc),
    Model("actor_critic", lambda changes: ActorCritic(), _episodes, _advantage_loss),
]
UNSEEN = {model.name: model for model in [*TRANSFORMERS, *OTHERS]}
MODELS.update(UNSEEN)
