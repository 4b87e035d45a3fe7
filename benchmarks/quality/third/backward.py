"""Faults in the backward: gradients that are cut, scaled, wrong in a kernel, or wrong at a parameter."""

from __future__ import annotations

from typing import Any

import torch
from cases import Expect, fault
from edits import wrap
from kernels import faulty_kernel
from plants import edited, frozen, gradient_scaled, output_hook, parameter_hook, wrong_activation, wrong_linear
from torch import Tensor
from training import Experiment, Plant, Recipe

import third.models  # noqa: F401

CUT = "gradient|requires_grad|detach"


def without_gradient(path: str) -> Plant:
    def change(forward: Any, *args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            return forward(*args, **kwargs)

    return lambda run: wrap(run.module(path), change)


def clamped(path: str, limit: float) -> Plant:
    """A hook of the user's clamps the gradient of a module's output."""

    def change(forward: Any, *args: Any, **kwargs: Any) -> Any:
        result = forward(*args, **kwargs)
        result.register_hook(lambda gradient: gradient.clamp(-limit, limit))
        return result

    return lambda run: wrap(run.module(path), change)


def straight_through(path: str) -> Plant:
    """The value of a module, with the gradient of the identity."""

    def change(forward: Any, x: Tensor) -> Tensor:
        return x + (forward(x) - x).detach()

    return lambda run: wrap(run.module(path), change)


def second_backward(run: Experiment) -> None:
    """The gradients of two backward passes are added."""
    usual = run.loss

    def loss(model: Any, batch: Any) -> Tensor:
        usual(model, batch).backward()
        return usual(model, batch)

    run.loss = loss


# One fault a line or two reads as a table; some are longer than a line of code may be.
# ruff: noqa: E501
# fmt: off
L0, L1 = "model.layers.0", "model.layers.1"


def wrong(model: str, name: str, plant: Plant, *modules: str, call: str = "", says: tuple[str, ...] = (), recipe: Recipe = Recipe(), direction: str = "backward") -> None:  # noqa: B008
    fault(model, name, "backward", plant, Expect(modules=modules, call=call, says=says, direction=direction, source="third/backward|plants\\.py|edits\\.py"), recipe=recipe)


wrong("mistral", "residual detached", edited(L0, "residual = hidden_states", "residual = hidden_states.detach()", nth=1), L0, says=(CUT,), direction="")
wrong("qwen3_moe", "router detached", edited(f"{L1}.mlp", "self.gate(hidden_states_reshaped)", "self.gate(hidden_states_reshaped.detach())"), f"{L1}.mlp", f"{L1}.mlp.gate", says=(CUT,), direction="")
wrong("dinov2", "mlp without gradients", without_gradient("dinov2.encoder.layer.1.mlp"), "dinov2.encoder.layer.1.mlp*", says=(CUT,), direction="")
fault("hubert", "gradient of a weight reversed", "backward", parameter_hook("hubert.encoder.layers.0.attention.q_proj.weight", -1.0), Expect(parameter="hubert.encoder.layers.0.attention.q_proj.weight", source="plants"))
wrong("roberta", "gradient of a layer's output damped", output_hook("roberta.encoder.layer.0.output", 0.9), "roberta.encoder.layer.0.output*")
wrong("beit", "input gradient of a linear layer", wrong_linear("beit.layers.1.mlp.fc2", of_input=1.03), "beit.layers.1.mlp.fc2")
wrong("deit", "weight gradient of a linear layer", wrong_linear("deit.layers.0.attention.o_proj", of_weight=0.97), "deit.layers.0.attention.o_proj")
wrong("nemotron", "relu's backward", faulty_kernel(f"{L1}.mlp.act_fn", "threshold_backward", 1.03), f"{L1}.mlp.act_fn", call="relu")
wrong("stablelm", "silu's backward", faulty_kernel(f"{L0}.mlp.act_fn", "silu_backward", 1.03), f"{L0}.mlp.act_fn", call="silu")
wrong("mistral", "silu's backward, no optimizer", faulty_kernel(f"{L1}.mlp.act_fn", "silu_backward", 0.98), f"{L1}.mlp.act_fn", call="silu", recipe=Recipe(stop_first=True))
fault("xglm", "a frozen weight", "backward", frozen(f"{L0}.fc1.weight"), Expect(parameter=f"{L0}.fc1.weight", says=(CUT + "|frozen",)))
wrong("codegen", "gradient of the attention scaled", gradient_scaled("transformer.h.1.attn.out_proj", 1.05), "transformer.h.1.attn.out_proj")
wrong("gemma3", "gradient clamped by a hook", clamped(f"{L1}.mlp.down_proj", 1e-4), f"{L1}.mlp.down_proj")
wrong("distilbert", "gradient of the head scaled", gradient_scaled("vocab_transform", 1.04), "vocab_transform")
wrong("mbart", "straight through a norm", straight_through("model.encoder.layers.1.final_layer_norm"), "model.encoder.layers.1.final_layer_norm", "model.encoder.layers.1", direction="")
wrong("gan", "activation's backward", wrong_activation("critic.1", 1.04), "critic.1")
fault("olmoe", "backward twice", "backward", second_backward, Expect(optimizer=True, says=("backward passes",), step=0))
wrong("blip", "gradient to the picture cut", edited("", "encoder_hidden_states=image_embeds", "encoder_hidden_states=image_embeds.detach()"), "", "text_decoder*", says=(CUT,), direction="")
wrong("yolos", "gradient of the class head scaled, L0", gradient_scaled("class_labels_classifier.layers.1", 0.9), "class_labels_classifier*", recipe=Recipe(level="L0"))
wrong("regnet", "gradient of the excitation", gradient_scaled("regnet.encoder.stages.1.layers.1.layer.2.attention.2", 1.1), "regnet.encoder.stages.1.layers.1.layer.2.attention.2")
wrong("falcon_mamba", "gradient of a projection, tensors", gradient_scaled("backbone.layers.0.mixer.in_proj", 1.02), "backbone.layers.0.mixer.in_proj", recipe=Recipe(task="tensor"))
# fmt: on
