"""Faults of the data: other batches, shifted labels, permuted tokens, wrong padding."""

from __future__ import annotations

from typing import Any, Callable

import torch
from architectures import Batch
from cases import SAME_INPUTS, Expect, fault
from plants import with_batch
from training import Experiment, Plant, Recipe

MD5 = Recipe(summary="md5")
GIVEN = ("input|given|data|label|order|batch",)


def given(model: str, name: str, plant: Plant, *modules: str, call: str = "", **options: Any) -> None:
    """Other data, noticed where the model first uses them; nothing computed may be blamed."""
    never = (SAME_INPUTS, "is missing", "optimizer")
    expect = Expect(modules=("", *modules), call=call, says=GIVEN, never=never, direction="forward")
    fault(model, name, "data", plant, expect, **options)


def other_batch(step: int = 7) -> Plant:
    def plant(run: Experiment) -> None:
        usual = run.batch
        run.batch = lambda number: usual(number + step)

    return plant


def swapped_batches(run: Experiment) -> None:
    """The second step gets the batch of the third."""
    usual = run.batch
    run.batch = lambda number: usual(2 if number == 1 else number)


def changed(key: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Plant:
    def apply(batch: Batch) -> Batch:
        return {**batch, key: change(batch[key])}

    return with_batch(apply)


def half_padded(batch: Batch) -> Batch:
    mask = torch.ones_like(batch["input_ids"])
    mask[:, : mask.shape[1] // 2] = 0
    return {**batch, "attention_mask": mask}


# One fault a line or two reads as a table; some are longer than a line of code may be.
# fmt: off
given("gpt2", "other batch", other_batch(), "transformer", "transformer.wte", representative=True)
given("vit", "other batch", other_batch(), "vit*")
given("gnn", "other batch", other_batch(), "encode")
given("vae", "other batch", other_batch(), "encode*")
given("recommender", "other categories", changed("categories", lambda x: (x + 1) % 20), "tables.0")
given("llama", "labels shifted", changed("labels", lambda x: x.roll(1, 1)), call="cross_entropy|pad|labels", recipe=MD5,
      representative=True)
given("resnet", "labels of other classes", changed("labels", lambda x: (x + 1) % 5), call="cross_entropy")
given("llama", "tokens permuted, md5", changed("input_ids", lambda x: x.flip(1)), "model", "model.embed_tokens",
      recipe=MD5)
given("mamba", "tokens permuted, md5", changed("input_ids", lambda x: x.roll(1, 1)), "backbone", "backbone.embeddings",
      recipe=MD5)
given("bert", "one token differs", changed("input_ids", lambda x: x.index_fill(1, torch.tensor([3]), 5)), "bert*")
given("bert", "padding forgotten", changed("attention_mask", torch.ones_like), "bert*")
given("qwen2", "padding on the wrong side", changed("attention_mask", lambda x: x.flip(1)), "model*", recipe=MD5)
given("opt", "padding mask inverted", changed("attention_mask", lambda x: 1 - x), "model.decoder*")
given("encoder", "padding mask forgotten", changed("padding", torch.zeros_like), "encoder*")
given("mixer", "images not normalised", changed("pixels", lambda x: x * 0.5 + 0.5), "patches")
given("unet", "images flipped, md5", changed("pixels", lambda x: x.flip(-1)), "down1*", recipe=MD5)
given("whisper", "features scaled", changed("input_features", lambda x: x * 1.01), "model*")
given("clip", "captions of other images", changed("input_ids", lambda x: x.roll(1, 0)), "text_model*", recipe=MD5)
fault("gpt2", "other batch in the second step", "data", swapped_batches,
      Expect(modules=("", "transformer", "transformer.wte"), says=GIVEN, never=("optimizer", SAME_INPUTS), step=1))
fault("llama", "tokens permuted, statistics", "data", changed("input_ids", lambda x: x.flip(1)),
      Expect(modules=("", "model", "model.embed_tokens", "model.layers.0", "model.layers.0.self_attn",
                      "model.layers.0.self_attn.q_proj"), says=("order|md5",), never=("is missing",)))
