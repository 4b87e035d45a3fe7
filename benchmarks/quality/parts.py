"""Parts that the models of the second, third and fourth sets share: sizes of configurations, and data of a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from architectures import DECODER, SIZE, VOCABULARY, Batch

NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
IDS = {key: DECODER[key] for key in ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")}


def generator(seed: int, step: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed + step)


def sound(width: int, heads: int, inner: int, words: int, channels: int) -> dict[str, Any]:
    """A model of speech with two convolutions and two layers."""
    return {
        "hidden_size": width, "num_hidden_layers": 2, "num_attention_heads": heads, "intermediate_size": inner,
        "vocab_size": words, "conv_dim": (channels, channels), "conv_stride": (4, 2), "conv_kernel": (8, 4),
        "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 2 * heads, "num_conv_pos_embedding_groups": heads,
        "hidden_dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0, "feat_proj_dropout": 0.0,
        "final_dropout": 0.0, "layerdrop": 0.0, "mask_time_prob": 0.0, "pad_token_id": 0,
        "ctc_loss_reduction": "mean", "apply_spec_augment": False,
    }  # fmt: skip


def translation(width: int, heads: int, inner: int, positions: int) -> dict[str, Any]:
    """An encoder and a decoder of two layers each."""
    return {
        "d_model": width, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": heads,
        "decoder_attention_heads": heads, "encoder_ffn_dim": inner, "decoder_ffn_dim": inner,
        "max_position_embeddings": positions, "dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0,
        "vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
        "decoder_start_token_id": 2, "forced_eos_token_id": None,
    }  # fmt: skip


def waves(seed: int, length: int, words: int, count: int) -> Callable[[int], Batch]:
    """Sounds with a text of `count` of `words` letters."""

    def batch(step: int) -> Batch:
        made = generator(seed, step)
        heard = torch.randn(SIZE, length, generator=made)
        return {"input_values": heard, "labels": torch.randint(3, words, (SIZE, count), generator=made)}

    return batch


def sentences(
    seed: int, lengths: tuple[int, int], padded: tuple[int, int], ignored: tuple[int, int]
) -> Callable[[int], Batch]:
    """Sources and answers of two lengths; one source is padded, one answer ends early: (which, from where)."""

    def batch(step: int) -> Batch:
        made = generator(seed, step)
        ids = torch.randint(3, VOCABULARY, (SIZE, lengths[0]), generator=made)
        mask = torch.ones_like(ids)
        mask[padded[0], padded[1] :] = 0
        labels = torch.randint(3, VOCABULARY, (SIZE, lengths[1]), generator=made)
        labels[ignored[0], ignored[1] :] = -100
        return {"input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask, "labels": labels}

    return batch
