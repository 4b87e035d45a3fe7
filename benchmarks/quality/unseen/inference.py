"""Faults of inference: no gradients, generation with a cache, L0 and L1, a late step, md5 and tensors."""

from __future__ import annotations

from typing import Any

import torch
from architectures import Batch
from cases import Expect, fault
from edits import wrap
from plants import assigned, edited, perturbed, scaled, together
from torch import Tensor, nn
from training import Experiment, Plant, Recipe

import unseen.models  # noqa: F401

NEW_TOKENS = 4


def inferring(run: Experiment) -> None:
    run.inference = True
    run.loss = lambda model, batch: model(**{key: value for key, value in batch.items() if key != "labels"}).logits


def generating(run: Experiment) -> None:
    """Greedy generation with the cache."""
    run.inference = True

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        prompt = batch["input_ids"]
        mask = batch.get("attention_mask")
        return model.generate(prompt, attention_mask=mask, max_new_tokens=NEW_TOKENS, do_sample=False)

    run.loss = loss


def _by_token(model: nn.Module, batch: Batch) -> Tensor:
    """Generation by hand: the prompt, then one token after the other, with the cache."""
    out = model(input_ids=batch["input_ids"], use_cache=True)
    chosen = [out.logits[:, -1].argmax(-1)]
    for _ in range(2):
        out = model(input_ids=chosen[-1][:, None], past_key_values=out.past_key_values, use_cache=True)
        chosen.append(out.logits[:, -1].argmax(-1))
    return torch.stack(chosen)


def stepping(run: Experiment) -> None:
    run.inference = True
    run.loss = _by_token


def from_step(number: int, plant: Plant, path: str) -> Plant:
    """The plant is there from this step on: before, the module runs as usual."""

    def late(run: Experiment) -> None:
        module = run.module(path)
        usual = module.forward
        plant(run)
        wrong = module.forward
        seen = [-1]
        batch = run.batch

        def counted(step: int) -> Batch:
            seen[0] = step
            return batch(step)

        run.batch = counted
        module.forward = usual
        wrap(module, lambda forward, *args, **kwargs: (wrong if seen[0] >= number else forward)(*args, **kwargs))

    return late


def recording(*steps: int) -> Plant:
    def plant(run: Experiment) -> None:
        run.settings["step"] = list(steps)

    return plant


class ForgetfulCache:
    """Wraps a module: its cache loses the newest key in every step after the first."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, run: Experiment) -> None:
        def change(forward: Any, *args: Any, past_key_values: Any = None, **kwargs: Any) -> Any:
            if past_key_values is not None and past_key_values.get_seq_length(1) > 0:
                layer = past_key_values.layers[1]
                layer.keys = layer.keys.roll(1, -2)
            return forward(*args, past_key_values=past_key_values, **kwargs)

        wrap(run.module(self.path), change)


def answers(model: str, name: str, plant: Plant, usual: Plant, *modules: str, step: int = 0, call: str = "", says: tuple[str, ...] = (),
            recipe: Recipe = Recipe(steps=1)) -> None:  # noqa: B008  # fmt: skip
    expect = Expect(modules=modules, call=call, says=says, direction="forward", step=step)
    fault(model, name, "forward", together(usual, plant), expect, golden_plant=usual, recipe=recipe)


# One fault a line or two reads as a table; some are longer than a line of code may be.
# ruff: noqa: E501
# fmt: off
L0, L1 = "model.layers.0", "model.layers.1"
answers("olmo2", "inference, eps", assigned(f"{L1}.self_attn.k_norm", "variance_epsilon", 1e-3), inferring, f"{L1}.self_attn.k_norm", call="add", says=(r"0\.001\b",))
answers("electra", "inference in training mode", lambda run: wrap(run.module("electra.encoder.layer.0.output.dropout"),
        lambda forward, x: torch.nn.functional.dropout(x, 0.1, training=True)), inferring, "electra.encoder.layer.0.output.dropout", call="dropout")
answers("gpt_neox", "inference, L0, gelu scaled", scaled("gpt_neox.layers.0.mlp.act", 1.01), inferring, "gpt_neox.layers.0.mlp.act", recipe=Recipe(steps=1, level="L0"))
answers("granite", "inference, L1, md5", edited(f"{L0}.mlp", "self.up_proj(x))", "self.up_proj(x) * 1.0001)"), inferring, call="mul", recipe=Recipe(steps=1, level="L1", summary="md5"))
answers("starcoder2", "generate, cache rolled", ForgetfulCache(f"{L1}.self_attn"), generating, f"{L1}.self_attn", recipe=Recipe(steps=1))
answers("granite", "generate, head scaled", scaled("lm_head", -1.0), generating, "lm_head", call="mul")
answers("falcon", "generate, positions", edited("transformer", "position_ids = torch.arange(inputs_embeds.shape[1], device=inputs_embeds.device) + past_seen_tokens",
        "position_ids = torch.arange(inputs_embeds.shape[1], device=inputs_embeds.device)"), stepping,
        "transformer", "transformer.rotary_emb")
answers("swin", "inference, tensors, softmax in bf16", edited("swin.encoder.layers.1.blocks.0.attention", "attn_output = self.o_proj(attn_output)",
        "attn_output = self.o_proj(attn_output.bfloat16().float())"), inferring, "swin.encoder.layers.1.blocks.0.attention", recipe=Recipe(steps=1, task="tensor"), says=("bfloat16|bf16|dtype",))
fault("olmo2", "from the third step on", "forward", from_step(2, scaled(f"{L1}.mlp", 1.02), f"{L1}.mlp"), Expect(modules=(f"{L1}.mlp",), step=2, direction="forward"),
      recipe=Recipe(steps=4))
fault("albert", "from the third step on, only this recorded", "forward",
      together(recording(2), from_step(2, scaled("predictions.dense", 1.02), "predictions.dense")), Expect(modules=("predictions.dense",), step=2, direction="forward"),
      golden_plant=recording(2), recipe=Recipe(steps=3))
fault("convnext", "only the third step recorded, another weight", "weights", together(perturbed("classifier.weight", factor=1.05), recording(2)),
      Expect(says=("weight|parameter", r"\d+ of \d+|all"), step=2), golden_plant=recording(2), recipe=Recipe(steps=3))
