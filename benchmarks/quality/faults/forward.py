"""Faults of the forward in transformers' models: arguments, masks, axes, scales, positions, missing and extra calls."""

from __future__ import annotations

from typing import Any

from cases import SAME_INPUTS, Expect, fault
from plants import assigned, edited, replaced, scaled
from torch import nn
from training import Plant, Recipe

EAGER = {"attn_implementation": "eager"}
ATTENTION = "eager_attention_forward"
Patterns = tuple[str, ...]


def add(
    model: str,
    name: str,
    plant: Any,
    *modules: str,
    call: str = "",
    says: Patterns = (),
    never: Patterns = (),
    **options: Any,
) -> None:
    """A fault in a forward; `modules` are the places that may be named."""
    expect = Expect(modules=modules, call=call, says=says, never=never, direction="forward")
    fault(model, name, "forward", plant, expect, **options)


def eager(model: str, name: str, plant: Plant, *modules: str, **options: Any) -> None:
    """The same with both runs in eager attention."""
    add(model, name, plant, *modules, config=EAGER, **options)


# One fault a line or two reads as a table; some are longer than a line of code may be.
# fmt: off
H0, H1 = "transformer.h.0", "transformer.h.1"
add("gpt2", "layernorm eps", assigned(f"{H1}.ln_2", "eps", 1e-3), f"{H1}.ln_2",
    call="layer_norm", says=("0.001", "1e-05"), representative=True)
add("gpt2", "attention scale", assigned(f"{H1}.attn", "scaling", 0.4), f"{H1}.attn",
    call="scaled_dot_product", says=(r"0\.4\b", "0.353"))
add("gpt2", "gelu without tanh", replaced(f"{H0}.mlp.act", nn.GELU), f"{H0}.mlp.act", f"{H0}.mlp")
eager("gpt2", "softmax over the wrong axis",
      edited(f"{H1}.attn", "attn_weights, dim=-1", "attn_weights, dim=-2", function=ATTENTION), f"{H1}.attn",
      call="softmax", says=("-2", "-1"))
eager("gpt2", "mask forgotten", edited(f"{H0}.attn", "attention_mask is not None", "False", function=ATTENTION),
      f"{H0}.attn", call="add")
add("gpt2", "positions off by one",
    edited("transformer", "position_ids = torch.arange(", "position_ids = 1 + torch.arange("),
    "transformer", "transformer.wpe", representative=True)
add("gpt2", "positions off by one, in another shape",
    edited("transformer", "position_ids = position_ids.unsqueeze(0)",
           "position_ids = (position_ids + 1).unsqueeze(0).repeat(inputs_embeds.shape[0], 1)"),
    "transformer", "transformer.wpe", never=(SAME_INPUTS,))
add("gpt2", "residual dropped", edited(H1, "attn_output + residual", "attn_output"), H1, call="add")
add("gpt2", "mlp scaled", scaled(f"{H1}.mlp", 1.02), f"{H1}.mlp", call="mul")
add("gpt2", "mlp scaled, L1", scaled(f"{H1}.mlp", 1.02), call="mul", recipe=Recipe(level="L1"))
add("gpt2", "layernorm eps, L0", assigned(f"{H1}.ln_2", "eps", 1e-3), f"{H1}.ln_2", recipe=Recipe(level="L0"))
add("gpt2", "layernorm eps, tensors", assigned(f"{H1}.ln_2", "eps", 1e-3), f"{H1}.ln_2",
    call="layer_norm", says=("0.001", "1e-05"), recipe=Recipe(task="tensor"))

L0, L1 = "model.layers.0", "model.layers.1"
add("llama", "rms norm eps", assigned(f"{L1}.input_layernorm", "variance_epsilon", 1e-4), f"{L1}.input_layernorm",
    call="add", says=("0.0001", "1e-06"))
add("llama", "rms norm eps, L1", assigned(f"{L1}.input_layernorm", "variance_epsilon", 1e-4),
    call="add", says=("0.0001", "1e-06"), recipe=Recipe(level="L1"))
add("llama", "gelu for silu", replaced(f"{L0}.mlp.act_fn", nn.GELU), f"{L0}.mlp.act_fn", f"{L0}.mlp")
add("llama", "rotary halves swapped",
    edited(f"{L1}.self_attn", "torch.cat((-x2, x1)", "torch.cat((x1, -x2)", function="rotate_half"),
    f"{L1}.self_attn", call="cat", never=("is missing", "only in"), representative=True)
add("llama", "rotary sign", edited(f"{L1}.self_attn", "torch.cat((-x2, x1)", "torch.cat((x2, x1)",
    function="rotate_half"), f"{L1}.self_attn", call="neg|cat")
for _recipe, _name in ((Recipe(), "positions doubled, in another shape"),
                       (Recipe(stop_first=True), "positions doubled, in another shape, no optimizer")):
    add("llama", _name,
        edited("model", "position_ids = position_ids.unsqueeze(0)",
               "position_ids = (position_ids * 2).unsqueeze(0).repeat(inputs_embeds.shape[0], 1)"),
        "model", "model.rotary_emb", never=(SAME_INPUTS,), recipe=_recipe, representative=_recipe.stop_first)
add("llama", "rope theta", None, "model.rotary_emb",
    wrong_config={"rope_parameters": {"rope_type": "default", "rope_theta": 10500.0}})
eager("llama", "attention not scaled", edited(f"{L0}.self_attn", " * scaling", "", function=ATTENTION),
      f"{L0}.self_attn", call="mul")
eager("llama", "softmax of the transposed scores",
      edited(f"{L1}.self_attn", "softmax(attn_weights, dim=-1", "softmax(attn_weights.transpose(2, 3), dim=-1",
             function=ATTENTION), f"{L1}.self_attn", call="transpose|softmax")
add("llama", "gate and up swapped", edited(f"{L1}.mlp", "self.act_fn(self.gate_proj(x)) * self.up_proj(x)",
    "self.act_fn(self.up_proj(x)) * self.gate_proj(x)"), f"{L1}.mlp", f"{L1}.mlp.act_fn", never=("is missing",))
add("llama", "norm in another place",
    edited(L1, "hidden_states = self.post_attention_layernorm(hidden_states)",
           "hidden_states = self.input_layernorm(hidden_states)"),
    L1, f"{L1}.input_layernorm", f"{L1}.post_attention_layernorm")
add("llama", "logits scaled", scaled("lm_head", 0.98), "lm_head", call="mul")

add("qwen2", "causal mask off by one",
    edited("model", "hidden_states = inputs_embeds",
           "hidden_states = inputs_embeds; causal_mask_mapping = {k: v if v is None else v.roll(1, -1)"
           " for k, v in causal_mask_mapping.items()}"),
    "model", f"{L0}.self_attn", L0, call="roll|__and__|scaled_dot|Module")
add("qwen2", "attention scale", assigned(f"{L0}.self_attn", "scaling", 0.3), f"{L0}.self_attn",
    call="scaled_dot_product", says=(r"0\.3\b", "0.353"))
add("qwen2", "extra dropout", edited(f"{L1}.mlp", "return down_proj",
    "return torch.nn.functional.dropout(down_proj, 0.1)"), f"{L1}.mlp", call="dropout")
add("qwen2", "rms norm without the root", edited("model.norm", "torch.rsqrt(variance", "torch.reciprocal(variance"),
    "model.norm", call="rsqrt|reciprocal")

add("qwen3", "query norm missing",
    edited(f"{L1}.self_attn", "self.q_norm(self.q_proj(hidden_states).view(hidden_shape))",
           "self.q_proj(hidden_states).view(hidden_shape)"), f"{L1}.self_attn", f"{L1}.self_attn.q_norm")
add("qwen3", "query norm over the wrong axis",
    edited(f"{L0}.self_attn.q_norm", "mean(-1, keepdim=True)", "mean(-2, keepdim=True)"),
    f"{L0}.self_attn.q_norm", call="mean", says=("-2", "-1"))
add("qwen3", "key norm eps", assigned(f"{L1}.self_attn.k_norm", "variance_epsilon", 1e-3),
    f"{L1}.self_attn.k_norm", call="add", says=("0.001", "1e-06"))

add("mixtral", "router picks one expert", assigned(f"{L1}.mlp.gate", "top_k", 1), f"{L1}.mlp.gate", call="topk",
    representative=True)
add("mixtral", "router weights not normalised",
    edited(f"{L0}.mlp.gate", "router_top_value /= router_top_value.sum(dim=-1, keepdim=True)", "pass"),
    f"{L0}.mlp.gate", call="sum|div")
add("mixtral", "router softmax over the tokens", edited(f"{L0}.mlp.gate", "router_logits.float(), dim=-1",
    "router_logits.float(), dim=0"), f"{L0}.mlp.gate", call="softmax", says=(r"\b0\b", "-1"))
add("mixtral", "expert activation", replaced(f"{L1}.mlp.experts.act_fn", nn.GELU),
    f"{L1}.mlp.experts", f"{L1}.mlp.experts.act_fn", config={"experts_implementation": "eager"})
add("qwen2_moe", "shared expert forgotten",
    edited(f"{L1}.mlp", "expert_output = expert_output + shared_expert_output", "pass"), f"{L1}.mlp", call="add")
add("qwen2_moe", "shared gate without sigmoid", edited(f"{L0}.mlp", "F.sigmoid(", "("), f"{L0}.mlp", call="sigmoid")
add("qwen2_moe", "router scores normalised", assigned(f"{L0}.mlp.gate", "norm_topk_prob", True), f"{L0}.mlp.gate",
    call="sum|div")
add("deepseek_v3", "routed scaling factor", assigned(f"{L1}.mlp.gate", "routed_scaling_factor", 2.4),
    f"{L1}.mlp.gate", call="mul", says=(r"2\.4\b", "2.5"))
add("deepseek_v3", "softmax for sigmoid", edited(f"{L1}.mlp.gate", "router_logits.sigmoid()",
    "router_logits.softmax(-1)"), f"{L1}.mlp.gate", call="sigmoid|softmax")
add("deepseek_v3", "rotary part first in the query", edited(f"{L0}.self_attn", "torch.cat((q_pass, q_rot)",
    "torch.cat((q_rot, q_pass)"), f"{L0}.self_attn", call="cat", never=("is missing", "only in"))
add("deepseek_v3", "latent norm skipped", edited(f"{L1}.self_attn", "kv_nope = self.kv_a_layernorm(kv_nope)", "pass"),
    f"{L1}.self_attn", f"{L1}.self_attn.kv_a_layernorm")
add("gemma2", "norm weight without one", edited(f"{L1}.pre_feedforward_layernorm", "(1.0 + self.weight.float())",
    "(0.99 + self.weight.float())"), f"{L1}.pre_feedforward_layernorm", call="add", says=("0.99",))
add("gemma2", "soft cap missing", edited(f"{L0}.self_attn", "softcap is not None", "False", function=ATTENTION),
    f"{L0}.self_attn", call="div|tanh|mul", config={**EAGER, "initializer_range": 0.8})
add("gemma2", "final soft cap", edited("", "logits = logits * self.config.final_logit_softcapping",
    "logits = logits * 31.0"), "", call="mul", says=("31", "30"))
add("gemma2", "norm before the residual", edited(L0,
    "hidden_states = self.post_feedforward_layernorm(hidden_states)\n    hidden_states = residual + hidden_states",
    "hidden_states = residual + hidden_states\n    hidden_states = self.post_feedforward_layernorm(hidden_states)"),
    L0, f"{L0}.post_feedforward_layernorm")

M0, M1 = "backbone.layers.0", "backbone.layers.1"
add("mamba", "state matrix with the wrong sign", edited(f"{M1}.mixer", "A = -torch.exp", "A = torch.exp"),
    f"{M1}.mixer", call="neg")
add("mamba", "time step without softplus", edited(f"{M0}.mixer", "delta_softplus=True,\n            return_last",
    "delta_softplus=False,\n            return_last"), f"{M0}.mixer", call="softplus|exp|mul|add")
add("mamba", "skip connection of the scan", edited(f"{M1}.mixer", "D=self.D.float(),\n            z",
    "D=None,\n            z"), f"{M1}.mixer", call="mul|add|unsqueeze|float|getitem")
add("phi3", "gate and up swapped", edited(f"{L1}.mlp", "gate, up_states = up_states.chunk",
    "up_states, gate = up_states.chunk"), f"{L1}.mlp", f"{L1}.mlp.activation_fn")
add("phi3", "key taken from the wrong offset", edited(f"{L0}.self_attn", "qkv[..., query_pos : query_pos + ",
    "qkv[..., query_pos - 8 : query_pos - 8 + "), f"{L0}.self_attn", call="getitem|mul",
    never=("is missing", SAME_INPUTS))
add("phi3", "activation before the split", edited(f"{L0}.mlp", "up_states = self.gate_up_proj(hidden_states)",
    "up_states = self.gate_up_proj(hidden_states).relu()"), f"{L0}.mlp", call="relu")

D0, D1 = "model.decoder.layers.0", "model.decoder.layers.1"
add("opt", "position offset", assigned("model.decoder.embed_positions", "offset", 3), "model.decoder.embed_positions",
    call="add", says=(r"\b3\b", r"\b2\b"))
add("opt", "query not scaled", edited(f"{D1}.self_attn", " * self.scaling", ""), f"{D1}.self_attn", call="mul")
add("opt", "gelu for relu", replaced(f"{D0}.activation_fn", nn.GELU), f"{D0}.activation_fn", D0)
B0, B1 = "bert.encoder.layer.0", "bert.encoder.layer.1"
add("bert", "dropout rate", assigned(f"{B0}.attention.output.dropout", "p", 0.2), f"{B0}.attention.output.dropout",
    call="dropout", says=(r"0\.2\b", r"0\.1\b"))
add("bert", "position embedding forgotten", edited("bert.embeddings", "embeddings = embeddings + position_embeddings",
    "pass"), "bert.embeddings", call="add")
add("bert", "residual dropped", edited(f"{B1}.output", "hidden_states + input_tensor", "hidden_states"),
    f"{B1}.output", f"{B1}.output.LayerNorm", call="add")
add("bert", "layernorm eps", assigned(f"{B1}.attention.output.LayerNorm", "eps", 1e-5),
    f"{B1}.attention.output.LayerNorm", call="layer_norm", says=("1e-05", "1e-12"))
add("t5", "layernorm with the mean removed", edited("encoder.block.1.layer.0.layer_norm",
    "variance = hidden_states",
    "hidden_states = hidden_states - hidden_states.mean(-1, keepdim=True)\n    variance = hidden_states"),
    "encoder.block.1.layer.0.layer_norm", call="mean|sub")
add("t5", "feed-forward scaled", scaled("decoder.block.0.layer.2.DenseReluDense", 1.03),
    "decoder.block.0.layer.2.DenseReluDense", call="mul")
add("t5", "logits not scaled", edited("", "sequence_output * (self.model_dim**-0.5)", "sequence_output"), "",
    call="mul")
add("vit", "wrong token pooled", edited("", "sequence_output[:, 0, :]", "sequence_output[:, 1, :]"), "", "classifier",
    call="getitem|linear", never=(SAME_INPUTS,))
add("vit", "patches flattened over the wrong axes", edited("vit.embeddings.patch_embeddings",
    "flatten(2).transpose(1, 2)", "transpose(2, 3).flatten(2).transpose(1, 2)"), "vit.embeddings.patch_embeddings",
    call="transpose|flatten", recipe=Recipe(summary="md5"), representative=True)
add("vit", "residual of the wrong place", edited("vit.layers.1",
    "residual = hidden_states\n    hidden_states = self.layernorm_after(hidden_states)",
    "hidden_states = self.layernorm_after(hidden_states)\n    residual = hidden_states"), "vit.layers.1", call="add")
add("whisper", "cross attention scale", assigned(f"{D1}.encoder_attn", "scaling", 0.33), f"{D1}.encoder_attn",
    says=("0.33",))
add("whisper", "relu for gelu in the stem", edited("model.encoder", "nn.functional.gelu(self.conv2",
    "nn.functional.relu(self.conv2"), "model.encoder", call="gelu|relu")
add("clip", "logit scale without exp", edited("", "self.logit_scale.exp()", "(self.logit_scale * 10)"),
    "", call="exp|mul")
add("clip", "quick gelu for gelu", edited("text_model.encoder.layers.1.mlp", "self.activation_fn(hidden_states)",
    "torch.nn.functional.gelu(hidden_states)"), "text_model.encoder.layers.1.mlp",
    "text_model.encoder.layers.1.mlp.activation_fn")
