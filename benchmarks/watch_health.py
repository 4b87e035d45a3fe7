"""Alarms of the monitor on small transformers models: none while they train well, one at the right place when not.

python benchmarks/watch_health.py [--steps 2000] [--seed 0] [--part healthy|low|sick] [--only MODEL]

The rules were fitted to the plants and models of tests/watch. These models and plants are others: five architectures
with AdamW, warm-up and a cosine schedule, clipping, dropout, and autocast with a gradient scaler; 19 ways to break a
training at a known step. A plant counts as found when no alarm comes before it, and one of its rules names its target
within five steps.

The part "low" trains the same five models in bfloat16 and in emulated mxfp8, with the targets of low-precision health.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

import tables
import torch

from msprobe.pytorch import Monitor
from msprobe.pytorch.emulation.linear import emulating
from msprobe.stats.formats import BY_NAME
from msprobe.watch.reading.run import Run

VOCABULARY = 64
LENGTH = 16
BATCH = 8
TARGETS = ["weight", "grad", "grad_before_clip", "state", "update", "output"]
HEALTH = {
    "targets": ["weight", "grad", "attention_logits", "outliers", "quantisation"],
    "quantisation": {"formats": ["mxfp8"], "every": 20},
}
SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}


def make_model(name: str) -> Any:
    import transformers as hf

    if name == "gpt2":
        config = hf.GPT2Config(vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2)
        return hf.GPT2LMHeadModel(config)
    if name == "bert":
        return hf.BertForMaskedLM(hf.BertConfig(vocab_size=VOCABULARY, max_position_embeddings=LENGTH, **SMALL))
    if name == "vit":
        return hf.ViTForImageClassification(
            hf.ViTConfig(image_size=16, patch_size=4, num_labels=4, hidden_dropout_prob=0.1, **SMALL)
        )
    shared = {"vocab_size": VOCABULARY, "max_position_embeddings": LENGTH, "num_key_value_heads": 2, **SMALL}
    if name == "mixtral":
        config = hf.MixtralConfig(num_local_experts=4, output_router_logits=True, **shared)
        return hf.MixtralForCausalLM(config)
    return hf.LlamaForCausalLM(hf.LlamaConfig(**shared))


def make_batch(name: str, data: torch.Generator) -> dict[str, torch.Tensor]:
    if name == "vit":
        labels = torch.randint(4, (BATCH,), generator=data)
        noise = torch.randn(BATCH, 3, 16, 16, generator=data)
        return {"pixel_values": noise + labels[:, None, None, None] * 0.5, "labels": labels}
    steps = 3 + 4 * (torch.rand(BATCH, LENGTH, generator=data) < 0.2).long()
    tokens = (torch.randint(VOCABULARY, (BATCH, 1), generator=data) + steps.cumsum(1)) % VOCABULARY
    if name != "bert":
        return {"input_ids": tokens, "labels": tokens.clone()}
    hidden = torch.rand(BATCH, LENGTH, generator=data) < 0.15
    hidden[:, 0] = True
    return {"input_ids": tokens.masked_fill(hidden, 0), "labels": tokens.masked_fill(~hidden, -100)}


@dataclass
class Training:
    """What a plant may change."""

    name: str
    precision: str
    steps: int
    seed: int
    zeroes: bool = True
    factor: float = 1.0
    clips: bool = True
    spoil: Callable[[dict[str, torch.Tensor]], None] = field(default=lambda batch: None)

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        self.model = make_model(self.name).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 2e-3, weight_decay=0.01)
        warm = max(1, self.steps // 20)
        rises = torch.optim.lr_scheduler.LinearLR(self.optimizer, 0.01, 1.0, warm)
        falls = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, self.steps - warm)
        self.schedule = torch.optim.lr_scheduler.SequentialLR(self.optimizer, [rises, falls], [warm])
        self.scaler = torch.amp.GradScaler("cpu", enabled=self.precision == "fp16")
        self.data = torch.Generator().manual_seed(self.seed + 1)

    def step(self) -> torch.Tensor:
        batch = make_batch(self.name, self.data)
        self.spoil(batch)
        if self.zeroes:
            self.optimizer.zero_grad()
        dtype = torch.float16 if self.precision == "fp16" else torch.bfloat16
        with contextlib.ExitStack() as stack:
            if self.precision in BY_NAME and self.precision not in ("fp16", "bf16"):
                stack.enter_context(emulating(BY_NAME[self.precision]))
            elif self.precision != "fp32":
                stack.enter_context(torch.autocast("cpu", dtype))
            loss = self.model(**batch).loss
        self.scaler.scale(loss * self.factor).backward()
        self.scaler.unscale_(self.optimizer)
        if self.clips:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.schedule.step()
        return loss.detach()


def train(
    training: Training, folder: Path, plant: Callable[[Training], None] | None, at: int, **config: Any
) -> list[Any]:
    scaler = training.scaler if training.precision == "fp16" else None
    config = {"dump_path": str(folder), "targets": TARGETS, **config}
    monitor = Monitor(training.model, training.optimizer, config, scaler=scaler)
    for step in range(training.steps):
        if plant is not None and step == at:
            plant(training)
        monitor.step(loss=training.step())
    monitor.close()
    run = Run(folder)
    alarms = run.alarms()
    run.close()
    return alarms


HEALTHY = {"gpt2": "fp32", "llama": "bf16", "bert": "fp16", "vit": "fp32", "mixtral": "bf16"}


def healthy(steps: int, seed: int, work: Path) -> Iterator[list[Any]]:
    for name, precision in HEALTHY.items():
        training = Training(name, precision, steps, seed)
        alarms = train(training, work / name, None, 0)
        first = f"{alarms[0].rule}: {alarms[0].sentence}" if alarms else ""
        row = [name, precision, str(steps), str(len(alarms)), first]
        print(*row, flush=True)
        yield row


def low(steps: int, seed: int, work: Path, only: str | None = None) -> Iterator[list[Any]]:
    for name in HEALTHY if only is None else (only,):
        for precision in ("bf16", "mxfp8"):
            alarms = train(Training(name, precision, steps, seed), work / f"{name}-{precision}", None, 0, **HEALTH)
            row = [
                name,
                precision,
                str(steps),
                str(len(alarms)),
                f"{alarms[0].rule}: {alarms[0].sentence}" if alarms else "",
            ]
            print(*row, flush=True)
            yield row


def random_labels(training: Training) -> None:
    training.spoil = lambda batch: batch["labels"].random_(0, VOCABULARY)


def frozen_layer(training: Training) -> None:
    training.model.model.layers[1].mlp.requires_grad_(False)


def kept_gradients(training: Training) -> None:
    training.zeroes = False


def scaled_loss(training: Training) -> None:
    training.factor, training.clips = 1000.0, False


def overflow(training: Training) -> None:
    training.model.model.layers[0].mlp.register_forward_hook(lambda module, args, output: output * 1e7)


def dead_norm(training: Training) -> None:
    with torch.no_grad():
        training.model.model.layers[1].post_attention_layernorm.weight.zero_()
    training.model.model.layers[1].post_attention_layernorm.weight.requires_grad_(False)


def bit_flip(training: Training) -> None:
    with torch.no_grad():
        training.model.model.layers[0].self_attn.q_proj.weight[3, 3] = 1e4


def bad_state(training: Training) -> None:
    for state in training.optimizer.state.values():
        state["exp_avg_sq"].mul_(1e12)


def all_masked(training: Training) -> None:
    def spoil(batch: dict[str, torch.Tensor]) -> None:
        mask = torch.zeros(BATCH, 1, LENGTH, LENGTH)
        mask[0] = float("-inf")
        batch["attention_mask"] = mask

    training.spoil = spoil


def detached(training: Training) -> None:
    training.model.model.layers[0].mlp.register_forward_hook(lambda module, args, output: output.detach())


def bad_row(training: Training) -> None:
    with torch.no_grad():
        training.model.model.embed_tokens.weight[5] = float("nan")


def wrong_sign(training: Training) -> None:
    training.model.model.layers[1].mlp.down_proj.weight.register_hook(lambda gradient: -gradient)


def fast_layer(training: Training) -> None:
    group, mine = training.optimizer.param_groups[0], list(training.model.model.layers[1].parameters())
    group["params"] = [one for one in group["params"] if all(one is not other for other in mine)]
    training.optimizer.add_param_group({"params": mine, "lr": 100 * group["lr"]})


def dead_expert(training: Training) -> None:
    def replace(module: Any, args: Any, output: Any) -> Any:
        return *output[:2], torch.where(output[2] == 2, torch.full_like(output[2], 3), output[2])

    training.model.model.layers[1].mlp.gate.register_forward_hook(replace)


def saturated(training: Training) -> None:
    training.model.model.layers[0].self_attn.q_proj.register_forward_hook(lambda module, args, output: 1000 * output)


def lost_momentum(training: Training) -> None:
    for state in training.optimizer.state.values():
        state["exp_avg"].zero_()


def small_loss(training: Training) -> None:
    training.factor = 1 / 1024


def noisy_labels(training: Training) -> None:
    def spoil(batch: dict[str, torch.Tensor]) -> None:
        chosen = torch.rand(batch["labels"].shape) < 0.3
        batch["labels"][chosen] = torch.randint(VOCABULARY, (int(chosen.sum()),))

    training.spoil = spoil


def old_weights(training: Training) -> None:
    training.model.load_state_dict(make_model(training.name).state_dict())


SICK: list[tuple[Callable[[Training], None], str, str, tuple[str, ...], str]] = [
    (random_labels, "bf16", "labels are random", ("loss_spike", "loss_drift", "spike"), ""),
    (frozen_layer, "fp32", "a layer is frozen by mistake", ("frozen",), "layers.1.mlp"),
    (kept_gradients, "fp32", "gradients are not set to zero", ("stale",), "grad"),
    (scaled_loss, "bf16", "the loss is 1000 times larger, no clipping", ("spike",), "grad"),
    (overflow, "fp16", "fp16 overflows after a layer", ("nan", "spike"), "layers.0"),
    (dead_norm, "fp32", "the weight of a norm is zero", ("zero", "dead"), "layers.1"),
    (bit_flip, "bf16", "one element of a weight is wrong", ("update_large", "spike"), "layers.0.self_attn.q_proj"),
    (bad_state, "fp32", "second moments are 1e12 times too large", ("update_small", "frozen", "spike"), ""),
    (all_masked, "fp32", "one sequence is masked completely", ("nan",), "self_attn"),
    (detached, "bf16", "a branch is detached", ("frozen", "zero"), "layers.0.mlp"),
    (bad_row, "bf16", "a row of the embedding is NaN", ("nan",), "embed_tokens"),
    (wrong_sign, "fp32", "the gradient of one matrix has the wrong sign", ("spike", "drift"), "layers.1.mlp.down_proj"),
    (fast_layer, "fp32", "one layer has 100 times the learning rate", ("update_large", "spike"), "layers.1"),
    (dead_expert, "bf16", "an expert is no longer used", ("dead", "zero", "frozen"), "layers.1.mlp.experts"),
    (saturated, "bf16", "queries are 1000 times too large", ("spike",), "layers.0.self_attn"),
    (lost_momentum, "fp32", "first moments are lost", ("state_decay", "update_small"), "exp_avg"),
    (small_loss, "fp32", "the loss is 1024 times smaller", ("vanishing", "clipped"), "grad"),
    (noisy_labels, "fp32", "30% of the labels are random", ("loss_spike", "loss_drift"), "loss"),
    (old_weights, "bf16", "untrained weights are loaded", ("loss_spike", "loss_drift"), "loss"),
]


def sick(steps: int, seed: int, work: Path) -> Iterator[list[Any]]:
    at = steps // 2
    for plant, precision, words, rules, target in SICK:
        training = Training("mixtral" if plant is dead_expert else "llama", precision, steps, seed)
        alarms = train(training, work / plant.__name__, plant, at)
        early = [alarm for alarm in alarms if alarm.step < at]
        named = [one for one in alarms if one.rule in rules and target in one.target and at <= one.step <= at + 5]
        shown = (early or named or alarms or [None])[0]
        what = "" if shown is None else f"step {shown.step - at:+d} {shown.rule} {shown.target}"
        yield [words, precision, "yes" if named and not early else "NO", what]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000, help="of each healthy run; a sick one has a fifth of it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", choices=("healthy", "low", "sick"))
    parser.add_argument("--only", choices=tuple(HEALTHY), help="with --part low: this model only")
    args = parser.parse_args()
    torch.set_num_threads(1)
    work = Path(tempfile.mkdtemp(prefix="msprobe-health-"))
    try:
        if args.part in (None, "healthy"):
            rows = list(healthy(args.steps, args.seed, work))
            print(tables.table(["healthy model", "precision", "steps", "alarms", "first"], rows), flush=True)
        if args.part in (None, "low"):
            rows = list(low(args.steps, args.seed, work, args.only))
            print(tables.table(["healthy model", "precision", "steps", "alarms", "first"], rows), flush=True)
        if args.part in (None, "sick"):
            rows = list(sick(args.steps // 5, args.seed, work))
            print(tables.table(["plant", "precision", "found", "alarm"], rows), flush=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
