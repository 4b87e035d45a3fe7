"""Faults of precision: a dtype that differs in some calls only, and real errors in runs of low precision."""

from __future__ import annotations

from typing import Any

from cases import Expect, fault
from kernels import faulty_kernel
from plants import edited, in_bf16, scaled, weights_cast_to_bf16, without_autocast
from training import Plant, Recipe

from faults.forward import ATTENTION, EAGER

LOW = ("bfloat16|bf16|dtype",)
BF16 = Recipe(dtype="bfloat16")
AUTOCAST = Recipe(autocast=True)


def lower(model: str, name: str, plant: Plant, *modules: str, **options: Any) -> None:
    """A part in another dtype: the place, and that it is the dtype."""
    fault(model, name, "precision", plant, Expect(modules=modules, says=LOW, direction="forward"), **options)


def error(model: str, name: str, plant: Plant, *modules: str, **options: Any) -> None:
    """A real error in a run of low precision."""
    fault(model, name, "precision", plant, Expect(modules=modules, direction="forward"), **options)


# One fault a line or two reads as a table; some are longer than a line of code may be.
# ruff: noqa: E501
# fmt: off
L0, L1 = "model.layers.0", "model.layers.1"
lower("gpt2", "mlp in bf16", in_bf16("transformer.h.1.mlp"), "transformer.h.1.mlp*", representative=True)
lower("llama", "mlp in bf16", in_bf16(f"{L1}.mlp"), f"{L1}.mlp*")
lower("llama", "mlp in bf16, no optimizer", in_bf16(f"{L1}.mlp"), f"{L1}.mlp*", recipe=Recipe(stop_first=True))
lower("llama", "mlp in bf16, L0", in_bf16(f"{L1}.mlp"), f"{L1}.mlp*", recipe=Recipe(level="L0"))
lower("resnet", "convolution in bf16", in_bf16("blocks.1.conv1"), "blocks.1.conv1*")
lower("vit", "linear with weights cast to bf16", weights_cast_to_bf16("vit.layers.0.mlp.fc1"), "vit.layers.0.mlp.fc1")
lower("bert", "linear with weights cast to bf16", weights_cast_to_bf16("bert.encoder.layer.1.output.dense"),
      "bert.encoder.layer.1.output.dense")
lower("phi3", "head with weights cast to bf16", weights_cast_to_bf16("lm_head"), "lm_head")
lower("gnn", "update in bf16", in_bf16("layers.1.update"), "layers.1.update*")
lower("translator", "combine in bf16", weights_cast_to_bf16("combine"), "combine")
lower("llama", "softmax in bf16", edited(f"{L1}.self_attn", "dtype=torch.float32", "dtype=torch.bfloat16",
      function=ATTENTION), f"{L1}.self_attn", config=EAGER, representative=True)
lower("gemma2", "softmax in bf16", edited(f"{L0}.self_attn", "dtype=torch.float32", "dtype=torch.bfloat16",
      function=ATTENTION), f"{L0}.self_attn", config=EAGER)
lower("mixtral", "router in bf16", edited(f"{L0}.mlp.gate", "router_logits.float()", "router_logits.bfloat16()"),
      f"{L0}.mlp.gate", representative=True)
lower("qwen2_moe", "router softmax in bf16", edited(f"{L1}.mlp.gate", "dtype=torch.float,", "dtype=torch.bfloat16,"),
      f"{L1}.mlp.gate")
lower("deepseek_v3", "router in bf16", edited(f"{L1}.mlp.gate",
      "F.linear(hidden_states.type(torch.float32), self.weight.type(torch.float32))",
      "F.linear(hidden_states.type(torch.bfloat16), self.weight.type(torch.bfloat16))"), f"{L1}.mlp.gate")
lower("qwen3", "norm in bf16", edited(f"{L1}.input_layernorm", "hidden_states.to(torch.float32)",
      "hidden_states.to(torch.bfloat16)"), f"{L1}.input_layernorm")
lower("qwen2", "rotary in bf16", edited("model.rotary_emb", "cos = emb.cos()", "emb = emb.bfloat16(); cos = emb.cos()"),
      "model.rotary_emb")
lower("llama", "autocast off in a layer", without_autocast(f"{L1}.mlp"), f"{L1}.mlp*", recipe=AUTOCAST)
lower("gpt2", "autocast off in a layer", without_autocast("transformer.h.0.mlp"), "transformer.h.0.mlp*", recipe=AUTOCAST)
lower("encoder", "autocast off in the head", without_autocast("head"), "head", recipe=AUTOCAST)
lower("opt", "norm in bf16 in an autocast run", in_bf16("model.decoder.final_layer_norm"),
      "model.decoder.final_layer_norm", recipe=AUTOCAST)
error("llama", "5% in a bf16 run", faulty_kernel(f"{L1}.mlp.act_fn", "silu", 1.05), f"{L1}.mlp.act_fn", recipe=BF16,
      representative=True)
error("llama", "5% in a bf16 port", faulty_kernel(f"{L1}.mlp.act_fn", "silu", 1.05), f"{L1}.mlp.act_fn",
      wrong={"dtype": "bfloat16"})
error("qwen3", "5% in a matrix product of a bf16 run", faulty_kernel(f"{L0}.self_attn.o_proj", "mm", 0.95),
      f"{L0}.self_attn.o_proj", recipe=BF16)
error("qwen3", "5% in a matrix product of a bf16 port", faulty_kernel(f"{L0}.self_attn.o_proj", "mm", 0.95),
      f"{L0}.self_attn.o_proj", wrong={"dtype": "bfloat16"})
error("gpt2", "5% in an autocast run", scaled("transformer.h.1.mlp", 1.05), "transformer.h.1.mlp", recipe=AUTOCAST)
error("unet", "5% in a bf16 port", faulty_kernel("middle", "silu", 1.05), "middle", wrong={"dtype": "bfloat16"})
