"""Faults of the wiring: layers in another order, called twice or not at all, and given another tensor."""

from __future__ import annotations

from typing import Any

from cases import SAME_INPUTS, Expect, fault
from plants import edited, skipped
from training import Plant, Recipe


def wired(model: str, name: str, plant: Plant, *modules: str, never: tuple[str, ...] = (), **options: Any) -> None:
    fault(model, name, "wiring", plant, Expect(modules=modules, never=never, direction="forward"), **options)


# One fault a line or two reads as a table; some are longer than a line of code may be.
# ruff: noqa: E501
# fmt: off
L0, L1 = "model.layers.0", "model.layers.1"
LAYERS = "self.layers[: self.config.num_hidden_layers]"
wired("llama", "layers in reverse order", edited("model", LAYERS, f"{LAYERS}[::-1]"), "model", f"{L0}*", f"{L1}*")
wired("llama", "a layer twice", edited("model", LAYERS, "[*self.layers, self.layers[1]]"), "model", f"{L1}*",
      representative=True)
wired("llama", "a layer skipped", edited("model", LAYERS, "self.layers[1:]"), "model", f"{L0}*", "model.norm")
wired("llama", "query and key swapped", edited(f"{L1}.self_attn",
      "apply_rotary_pos_emb(query_states, key_states, cos, sin)",
      "apply_rotary_pos_emb(query_states, key_states, sin, cos)"), f"{L1}.self_attn", never=(SAME_INPUTS, "is missing"))
wired("qwen3", "value from the key projection", edited(f"{L0}.self_attn", "value_states = self.v_proj(hidden_states)",
      "value_states = self.k_proj(hidden_states)"), f"{L0}.self_attn*")
wired("qwen2", "mlp without its norm", edited(L1, "hidden_states = self.mlp(hidden_states)",
      "hidden_states = self.mlp(residual)"), f"{L1}.mlp*", L1, never=(SAME_INPUTS,))
wired("gemma2", "attention skipped", edited(L1, "hidden_states = self.post_attention_layernorm(hidden_states)",
      "hidden_states = self.post_attention_layernorm(residual)"), L1, f"{L1}.post_attention_layernorm",
      never=(SAME_INPUTS,))
wired("gpt2", "attention given the residual", edited("transformer.h.1", "attn_output, _ = self.attn(\n        hidden_states",
      "attn_output, _ = self.attn(\n        residual"), "transformer.h.1", "transformer.h.1.attn*", never=(SAME_INPUTS,),
      representative=True)
wired("gpt2", "query and value swapped", edited("transformer.h.0.attn",
      "query_states, key_states, value_states = self.c_attn(hidden_states).split(self.split_size, dim=2)\n        shape_kv",
      "value_states, key_states, query_states = self.c_attn(hidden_states).split(self.split_size, dim=2)\n        shape_kv"),
      "transformer.h.0.attn", never=(SAME_INPUTS, "is missing"))
wired("mixtral", "experts given the residual", edited(L1, "hidden_states = self.mlp(hidden_states)",
      "hidden_states = self.mlp(residual)"), f"{L1}.mlp*", L1, never=(SAME_INPUTS,))
wired("phi3", "a layer twice", edited("model", LAYERS, "[*self.layers, self.layers[0]]"), "model", f"{L0}*")
wired("bert", "residual of the wrong layer", edited("bert.encoder.layer.1.attention.output",
      "hidden_states + input_tensor", "hidden_states + hidden_states"), "bert.encoder.layer.1.attention.output",
      never=(SAME_INPUTS, "is missing"))
wired("t5", "decoder without the encoder's norm", skipped("encoder.final_layer_norm"), "encoder.final_layer_norm", "encoder")
wired("t5", "cross attention given the decoder's states", edited("decoder.block.1.layer.1.EncDecAttention",
      "current_states = key_value_states if is_cross_attention else hidden_states", "current_states = hidden_states"),
      "decoder.block.1.layer.1.EncDecAttention*", never=(SAME_INPUTS,))
wired("whisper", "cross attention given the decoder's states", edited("model.decoder.layers.0",
      "key_value_states=encoder_hidden_states", "key_value_states=hidden_states"), "model.decoder.layers.0",
      "model.decoder.layers.0.encoder_attn*", never=(SAME_INPUTS,))
wired("vit", "a norm skipped", skipped("vit.layernorm"), "vit.layernorm", "vit")
wired("clip", "a layer skipped", skipped("vision_model.encoder.layers.1"), "vision_model.encoder.layers.1*",
      "vision_model.encoder")
wired("resnet", "a block twice", edited("", "for block in self.blocks:", "for block in [*self.blocks, self.blocks[1]]:"),
      "", "blocks.1*")
wired("resnet", "shortcut from the wrong place", edited("blocks.2", "x = x + shortcut", "x = x + x"), "blocks.2",
      never=(SAME_INPUTS,))
wired("unet", "wrong skip connection", edited("", "self.up1(torch.cat([x, first], dim=1))",
      "self.up1(torch.cat([x, x], dim=1))"), "", never=(SAME_INPUTS,))
wired("gnn", "update from the nodes twice", edited("layers.1", "torch.cat([nodes, gathered]", "torch.cat([nodes, nodes]"),
      "layers.1", never=(SAME_INPUTS,))
wired("encoder", "layers in reverse order", edited("encoder", "for mod in self.layers:", "for mod in self.layers[::-1]:"),
      "encoder", "encoder.layers.0*", "encoder.layers.1*")
wired("mixer", "a block skipped", skipped("blocks.1"), "blocks.1*")
wired("vae", "variance from the mean", edited("", "self.log_variance(hidden)", "self.mean(hidden)"), "", "log_variance",
      "mean")
wired("lstm", "a norm skipped", skipped("norm"), "norm")
wired("translator", "context of the first state", edited("", "torch.bmm(weights.unsqueeze(1), states)",
      "torch.bmm(weights.unsqueeze(1), states.flip(1))"), "", recipe=Recipe(summary="md5"))
wired("recommender", "a table used twice", edited("", "table(categories[:, i]) for i, table in enumerate(self.tables)",
      "self.tables[min(i, 1)](categories[:, i]) for i in range(3)"), "", "tables.1", "tables.2")
