"""Faults of the forward and of the wiring in transformers' models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cases import SAME_INPUTS
from edits import wrap
from faults.forward import add, eager
from faults.wiring import wired
from plants import assigned, edited, replaced, scaled, skipped
from torch import nn
from training import Experiment, Plant, Recipe

import unseen.models  # noqa: F401


def scaled_once(path: str, nth: int, factor: float) -> Plant:
    """The nth call of a module that is called several times in a step returns a result that is wrong by a factor."""

    def plant(run: Experiment) -> None:
        calls = [0]

        def change(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            calls[0] += 1
            result = forward(*args, **kwargs)
            return result * factor if (calls[0] - 1) % 3 == nth else result

        wrap(run.module(path), change)

    return plant


# One fault a line or two reads as a table; some are longer than a line of code may be.
# ruff: noqa: E501
# fmt: off
L0, L1 = "model.layers.0", "model.layers.1"
H0, H1 = "transformer.h.0", "transformer.h.1"
add("falcon", "attention scale", edited(f"{H1}.self_attention", "dropout_p=0.0,", "dropout_p=0.0, scale=0.5,"), f"{H1}.self_attention",
    call="scaled_dot_product", says=("scale",))
add("falcon", "gelu by tanh", replaced(f"{H0}.mlp.act", lambda: nn.GELU(approximate="tanh")), f"{H0}.mlp.act", f"{H0}.mlp")
add("falcon", "mlp given the input instead of its norm", edited(H1, "mlp_layernorm_out = attention_layernorm_out", "mlp_layernorm_out = residual"),
    H1, f"{H1}.mlp*", never=(SAME_INPUTS,))
eager("falcon", "scale forgotten", edited(f"{H0}.self_attention", "attention_scores /= math.sqrt(self.head_dim)", "pass"), f"{H0}.self_attention",
      call="truediv|div|softmax|add")
add("olmo2", "norm after the attention missing", edited(L1, "hidden_states = self.post_attention_layernorm(hidden_states)", "pass"),
    L1, f"{L1}.post_attention_layernorm*")
add("olmo2", "eps of the query norm", assigned(f"{L0}.self_attn.q_norm", "variance_epsilon", 1e-2), f"{L0}.self_attn.q_norm", call="add",
    says=(r"0\.01\b", "1e-0[56]"))
add("olmo2", "eps of the query norm, L0", assigned(f"{L0}.self_attn.q_norm", "variance_epsilon", 1e-2), f"{L0}.self_attn.q_norm",
    recipe=Recipe(level="L0"))
eager("olmo2", "softmax over the queries", edited(f"{L1}.self_attn", "attn_weights, dim=-1", "attn_weights, dim=-2", function="eager_attention_forward"),
      f"{L1}.self_attn", call="softmax", says=("-2", "-1"))
add("gpt_neox", "sequential residual", assigned("gpt_neox.layers.1", "use_parallel_residual", False), "gpt_neox.layers.1",
    "gpt_neox.layers.1.post_attention_layernorm")
add("gpt_neox", "rotary with the wrong sign", edited("gpt_neox.layers.0.attention", "(-x2, x1)", "(x2, -x1)", function="rotate_half"),
    "gpt_neox.layers.0.attention")
add("gpt_neox", "positions off by one", edited("gpt_neox", "position_ids = torch.arange(inputs_embeds.shape[1]", "position_ids = 1 + torch.arange(inputs_embeds.shape[1]"),
    "gpt_neox", "gpt_neox.rotary_emb")
add("gpt_neox", "key and value exchanged", edited("gpt_neox.layers.1.attention", "query_states, key_states, value_states = qkv.chunk",
    "query_states, value_states, key_states = qkv.chunk"), "gpt_neox.layers.1.attention", never=("is missing",))
add("bloom", "beta of the scores", assigned(f"{H1}.self_attention", "beta", 0.5), f"{H1}.self_attention", call="baddbmm", says=("beta", r"0\.5\b"))
add("bloom", "mask not added", edited(f"{H0}.self_attention", "if attention_mask is not None:", "if False:"), f"{H0}.self_attention",
    call="add|softmax")
add("bloom", "alibi with the wrong sign", edited("transformer", "alibi = self.build_alibi_tensor(", "alibi = -self.build_alibi_tensor("),
    "transformer", call="neg")
add("bloom", "residual before the norm", assigned(H1, "apply_residual_connection_post_layernorm", True), H1, f"{H1}.self_attention", f"{H1}.mlp",
    never=("is missing",))
add("starcoder2", "dropout left on", assigned(f"{L1}.mlp", "residual_dropout", 0.1), f"{L1}.mlp", call="dropout", says=(r"0\.1\b",))
add("starcoder2", "sliding window", None, "", "model", f"{L0}*", config={"sliding_window": None}, wrong_config={"sliding_window": 4})
add("starcoder2", "relu for gelu", replaced(f"{L0}.mlp.act", nn.ReLU), f"{L0}.mlp.act", f"{L0}.mlp")
add("starcoder2", "eps of a norm, L1", assigned(f"{L1}.input_layernorm", "eps", 1e-2), call="layer_norm", says=(r"0\.01\b", "1e-05"),
    recipe=Recipe(level="L1"))
add("cohere", "logit scale missing", edited("", "logits = logits * self.logit_scale", "pass"), "", call="mul|linear")
add("cohere", "rotary halves instead of pairs", edited("model.rotary_emb", "torch.repeat_interleave(freqs, 2, dim=-1)", "torch.cat((freqs, freqs), dim=-1)"),
    "model.rotary_emb", call="cat|repeat_interleave")
add("cohere", "norm without its mean", edited(f"{L1}.input_layernorm", "hidden_states = (hidden_states - mean) * torch", "hidden_states = hidden_states * torch"),
    f"{L1}.input_layernorm", call="sub|mul")
add("cohere", "key without its norm", edited(f"{L0}.self_attn", "key_states = self.k_norm(key_states)", "pass"), f"{L0}.self_attn", f"{L0}.self_attn.k_norm*")
add("glm", "gate and up exchanged", edited(f"{L0}.mlp", "gate, up_states = up_states.chunk(2, dim=-1)", "up_states, gate = up_states.chunk(2, dim=-1)"),
    f"{L0}.mlp", f"{L0}.mlp.activation_fn", never=("is missing",))
add("glm", "rotary not interleaved", edited(f"{L0}.self_attn", "cos[..., : cos.shape[-1] // 2].repeat_interleave(2, dim=-1)", "cos[..., : cos.shape[-1]]",
    function="apply_rotary_pos_emb"), f"{L0}.self_attn")
add("glm", "swish with 1.702", edited(f"{L1}.mlp", "self.activation_fn(gate)", "gate * torch.sigmoid(1.702 * gate)"), f"{L1}.mlp", f"{L1}.mlp.activation_fn")
add("granite", "residual multiplier missing", edited(L1, "residual + hidden_states * self.residual_multiplier", "residual + hidden_states"), L1, call="mul|add")
add("granite", "attention multiplier", assigned(f"{L0}.self_attn", "scaling", 0.35), f"{L0}.self_attn", call="scaled_dot", says=(r"0\.35\b", r"0\.3\b"))
add("granite", "logits scaling", None, "", wrong_config={"logits_scaling": 4.0}, call="div", says=(r"\b4", r"\b2"))
add("granite", "embedding multiplier", None, "model", wrong_config={"embedding_multiplier": 2.5}, call="mul", says=(r"2\.5", r"\b3"))
add("granite", "head 3% off, tensors", scaled("lm_head", 1.03), "lm_head", call="mul", recipe=Recipe(task="tensor", steps=1))
add("gptj", "sine and cosine exchanged", edited(f"{H0}.attn", "sin, cos = torch.split", "cos, sin = torch.split"), f"{H0}.attn", never=("is missing",))
add("gptj", "attention scale", assigned(f"{H1}.attn", "scale_attn", 8.0), f"{H1}.attn", call="div", says=(r"\b8", r"2\.8"))
add("gptj", "positions off by one", edited("transformer", "device=inputs_embeds.device) + past_key_values_length", "device=inputs_embeds.device) + past_key_values_length + 1"),
    "transformer", f"{H0}.attn")
add("gptj", "mlp scaled, md5", scaled(f"{H1}.mlp", 1.001), f"{H1}.mlp", call="mul", recipe=Recipe(summary="md5"))
add("rwkv", "decay with the wrong sign", edited("rwkv.blocks.1.attention", "time_decay = -torch.exp(time_decay)", "time_decay = torch.exp(time_decay) * -0.9",
    function="rwkv_linear_attention_cpu"), "rwkv.blocks.1.attention")
add("rwkv", "relu not squared", edited("rwkv.blocks.0.feed_forward", "torch.square(torch.relu(self.key(key)))", "torch.relu(self.key(key))"),
    "rwkv.blocks.0.feed_forward", call="square|relu|linear")
add("rwkv", "time shift the wrong way", assigned("rwkv.blocks.1.attention.time_shift", "padding", (0, 0, -1, 1)), "rwkv.blocks.1.attention.time_shift",
    call="pad")
add("jamba", "router normalised", edited(f"{L1}.feed_forward.router", "top_k_weights.to(hidden_states.dtype)",
    "(top_k_weights / top_k_weights.sum(-1, keepdim=True)).to(hidden_states.dtype)"), f"{L1}.feed_forward.router", call="div|sum")
add("jamba", "state without its minus", edited(f"{L0}.mamba", "A = -torch.exp(self.A_log.float())", "A = -torch.exp(0.9 * self.A_log.float())"), f"{L0}.mamba")
add("jamba", "one expert instead of two", assigned(f"{L1}.feed_forward.router", "top_k", 1), f"{L1}.feed_forward.router", call="topk", says=(r"\b1\b", r"\b2\b"))
E = "electra.encoder.layer"
add("electra", "token types not added", edited("electra.embeddings", "embeddings = inputs_embeds + token_type_embeddings", "embeddings = inputs_embeds"),
    "electra.embeddings*", call="add")
add("electra", "eps of a norm", assigned(f"{E}.1.output.LayerNorm", "eps", 1e-5), f"{E}.1.output.LayerNorm", call="layer_norm", says=("1e-05", "1e-12"))
add("electra", "norm before the residual", edited(f"{E}.0.attention.output", "self.LayerNorm(hidden_states + input_tensor)", "self.LayerNorm(hidden_states) + input_tensor"),
    f"{E}.0.attention.output*")
B = "deberta.encoder.layer"
add("deberta_v2", "scale factor", edited(f"{B}.0.attention.self", "scale_factor += 1", "scale_factor += 0", nth=1), f"{B}.0.attention.self")
add("deberta_v2", "positions not transposed", edited(f"{B}.1.attention.self", "        ).transpose(-1, -2)\n        score += p2c_att", "        )\n        score += p2c_att",
    method="disentangled_attention_bias"), f"{B}.1.attention.self", call="transpose|div|add")
add("deberta_v2", "relative embeddings without their norm", edited("deberta.encoder", "if rel_embeddings is not None and", "if False and", method="get_rel_embedding"),
    "deberta.encoder", "deberta.encoder.LayerNorm", f"{B}.0.attention.self*")
A = "albert.encoder.albert_layer_groups.0.albert_layers.0"
add("albert", "second use of the shared layer 5% off", scaled_once(f"{A}.ffn_output", 1, 1.05), f"{A}.ffn_output", call="mul")
add("albert", "second use of the shared layer 5% off, L0", scaled_once(f"{A}.ffn_output", 1, 1.05), f"{A}.ffn_output", recipe=Recipe(level="L0"))
add("bart", "position offset", assigned("model.encoder.embed_positions", "offset", 1), "model.encoder.embed_positions", call="add")
add("bart", "second residual missing", edited("model.encoder.layers.1", "hidden_states = residual + hidden_states", "pass", nth=1), "model.encoder.layers.1",
    "model.encoder.layers.1.final_layer_norm")
add("bart", "start token", None, "", "model", "model.shared", "model.decoder*", wrong_config={"decoder_start_token_id": 1}, never=(SAME_INPUTS,))
wired("bart", "norm after the cross attention skipped", skipped("model.decoder.layers.0.encoder_attn_layer_norm"), "model.decoder.layers.0",
      "model.decoder.layers.0.encoder_attn_layer_norm")
S = "swin.encoder.layers.0.blocks"
add("swin", "shift of the windows", assigned(f"{S}.1", "shift_size", 1), f"{S}.1", call="roll|ge|arange", says=())
add("swin", "bias not added to the mask", edited(f"{S}.1.attention", "combined_mask = relative_position_bias + attention_mask", "combined_mask = attention_mask"),
    f"{S}.1.attention", call="add|scaled_dot")
C = "convnext.encoder.stages.1.layers.0"
add("convnext", "layer scale missing", edited(C, "if self.layer_scale_parameter is not None:", "if False:"), C, call="mul|permute")
add("convnext", "circular padding", assigned(f"{C}.dwconv", "padding_mode", "circular"), f"{C}.dwconv", call="pad|conv2d")
add("convnext", "residual after the convolution", edited(C, "features = self.dwconv(features)", "features = residual = self.dwconv(features)"), C)
W = "wav2vec2.encoder"
add("wav2vec2", "positional activation missing", edited(f"{W}.pos_conv_embed", "hidden_states = self.activation(hidden_states)", "pass"), f"{W}.pos_conv_embed*")
add("wav2vec2", "loss summed", None, "", wrong_config={"ctc_loss_reduction": "sum"}, call="ctc", says=("sum", "mean"))
wired("wav2vec2", "feed forward skipped", skipped(f"{W}.layers.1.feed_forward"), f"{W}.layers.1.feed_forward", f"{W}.layers.1")
G = "segformer.stages"
add("segformer", "corners aligned", edited("decode_head", "align_corners=False", "align_corners=True"), "decode_head", call="interpolate", says=("align_corners|True",))
add("segformer", "stages in another order", edited("decode_head", "all_hidden_states[::-1]", "all_hidden_states"), "decode_head", "decode_head.linear_fuse")
add("segformer", "batch norm in evaluation mode", lambda run: run.module("decode_head.batch_norm").eval(), "decode_head.batch_norm", call="batch_norm",
    says=("training|True|False",))
wired("segformer", "keys of the full sequence", edited(f"{G}.0.blocks.1.attention", "self.v_proj(kv_hidden_states)", "self.k_proj(kv_hidden_states)"),
      f"{G}.0.blocks.1.attention*", never=())
LAYERS = "self.layers[: self.config.num_hidden_layers]"
wired("granite", "a layer twice", edited("model", LAYERS, "[self.layers[0], self.layers[0]]"), "model", f"{L0}*", f"{L1}*")
wired("cohere", "mlp given the residual", edited(L1, "hidden_states_mlp = self.mlp(hidden_states)", "hidden_states_mlp = self.mlp(residual)"), f"{L1}.mlp*", L1, never=(SAME_INPUTS,))
wired("rwkv", "attention without its norm", edited("rwkv.blocks.1", "self.ln1(hidden)", "hidden"), "rwkv.blocks.1", "rwkv.blocks.1.ln1", "rwkv.blocks.1.attention*")
wired("jamba", "last norm skipped", skipped("model.final_layernorm"), "model", "model.final_layernorm*")
wired("olmo2", "value from the key", edited(f"{L0}.self_attn", "value_states = self.v_proj(hidden_states)", "value_states = self.k_proj(hidden_states)"), f"{L0}.self_attn*")
