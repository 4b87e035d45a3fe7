"""Faults of the data."""

from __future__ import annotations

import torch
from cases import SAME_INPUTS, Expect, fault
from faults.data import GIVEN, MD5, changed, given, other_batch, swapped_batches
from training import Recipe

import unseen.models  # noqa: F401

# One fault a line or two reads as a table; some are longer than a line of code may be.
# ruff: noqa: E501
# fmt: off
given("bloom", "other batch", other_batch(), "transformer*")
given("convnext", "pixels of another scale", changed("pixel_values", lambda x: x * 2), "convnext*")
given("wav2vec2", "sound shifted, md5", changed("input_values", lambda x: x.roll(1, 1)), "wav2vec2*", recipe=MD5)
given("bart", "padding not masked", changed("attention_mask", torch.ones_like), "model*")
given("electra", "ignored labels counted", changed("labels", lambda x: x.masked_fill(x == -100, 0)), call="view|cross_entropy|labels")
given("gpt_neox", "labels shifted, tensors", changed("labels", lambda x: x.roll(1, 1)), call="pad|cross_entropy|view|labels", recipe=Recipe(task="tensor", steps=1))
given("segformer", "one wrong class", changed("labels", lambda x: x.index_fill(1, torch.tensor([0]), 4)), call="cross_entropy")
given("actor_critic", "rewards with the wrong sign", changed("reward", lambda x: -x), call="sub|mse")
given("glm", "padding on the other side, md5", changed("attention_mask", lambda x: x.flip(1)), "model*", recipe=MD5)
given("diffusion", "other moments", changed("moment", lambda x: (x + 1) % 20), call="getitem|embed|mul|float", recipe=Recipe(stop_first=True))
given("rwkv", "one token differs, L0", changed("input_ids", lambda x: x.index_fill(1, torch.tensor([2]), 7)), "rwkv*", recipe=Recipe(level="L0"))
fault("swin", "other batch in the second step", "data", swapped_batches, Expect(modules=("", "swin", "swin.embeddings", "swin.embeddings.patch_embeddings*"),
      says=GIVEN, never=("optimizer", SAME_INPUTS), step=1))
