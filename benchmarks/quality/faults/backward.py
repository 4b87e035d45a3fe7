"""Faults that only the backward shows: wrong formulas, cut, scaled and frozen gradients."""

from __future__ import annotations

from typing import Any

from cases import Expect, fault
from kernels import faulty_kernel
from plants import edited, frozen, gradient_scaled, output_hook, parameter_hook, wrong_activation, wrong_linear
from training import Plant, Recipe

STOP_FIRST = Recipe(stop_first=True)


def formula(model: str, name: str, plant: Plant, *modules: str, **options: Any) -> None:
    """A backward that is wrong inside one of `modules`."""
    fault(model, name, "backward", plant, Expect(modules=modules, direction="backward"), **options)


def of_parameter(model: str, name: str, plant: Plant, parameter: str, **options: Any) -> None:
    """Only the gradient of one parameter is wrong: the answer names the parameter, or the line that makes it wrong."""
    line = r"plants\.py:\d+ in <lambda>|edits\.py:\d+ in backward"
    fault(model, name, "backward", plant, Expect(parameter=parameter, source=line), **options)


def cut(model: str, name: str, plant: Plant, *modules: str, **options: Any) -> None:
    """The gradient is cut off in one of `modules`, which the forward may show (an extra detach, requires_grad)."""
    expect = Expect(modules=modules, says=("detach|requires_grad|cut|no gradient|no_grad",))
    fault(model, name, "backward", plant, expect, **options)


# One fault a line or two reads as a table; some are longer than a line of code may be.
# ruff: noqa: E501
# fmt: off
L0, L1 = "model.layers.0", "model.layers.1"
H0, H1 = "transformer.h.0", "transformer.h.1"
formula("llama", "silu backward 0.03%", faulty_kernel(f"{L1}.mlp.act_fn", "silu_backward", 1.0003), f"{L1}.mlp.act_fn",
        representative=True)
formula("llama", "silu backward 0.03%, no optimizer", faulty_kernel(f"{L1}.mlp.act_fn", "silu_backward", 1.0003),
        f"{L1}.mlp.act_fn", recipe=STOP_FIRST)
formula("llama", "silu backward 5%", faulty_kernel(f"{L0}.mlp.act_fn", "silu_backward", 1.05), f"{L0}.mlp.act_fn")
formula("llama", "silu backward 5%, L1", faulty_kernel(f"{L0}.mlp.act_fn", "silu_backward", 1.05),
        recipe=Recipe(level="L1"))
formula("llama", "silu backward 5%, L0", faulty_kernel(f"{L0}.mlp.act_fn", "silu_backward", 1.05), f"{L0}.mlp.act_fn",
        recipe=Recipe(level="L0"))
formula("mixtral", "silu backward of one expert layer", faulty_kernel(f"{L1}.mlp.experts", "silu_backward", 1.01),
        f"{L1}.mlp.experts", f"{L1}.mlp.experts.act_fn", config={"experts_implementation": "eager"})
formula("qwen3", "silu backward 1%, md5", faulty_kernel(f"{L1}.mlp.act_fn", "silu_backward", 1.01), f"{L1}.mlp.act_fn",
        recipe=Recipe(summary="md5"))
formula("mamba", "silu backward 1%", faulty_kernel("backbone.layers.0.mixer", "silu_backward", 1.01),
        "backbone.layers.0.mixer")
formula("unet", "silu backward 0.1%", faulty_kernel("down2", "silu_backward", 1.001), "down2", representative=True)
formula("resnet", "relu backward 1%", faulty_kernel("blocks.2", "threshold_backward", 1.01), "blocks.2", "blocks.2.act")
formula("recommender", "relu backward 2%", faulty_kernel("dense.1", "threshold_backward", 0.98), "dense.1")
formula("gpt2", "gelu backward 0.1%", wrong_activation(f"{H1}.mlp.act", 1.001), f"{H1}.mlp.act")
formula("bert", "gelu backward 1%", wrong_activation("bert.encoder.layer.0.intermediate.intermediate_act_fn", 1.01),
        "bert.encoder.layer.0.intermediate.intermediate_act_fn")
formula("vit", "gelu backward 0.3%", wrong_activation("vit.layers.1.mlp.activation_fn", 1.003),
        "vit.layers.1.mlp.activation_fn")
formula("vae", "tanh backward 1%", wrong_activation("encode.1", 1.01), "encode.1")
formula("phi3", "gradient into the projection 1%", wrong_linear(f"{L0}.mlp.gate_up_proj", of_input=1.01),
        f"{L0}.mlp.gate_up_proj")
formula("whisper", "gradient of the attention 2%", gradient_scaled("model.decoder.layers.1.fc2", 1.02),
        "model.decoder.layers.1.fc2")
formula("clip", "hook on an output", output_hook("text_model.encoder.layers.1.mlp", 1.1),
        "text_model.encoder.layers.1.mlp", "text_model.encoder.layers.1.mlp.fc2")
formula("t5", "hook on an output", output_hook("encoder.block.1.layer.1.DenseReluDense.wo", 0.9),
        "encoder.block.1.layer.1.DenseReluDense.wo")
formula("lstm", "gradient of the norm 1%", gradient_scaled("norm", 1.01), "norm")

of_parameter("llama", "weight gradient 1%", wrong_linear(f"{L1}.mlp.down_proj", of_weight=1.01),
             f"{L1}.mlp.down_proj.weight")
of_parameter("opt", "weight gradient 3%", wrong_linear("model.decoder.layers.0.fc1", of_weight=0.97),
             "model.decoder.layers.0.fc1.weight")
of_parameter("gpt2", "hook on a parameter", parameter_hook(f"{H1}.attn.c_proj.weight", 1.05), f"{H1}.attn.c_proj.weight",
             representative=True)
of_parameter("encoder", "hook on a parameter of the model", parameter_hook("position", 0.5), "position")
of_parameter("gnn", "hook on a bias", parameter_hook("layers.1.update.bias", 2.0), "layers.1.update.bias",
             recipe=STOP_FIRST)
of_parameter("llama", "frozen weight", frozen(f"{L0}.self_attn.v_proj.weight"), f"{L0}.self_attn.v_proj.weight")
of_parameter("gpt2", "frozen weight", frozen(f"{H0}.mlp.c_fc.weight"), f"{H0}.mlp.c_fc.weight", representative=True)
of_parameter("bert", "frozen bias", frozen("bert.encoder.layer.1.output.dense.bias"),
             "bert.encoder.layer.1.output.dense.bias", recipe=STOP_FIRST)
of_parameter("resnet", "frozen stem", frozen("stem.weight"), "stem.weight")
of_parameter("mixer", "frozen norm", frozen("norm.weight"), "norm.weight")
of_parameter("vit", "frozen class token", frozen("vit.embeddings.cls_token"), "vit.embeddings.cls_token")

cut("llama", "up projection detached", edited(f"{L1}.mlp", "self.up_proj(x))", "self.up_proj(x).detach())"), f"{L1}.mlp",
    representative=True)
cut("qwen2_moe", "router weights detached", edited(f"{L0}.mlp.gate", "router_scores = router_top_value",
    "router_scores = router_top_value.detach()"), f"{L0}.mlp.gate")
cut("deepseek_v3", "latent under no_grad", edited(f"{L0}.self_attn", "kv_nope = self.kv_a_layernorm(kv_nope)",
    "\n    with torch.no_grad():\n        kv_nope = self.kv_a_layernorm(kv_nope)"), f"{L0}.self_attn",
    f"{L0}.self_attn.kv_a_layernorm")
cut("t5", "encoder states detached", edited("", "hidden_states = encoder_outputs[0]",
    "hidden_states = encoder_outputs[0].detach()"), "", "decoder")
cut("unet", "skip connection detached", edited("", "torch.cat([x, second], dim=1)",
    "torch.cat([x, second.detach()], dim=1)"), "")
cut("translator", "hidden state detached", edited("", "hidden = self.decoder(self.target(answers[:, position]), hidden)",
    "hidden = self.decoder(self.target(answers[:, position]), hidden.detach())"), "", "decoder", recipe=STOP_FIRST)
cut("vae", "mean detached", edited("", "z = mean + deviation", "z = mean.detach() + deviation"), "")
