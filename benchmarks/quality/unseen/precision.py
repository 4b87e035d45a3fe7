"""Faults of precision."""

from __future__ import annotations

from faults.precision import AUTOCAST, BF16, error, lower
from kernels import faulty_kernel
from plants import edited, in_bf16, scaled, weights_cast_to_bf16, without_autocast
from training import Recipe

import unseen.models  # noqa: F401

HALF = Recipe(dtype="float16", eps=1e-4, steps=1, lr=1e-4)
# One fault a line or two reads as a table; some are longer than a line of code may be.
# ruff: noqa: E501
# fmt: off
L0, L1 = "model.layers.0", "model.layers.1"
lower("olmo2", "norm in bf16", edited(f"{L1}.post_feedforward_layernorm", "hidden_states.to(torch.float32)", "hidden_states.to(torch.bfloat16)"), f"{L1}.post_feedforward_layernorm")
lower("cohere", "rotary in bf16", edited(f"{L0}.self_attn", "q = q.float()", "q = q.bfloat16()", function="apply_rotary_pos_emb"), f"{L0}.self_attn")
lower("jamba", "router in bf16", edited(f"{L1}.feed_forward.router", "dtype=torch.float)", "dtype=torch.bfloat16)"), f"{L1}.feed_forward.router")
lower("jamba", "state in bf16", edited(f"{L0}.mamba", "self.A_log.float()", "self.A_log.bfloat16()"), f"{L0}.mamba")
lower("bart", "feed forward in bf16", weights_cast_to_bf16("model.decoder.layers.0.fc1"), "model.decoder.layers.0.fc1")
lower("convnext", "convolution in bf16", in_bf16("convnext.encoder.stages.0.layers.0.dwconv"), "convnext.encoder.stages.0.layers.0.dwconv*")
lower("speech", "head in bf16", weights_cast_to_bf16("head"), "head")
lower("gpt_neox", "mlp in bf16, L0", in_bf16("gpt_neox.layers.1.mlp"), "gpt_neox.layers.1.mlp*", recipe=Recipe(level="L0"))
lower("starcoder2", "autocast off in a layer", without_autocast(f"{L0}.mlp"), f"{L0}.mlp*", recipe=AUTOCAST)
lower("wav2vec2", "autocast off in a layer", without_autocast("wav2vec2.encoder.layers.1.feed_forward"), "wav2vec2.encoder.layers.1.feed_forward*", recipe=AUTOCAST)
lower("electra", "softmax in half precision", edited("electra.encoder.layer.0.attention.self", "softmax(attn_weights, dim=-1)",
      "softmax(attn_weights, dim=-1, dtype=torch.float16).float()", function="eager_attention_forward"), "electra.encoder.layer.0.attention.self",
      config={"attn_implementation": "eager"})
error("granite", "3% in a bf16 run", faulty_kernel(f"{L1}.mlp.act_fn", "silu", 1.03), f"{L1}.mlp.act_fn", recipe=BF16)
error("glm", "5% in a bf16 port", faulty_kernel(f"{L1}.mlp.activation_fn", "silu", 1.05), f"{L1}.mlp.activation_fn", wrong={"dtype": "bfloat16"})
error("olmo2", "4% in a matrix product of a bf16 run", faulty_kernel(f"{L1}.self_attn.o_proj", "mm", 0.96), f"{L1}.self_attn.o_proj", recipe=BF16)
error("cohere", "5% in a matrix product of a bf16 port", faulty_kernel(f"{L0}.mlp.down_proj", "mm", 1.05), f"{L0}.mlp.down_proj", wrong={"dtype": "bfloat16"})
error("falcon", "2% in a bf16 run", scaled("transformer.h.0.mlp", 1.02), "transformer.h.0.mlp", recipe=BF16)
error("starcoder2", "5% in an autocast run", scaled(f"{L1}.self_attn.o_proj", 1.05), f"{L1}.self_attn.o_proj", recipe=AUTOCAST)
error("gptj", "1% in a half-precision run", scaled("transformer.h.1.attn.out_proj", 1.01), "transformer.h.1.attn.out_proj", recipe=HALF)
error("speech", "5% in an autocast port", scaled("conv", 1.05), "conv", wrong={"autocast": True})
