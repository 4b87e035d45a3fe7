"""Faults in the forward of transformers: arithmetic, masks, positions, wiring, data."""

from __future__ import annotations

from typing import Any

import torch
from architectures import Batch
from cases import Expect, fault
from edits import assign, wrap
from plants import assigned, edited, replaced, scaled, with_batch
from torch import nn
from training import Experiment, Plant, Recipe

import third.models  # noqa: F401

EXPERTS = {"experts_implementation": "eager"}


def wrong(model: str, name: str, plant: Plant, *modules: str, call: str = "", says: tuple[str, ...] = (), kind: str = "forward",
          step: int = 0, recipe: Recipe = Recipe(), config: Any = None) -> None:  # noqa: B008  # fmt: skip
    expect = Expect(modules=modules, call=call, says=says, direction="forward", step=step)
    fault(model, name, kind, plant, expect, recipe=recipe, config=config)


def data(model: str, name: str, change: Any, *modules: str, call: str = "", says: tuple[str, ...] = (), step: int = 0,
         recipe: Recipe = Recipe()) -> None:  # noqa: B008  # fmt: skip
    wrong(model, name, with_batch(change), *modules, call=call, says=says, kind="data", step=step, recipe=recipe)


def in_evaluation(path: str) -> Plant:
    return lambda run: run.module(path).eval()


def from_second_step(path: str, factor: float) -> Plant:
    """The module's output is wrong from the second call on."""

    def plant(run: Experiment) -> None:
        calls = [0]

        def change(forward: Any, *args: Any, **kwargs: Any) -> Any:
            calls[0] += 1
            result = forward(*args, **kwargs)
            return result * factor if calls[0] > 1 else result

        wrap(run.module(path), change)

    return plant


def second_batch(run: Experiment) -> None:
    """The first batch comes twice."""
    usual = run.batch
    run.batch = lambda step: usual(0)


def rolled(key: str) -> Any:
    return lambda batch: {**batch, key: batch[key].roll(1, 0)}


def without_mask(batch: Batch) -> Batch:
    return {key: value for key, value in batch.items() if key != "attention_mask"}


# One fault a line or two reads as a table; some are longer than a line of code may be.
# ruff: noqa: E501
# fmt: off
L0, L1 = "model.layers.0", "model.layers.1"
MD5, TENSOR, ONLY_L0, ONLY_L1 = Recipe(summary="md5"), Recipe(task="tensor"), Recipe(level="L0"), Recipe(level="L1")
A0, A1 = f"{L0}.self_attn", f"{L1}.self_attn"

wrong("gemma3", "norm without one plus", edited(f"{L1}.post_feedforward_layernorm", "(1.0 + self.weight.float())", "self.weight.float()"), f"{L1}.post_feedforward_layernorm")
wrong("gemma3", "positions from one", edited("model", "self.rotary_emb(hidden_states, position_ids, layer_type)", "self.rotary_emb(hidden_states, position_ids + 1, layer_type)"), "model", "model.rotary_emb")
wrong("gemma3", "query norm left out", edited(A0, "query_states = self.q_norm(query_states)", "query_states = query_states * 1.0"), A0, f"{A0}.q_norm")
fault("gemma3", "window of five", "forward", None, Expect(modules=("", "model", A0), direction="forward"), wrong={}, wrong_config={"sliding_window": 5})
wrong("gemma3", "gelu scaled, L0", scaled(f"{L0}.mlp.act_fn", 1.02), f"{L0}.mlp.act_fn", recipe=ONLY_L0)
wrong("gemma3", "from the second step on", from_second_step(f"{L1}.mlp.up_proj", 1.03), f"{L1}.mlp.up_proj", step=1)
wrong("qwen3_moe", "weights of experts not normalised", assigned(f"{L0}.mlp.gate", "norm_topk_prob", False), f"{L0}.mlp.gate", call="div|sum")
wrong("qwen3_moe", "softmax over tokens", edited(f"{L1}.mlp.gate", "dtype=torch.float, dim=-1)", "dtype=torch.float, dim=0)"), f"{L1}.mlp.gate", call="softmax", says=("dim", r"\b0\b"))
wrong("qwen3_moe", "weight of the first choice for both", edited(f"{L0}.mlp.experts", "top_k_weights[token_idx, top_k_pos, None]", "top_k_weights[token_idx, 0, None]"), f"{L0}.mlp.experts", config=EXPERTS)
wrong("qwen3_moe", "gelu in the experts", replaced(f"{L1}.mlp.experts.act_fn", nn.GELU), f"{L1}.mlp.experts.act_fn", f"{L1}.mlp.experts", says=("gelu|GELU",), config=EXPERTS)
wrong("qwen3_moe", "three experts", assigned(f"{L0}.mlp.gate", "top_k", 3), f"{L0}.mlp.gate", call="topk", says=("3",))
wrong("olmoe", "weight of the router's loss", assigned("", "router_aux_loss_coef", 0.5), "", says=(r"0\.5",))
wrong("olmoe", "eps of a norm", assigned(f"{A1}.k_norm", "variance_epsilon", 1e-2), f"{A1}.k_norm", call="add", says=(r"0\.01",))
fault("olmoe", "clipped projections", "forward", None, Expect(modules=(A0,), call="clamp", direction="forward"), wrong={}, wrong_config={"clip_qkv": 0.05})
wrong("gpt_oss", "sinks ignored", edited(A1, "module.sinks.reshape(1, -1, 1, 1)", "(module.sinks - 5).reshape(1, -1, 1, 1)", function="eager_attention_forward"), A1)
wrong("gpt_oss", "router's softmax over tokens", edited(f"{L0}.mlp.router", "dim=1", "dim=0"), f"{L0}.mlp.router", call="softmax", says=("dim",))
wrong("gpt_oss", "bias of the experts left out", edited(f"{L1}.mlp.experts", " + self.down_proj_bias[expert_idx]", ""), f"{L1}.mlp.experts", call="add|mul", config=EXPERTS)
wrong("gpt_oss", "slope of the gate", assigned(f"{L0}.mlp.experts", "alpha", 1.5), f"{L0}.mlp.experts", says=(r"1\.5",), config=EXPERTS)
wrong("mistral", "query without rotation", edited(A0, "apply_rotary_pos_emb(query_states, key_states, cos, sin)", "(query_states, apply_rotary_pos_emb(query_states, key_states, cos, sin)[1])"), A0, kind="wiring")
wrong("mistral", "scale of the attention", assigned(A1, "scaling", 0.3), A1, call="scaled_dot_product_attention", says=(r"0\.3\b",))
wrong("mistral", "heads of the keys in another order", edited(A0, "key_states = self.k_proj(hidden_states).view(hidden_shape)", "key_states = self.k_proj(hidden_states).view(hidden_shape).flip(2)"), A0)
wrong("mistral", "heads of the keys in another order, md5", edited(A0, "key_states = self.k_proj(hidden_states).view(hidden_shape)", "key_states = self.k_proj(hidden_states).view(hidden_shape).flip(2)"), A0, recipe=MD5)
wrong("mistral", "second residual damped", edited(L1, "residual + hidden_states", "residual + 0.97 * hidden_states", nth=1), L1, call="mul", kind="wiring")
data("mistral", "mask of the other example", rolled("attention_mask"), "", "model*", call="")
wrong("mistral", "first batch twice", second_batch, "", "model*", kind="data", step=1)
wrong("stablelm", "parts of the query swapped", edited(A0, "torch.cat((query_rot, query_pass), dim=-1)", "torch.cat((query_pass, query_rot), dim=-1)"), A0, call="cat|scaled_dot", kind="wiring")
wrong("stablelm", "dropout", replaced(f"{L0}.dropout", lambda: nn.Dropout(0.2)), f"{L0}.dropout", call="dropout", says=(r"0\.2",))
wrong("stablelm", "bias left out", lambda run: assign(run.module(f"{A1}.v_proj"), "bias", None), f"{A1}.v_proj")
wrong("stablelm", "eps of a norm, L1", assigned(f"{L1}.post_attention_layernorm", "eps", 1e-2), call="layer_norm", says=("eps", r"0\.01"), recipe=ONLY_L1)
wrong("mpt", "position bias twice", edited("transformer.blocks.0.attn", "attention_scores + position_bias", "attention_scores + 2 * position_bias"), "transformer.blocks.0.attn", call="mul|add")
wrong("mpt", "mask too weak", edited("transformer.blocks.1.attn", "torch.finfo(query_states.dtype).min", "-1.0"), "transformer.blocks.1.attn", call="masked_fill", says=(r"-1\.0",))
wrong("mpt", "another gelu", replaced("transformer.blocks.0.ffn.act", lambda: nn.GELU("tanh")), "transformer.blocks.0.ffn.act", call="gelu", says=("tanh",))
wrong("mpt", "scale of the scores, tensors", assigned("transformer.blocks.1.attn", "softmax_scale", 0.4), "transformer.blocks.1.attn", call="mul", says=(r"0\.4",), recipe=TENSOR)
wrong("codegen", "keys and values swapped", edited("transformer.h.0.attn", "query, value, key = torch.split", "query, key, value = torch.split"), "transformer.h.0.attn", kind="wiring")
wrong("codegen", "constant of gelu", edited("transformer.h.1.mlp.act", "0.044715", "0.05"), "transformer.h.1.mlp.act", call="mul", says=(r"0\.05",))
wrong("codegen", "feed-forward for the residual", edited("transformer.h.1", "attn_outputs + feed_forward_hidden_states + residual", "attn_outputs + feed_forward_hidden_states + feed_forward_hidden_states"), "transformer.h.1", call="add", kind="wiring")
wrong("xglm", "offset of positions", assigned("model.embed_positions", "offset", 1), "model.embed_positions", says=(r"\b1\b",))
wrong("xglm", "embeddings not scaled", assigned("model.embed_tokens", "embed_scale", 1.0), "model.embed_tokens", call="mul", says=(r"1\.0|not 5",))
wrong("nemotron", "norm plus nine tenths", edited(f"{L0}.input_layernorm", "self.weight + 1.0", "self.weight + 0.9"), f"{L0}.input_layernorm", call="add", says=(r"0\.9",))
wrong("nemotron", "relu not squared", edited(f"{L1}.mlp.act_fn", "squared = torch.square(relu_applied)", "squared = relu_applied"), f"{L1}.mlp.act_fn", call="square", says=("missing",))
wrong("nemotron", "square scaled, L0", scaled(f"{L1}.mlp.act_fn", 0.95), f"{L1}.mlp.act_fn", recipe=ONLY_L0)
wrong("falcon_mamba", "decay of the state", edited("backbone.layers.1.mixer", "-torch.exp(self.A_log.float())", "-torch.exp(1.1 * self.A_log.float())"), "backbone.layers.1.mixer", call="mul")
wrong("falcon_mamba", "eps of a norm", assigned("backbone.layers.0.norm", "variance_epsilon", 1e-2), "backbone.layers.0.norm", call="add", says=(r"0\.01",))
wrong("falcon_mamba", "output of a mixer scaled, L1, md5", scaled("backbone.layers.0.mixer.out_proj", 1.0001), call="mul", recipe=Recipe(level="L1", summary="md5"))
wrong("roberta", "last token for the class", edited("classifier", "features[:, 0, :]", "features[:, -1, :]"), "classifier", "classifier.dropout", kind="wiring")
wrong("roberta", "relu for tanh", edited("classifier", "torch.tanh(x)", "torch.relu(x)"), "classifier", says=("relu", "tanh"))
wrong("roberta", "positions of padding", assigned("roberta.embeddings", "padding_idx", 5), "roberta.embeddings", says=(r"\b5\b",))
data("roberta", "labels of the other example", rolled("labels"), "", call="cross_entropy|nll")
data("distilbert", "without the mask", without_mask, "", "distilbert*")
wrong("distilbert", "eps of a norm", assigned("distilbert.transformer.layer.1.sa_layer_norm", "eps", 1e-2), "distilbert.transformer.layer.1.sa_layer_norm", call="layer_norm", says=("eps",))
wrong("distilbert", "residual from before the attention", edited("distilbert.transformer.layer.0", "ffn_output + attention_output", "ffn_output + hidden_states"), "distilbert.transformer.layer.0", call="add", kind="wiring")
data("longformer", "no global attention", lambda batch: {**batch, "global_attention_mask": torch.zeros_like(batch["input_ids"])}, "", "longformer*")
wrong("longformer", "residual subtracted", edited("longformer.encoder.layer.1.attention.output", "hidden_states + input_tensor", "hidden_states - input_tensor"), "longformer.encoder.layer.1.attention.output", says=("sub", "add"))
wrong("funnel", "scale of the attention", assigned("funnel.encoder.blocks.0.0.attention", "scale", 0.3), "funnel.encoder.blocks.0.0.attention", call="mul", says=(r"0\.3\b",))
wrong("funnel", "token types ignored", edited("funnel.encoder.blocks.1.0.attention", "content_score + positional_attn + token_type_attn", "content_score + positional_attn"), "funnel.encoder.blocks.1.0.attention", call="add", says=("missing|not used",))
wrong("funnel", "first block left out", edited("funnel.decoder", "upsampled_hidden + first_block_hidden", "upsampled_hidden + 0.5 * first_block_hidden"), "funnel.decoder", call="mul", kind="wiring")
data("funnel", "labels shifted", lambda batch: {**batch, "labels": batch["labels"].roll(1, 1)}, "", call="cross_entropy|nll")
wrong("mbart", "cross attention scaled", assigned("model.decoder.layers.1.encoder_attn", "scaling", 0.5), "model.decoder.layers.1.encoder_attn", says=(r"0\.5",))
wrong("mbart", "relu in one layer", assigned("model.encoder.layers.0", "activation_fn", nn.ReLU()), "model.encoder.layers.0", says=("relu", "gelu"))
wrong("mbart", "positions of the decoder", assigned("model.decoder.embed_positions", "offset", 3), "model.decoder.embed_positions", says=(r"\b3\b",))
wrong("deit", "norm left out", lambda run: wrap(run.module("deit.layers.1.layernorm_after"), lambda forward, x: x), "deit.layers.1.layernorm_after", "deit.layers.1", call="layer_norm|linear")
wrong("deit", "attention output permuted", edited("deit.layers.0.attention", "attn_output.reshape(*input_shape, -1).contiguous()", "attn_output.flip(2).reshape(*input_shape, -1).contiguous()"), "deit.layers.0.attention", "deit.layers.0.attention.o_proj")
data("deit", "pictures upside down, md5", lambda batch: {**batch, "pixel_values": batch["pixel_values"].flip(2)}, "", "deit*", recipe=MD5)
wrong("beit", "class token in the mean", edited("beit.pooler", "hidden_states[:, 1:, :].mean(1)", "hidden_states.mean(1)"), "beit.pooler", call="mean")
wrong("dinov2", "class and patches swapped", edited("", "torch.cat([cls_token, patch_tokens.mean(dim=1)], dim=1)", "torch.cat([patch_tokens.mean(dim=1), cls_token], dim=1)"), "", call="cat|linear", kind="wiring", says=("swap|order",))
wrong("dinov2", "a patch too few", edited("", "sequence_output[:, 1:]", "sequence_output[:, 2:]"), "", call="mean")
wrong("regnet", "a norm in evaluation mode", in_evaluation("regnet.encoder.stages.0.layers.0.layer.0.normalization"), "regnet.encoder.stages.0.layers.0.layer.0.normalization", call="batch_norm", says=("training",))
wrong("regnet", "momentum of a norm", assigned("regnet.encoder.stages.1.layers.0.shortcut.normalization", "momentum", 0.4), "regnet.encoder.stages.1.layers.0.shortcut.normalization", call="batch_norm", says=("momentum", r"0\.4"))
data("regnet", "pictures not normalised", lambda batch: {**batch, "pixel_values": batch["pixel_values"] * 2 + 0.5}, "", "regnet*", says=("given|input",))
wrong("hubert", "norm of the features left out", lambda run: wrap(run.module("hubert.feature_projection.layer_norm"), lambda forward, x: x), "hubert.feature_projection.layer_norm", "hubert.feature_projection", call="layer_norm|linear")
wrong("hubert", "groups of the positional convolution", lambda run: wrap(run.module("hubert.encoder.pos_conv_embed"), lambda forward, x: forward(x) * 0.98), "hubert.encoder.pos_conv_embed", call="mul", recipe=TENSOR)
data("hubert", "sounds too loud", lambda batch: {**batch, "input_values": batch["input_values"] * 1.1}, "", "hubert*", says=("given|input",))
wrong("blip", "heads of the picture in another order", edited("vision_model.encoder.layers.0.self_attn", ".permute(2, 0, 3, 1, 4)", ".permute(2, 0, 3, 1, 4).flip(2)"), "vision_model.encoder.layers.0.self_attn", "vision_model.encoder.layers.0.self_attn.projection")
wrong("blip", "cross attention of the words scaled", scaled("text_decoder.bert.encoder.layer.1.crossattention.output.dense", 1.05), "text_decoder.bert.encoder.layer.1.crossattention.output.dense", call="mul")
data("blip", "pictures of other captions, md5", rolled("pixel_values"), "", "vision_model*", recipe=MD5)
fault("yolos", "weight of the boxes' loss", "forward", None, Expect(modules=("",), direction="forward", says=(r"\b4\b|4\.0",)), wrong={}, wrong_config={"bbox_loss_coefficient": 4})
wrong("yolos", "relu left out of the boxes", edited("bbox_predictor", "nn.functional.relu(layer(x))", "layer(x)"), "bbox_predictor", call="relu", says=("missing",))
wrong("yolos", "sigmoid of the boxes", edited("", ".sigmoid()", ".sigmoid().clamp(max=0.45)"), "", call="clamp")
# fmt: on
