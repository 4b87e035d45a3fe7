"""Pairs of runs that compute the same: none of them may be reported."""

from __future__ import annotations

import ports
import torch.nn.functional as F
from architectures import MODELS
from cases import Expect, clean
from plants import edited
from training import Recipe

EAGER = {"attn_implementation": "eager"}
LOOPED = {"experts_implementation": "eager"}
STOP_FIRST = Recipe(stop_first=True)
NO_BLAME = Expect(no_blame=True)
L0, L1 = "model.layers.0", "model.layers.1"

for _name, _model in MODELS.items():
    clean(_name, "again", representative=_name in ("mixtral", "deepseek_v3", "lstm", "resnet"))
    if _model.attention:
        clean(_name, "eager attention", other_config=EAGER, representative=_name in ("llama", "bert", "whisper"))
for _name in ("gpt2", "bert", "t5", "vit"):
    clean(_name, "eager attention, no optimizer", recipe=STOP_FIRST, other_config=EAGER)
for _name in ("mixtral", "qwen2_moe", "deepseek_v3", "mamba"):
    clean(_name, "again, with other uninitialised memory", ports.dirty_memory, representative=_name == "qwen2_moe")
for _name in ("llama", "mixtral", "t5", "unet"):
    clean(_name, "again, md5", recipe=Recipe(summary="md5"))
for _name in ("qwen2_moe", "gpt2"):
    clean(_name, "again, tensors", recipe=Recipe(task="tensor"))
for _name in ("deepseek_v3", "whisper", "gnn"):
    clean(_name, "again, L0", recipe=Recipe(level="L0"))
    clean(_name, "again, L1", recipe=Recipe(level="L1"))
for _name in ("gpt2", "llama", "deepseek_v3", "bert", "resnet", "unet", "lstm", "mixer"):
    clean(_name, "two threads", other={"threads": 2}, representative=_name == "unet")
for _name in ("gpt2", "llama", "mixtral", "resnet", "t5"):
    clean(_name, "foreach optimizer", recipe=Recipe(loop="single"), other={"loop": "foreach"})
    clean(_name, "fused optimizer", recipe=Recipe(loop="single"), other={"loop": "fused"},
          representative=_name == "gpt2")  # fmt: skip
for _name in ("gpt2", "llama", "bert", "t5", "vit", "whisper"):
    clean(_name, "gradient checkpointing", ports.checkpointed, representative=_name == "vit")
clean("qwen2", "gradient checkpointing, no optimizer", ports.checkpointed, recipe=STOP_FIRST)
for _name in ("gpt2", "llama", "mixtral", "opt", "whisper"):
    clean(_name, "no cache", other_config={"use_cache": False}, representative=_name == "opt")
for _name in ("gpt2", "llama", "vit", "mixer", "lstm"):
    clean(_name, "accumulation", other={"accumulate": 2}, representative=_name == "mixer")

# Other implementations; one pair a line or two reads as a table.
# fmt: off
clean("gpt2", "hand-written norm", ports.hand_written_norm("transformer.h.0.ln_1", "transformer.h.1.ln_2"),
      representative=True)
clean("vit", "hand-written norm", ports.hand_written_norm("vit.layernorm", "vit.layers.0.layernorm_before"))
clean("encoder", "hand-written norm", ports.hand_written_norm("encoder.layers.1.norm1"))
clean("gnn", "hand-written norm", ports.hand_written_norm("layers.1.norm"))
clean("llama", "fused norm", ports.fused_rms_norm(f"{L1}.input_layernorm"))
clean("qwen3", "fused norm", ports.fused_rms_norm(f"{L0}.self_attn.q_norm"), recipe=STOP_FIRST)
for _name in ("mixtral", "qwen2_moe", "deepseek_v3"):
    clean(_name, "experts in a loop", other_config=LOOPED)
    clean(_name, "experts in another order", edited(f"{L1}.mlp.experts", "for expert_idx in expert_hit:",
          "for expert_idx in list(expert_hit)[::-1]:"), config=LOOPED, representative=_name == "mixtral")
clean("gpt2", "operands swapped", edited("transformer.h.1", "attn_output + residual", "residual + attn_output"))
clean("llama", "operands swapped", edited(L0, "residual + hidden_states", "hidden_states + residual"),
      representative=True)
clean("llama", "factors swapped", edited(f"{L1}.mlp", "self.act_fn(self.gate_proj(x)) * self.up_proj(x)",
      "self.up_proj(x) * self.act_fn(self.gate_proj(x))"))
clean("resnet", "operands swapped", edited("blocks.1", "x + shortcut", "shortcut + x"), recipe=STOP_FIRST)
clean("bert", "no mask", ports.without("attention_mask"), golden_plant=ports.with_ones("attention_mask"), config=EAGER)
clean("llama", "mask of ones", ports.with_ones("attention_mask"))
clean("gpt2", "mask of ones", ports.with_ones("attention_mask"), recipe=STOP_FIRST)
clean("t5", "mask of ones", ports.with_ones("attention_mask"), config=EAGER)
clean("llama", "flag", ports.with_flag(use_cache=False))
clean("qwen3", "flag", ports.with_flag(use_cache=False), recipe=STOP_FIRST)
clean("bert", "flag", ports.with_flag(return_dict=True))
clean("llama", "fused gate and up", ports.fused_gate(f"{L0}.mlp", f"{L1}.mlp"), recipe=STOP_FIRST, representative=True)
clean("llama", "fused gate and up, L0", ports.fused_gate(f"{L0}.mlp", f"{L1}.mlp"),
      recipe=Recipe(level="L0", stop_first=True))
clean("qwen2", "fused gate and up, one step", ports.fused_gate(f"{L1}.mlp"), recipe=Recipe(steps=1))
clean("vit", "fused query, key and value", ports.fused_attention("vit.layers.0.attention", "vit.layers.1.attention"),
      recipe=STOP_FIRST)
clean("vit", "fused query, key and value, L0", ports.fused_attention("vit.layers.1.attention"),
      recipe=Recipe(level="L0", stop_first=True))
clean("llama", "silu by hand", ports.computed_by(f"{L0}.mlp.act_fn", ports.silu_by_hand))
clean("gpt2", "gelu fused", ports.computed_by("transformer.h.0.mlp.act", ports.gelu_fused))
clean("gpt2", "projection as a product and a sum", ports.matrix_product("transformer.h.1.mlp.c_fc"))
clean("resnet", "loss as two calls", ports.loss_by_hand)
clean("mixer", "loss as two calls", ports.loss_by_hand)
clean("llama", "contiguous", ports.identity_calls(f"{L1}.mlp", lambda x: x.contiguous()))
clean("gpt2", "to the same dtype", ports.identity_calls("transformer.h.0.mlp", lambda x: x.to(x.dtype)))
clean("resnet", "dropout with p=0", ports.identity_calls("blocks.1.conv1", lambda x: F.dropout(x, 0.0)))
clean("unet", "a view", ports.identity_calls("middle", lambda x: x.reshape(x.shape)))

for _name in ("gpt2", "llama", "qwen2", "bert", "vit", "resnet", "unet", "mixer"):
    clean(_name, "bf16 port", other={"dtype": "bfloat16"}, expect=NO_BLAME, representative=_name == "llama")
for _name in ("gpt2", "llama", "mixer"):
    clean(_name, "autocast port", other={"autocast": True}, expect=NO_BLAME)
