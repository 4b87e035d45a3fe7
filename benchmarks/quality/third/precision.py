"""Faults of precision: one layer, one call or one cast in another dtype."""

from __future__ import annotations

from typing import Any

import torch
from cases import Expect, fault
from edits import wrap
from plants import edited, in_bf16, scaled, weights_cast_to_bf16, without_autocast
from torch import Tensor
from training import Plant, Recipe

import third.models  # noqa: F401

LOW = "bfloat16|bf16|float16|half|dtype"


def cast(path: str, dtype: torch.dtype) -> Plant:
    """The output of a module takes a way through another dtype."""

    def change(forward: Any, *args: Any, **kwargs: Any) -> Tensor:
        result = forward(*args, **kwargs)
        return result.to(dtype).to(result.dtype)

    return lambda run: wrap(run.module(path), change)


def in_float32(path: str) -> Plant:
    """One module of a bf16 run computes in float32."""

    def plant(run: Any) -> None:
        module = run.module(path).float()
        wrap(module, lambda forward, x: forward(x.float()).bfloat16())

    return plant


# One fault a line or two reads as a table; some are longer than a line of code may be.
# ruff: noqa: E501
# fmt: off
L0, L1 = "model.layers.0", "model.layers.1"
BF16, AUTOCAST = Recipe(dtype="bfloat16"), Recipe(autocast=True)


def low(model: str, name: str, plant: Plant, *modules: str, recipe: Recipe = Recipe(), says: tuple[str, ...] = (LOW,), call: str = "") -> None:  # noqa: B008
    fault(model, name, "precision", plant, Expect(modules=modules, says=says, call=call, direction="forward"), recipe=recipe)


low("gemma3", "norm in bf16", edited(f"{L0}.pre_feedforward_layernorm", "self._norm(x.float())", "self._norm(x.bfloat16())"), f"{L0}.pre_feedforward_layernorm")
low("qwen3_moe", "router's softmax in bf16", edited(f"{L1}.mlp.gate", "dtype=torch.float, dim=-1)", "dtype=torch.bfloat16, dim=-1)"), f"{L1}.mlp.gate", call="softmax")
low("mpt", "softmax in half precision", edited("transformer.blocks.1.attn", "attention_scores.float()", "attention_scores.half()"), "transformer.blocks.1.attn")
low("deit", "mlp in bf16", in_bf16("deit.layers.1.mlp"), "deit.layers.1.mlp*")
low("distilbert", "projection in bf16", weights_cast_to_bf16("vocab_transform"), "vocab_transform")
low("stablelm", "autocast off in a layer", without_autocast(f"{L1}.mlp"), f"{L1}.mlp*", recipe=AUTOCAST, says=(LOW + "|float32",))
low("roberta", "one layer of a bf16 run in float32", in_float32("roberta.encoder.layer.1.intermediate"), "roberta.encoder.layer.1.intermediate*", recipe=BF16, says=("float32|dtype",))
low("gpt_oss", "error of 5% in a bf16 run", scaled(f"{L0}.self_attn.o_proj", 1.05), f"{L0}.self_attn.o_proj", recipe=BF16, says=())
low("nemotron", "error of 4% in an autocast run", scaled(f"{L1}.mlp.down_proj", 0.96), f"{L1}.mlp.down_proj", recipe=AUTOCAST, says=())
low("mistral", "way through half precision", cast(f"{L1}.mlp.up_proj", torch.float16), f"{L1}.mlp.up_proj")
low("dinov2", "way through bf16, L0", cast("dinov2.encoder.layer.0.norm1", torch.bfloat16), "dinov2.encoder.layer.0.norm1", recipe=Recipe(level="L0"), says=())
low("falcon_mamba", "state in half precision", edited("backbone.layers.1.mixer", "self.A_log.float()", "self.A_log.half()"), "backbone.layers.1.mixer")
low("hubert", "positions in bf16, no optimizer", cast("hubert.encoder.pos_conv_embed", torch.bfloat16), "hubert.encoder.pos_conv_embed", recipe=Recipe(stop_first=True))
low("field", "density in bf16", weights_cast_to_bf16("density"), "density")
# fmt: on
