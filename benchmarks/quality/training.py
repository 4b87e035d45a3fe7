"""One recorded training run, as the README shows it: forward, backward, clipping, optimizer and scheduler in a step."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

import torch
from architectures import MODELS, Batch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from msprobe.pytorch import PrecisionDebugger


@dataclass(frozen=True)
class Recipe:
    """How the user trains and records. Two runs with equal recipes and no plant are the same run."""

    optimizer: str = "AdamW"
    lr: float = 1e-3
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    momentum: float = 0.9
    loop: str = ""
    """How the optimizer loops: "" as torch chooses, "single", "foreach" or "fused"."""
    decay_biases: bool = True
    schedule: str = "warmup"
    """The learning rate is multiplied by 0.25, 0.5, ...; "late" starts at 0.5; "stuck" stays at 0.25; "none" at 1."""
    clip: Optional[float] = 1.0
    accumulate: int = 1
    divide: bool = True
    loss_scale: float = 1.0
    unscale: bool = True
    zero_grad: bool = True
    ema: Optional[float] = None
    autocast: bool = False
    dtype: str = "float32"
    threads: int = 1
    steps: int = 2
    stop_first: bool = False
    level: str = "mix"
    task: str = "statistics"
    summary: str = "statistics"


@dataclass(frozen=True)
class Outcome:
    """What a run came to: losses, how far each parameter moved, fingerprints of weights and buffers at the start."""

    moved: dict[str, float]
    start: dict[str, float]


@dataclass
class Experiment:
    """What a plant may change before training starts: the model, its data, the loss and the recipe."""

    model: nn.Module
    batch: Callable[[int], Batch]
    loss: Callable[[nn.Module, Batch], Tensor]
    recipe: Recipe
    patches: ExitStack
    groups: Optional[Callable[[nn.Module], Any]] = None
    before_step: list[Callable[[], None]] = field(default_factory=list)
    """Called after the backward, before clipping."""
    inference: bool = False
    """Only the forward, in evaluation mode and without gradients."""
    settings: dict[str, Any] = field(default_factory=dict)
    """More keys of config.json."""
    instead: Optional[Callable[[Path], Optional[Outcome]]] = None
    """Records the run in another way (another framework, another loop)."""

    def module(self, path: str) -> nn.Module:
        return self.model.get_submodule(path)


Plant = Callable[[Experiment], None]


def run(model: str, config: dict[str, Any], recipe: Recipe, plant: Optional[Plant], dump: Path) -> Outcome:
    """Builds, plants, trains and records; every random number is seeded anew.

    Returns what the run came to, to see that a fault had an effect.
    """
    source = MODELS[model]
    torch.manual_seed(0)
    with ExitStack() as patches:
        network = source.build(config)
        if recipe.dtype != "float32":
            network.to(getattr(torch, recipe.dtype))
        experiment = Experiment(network, source.batch, source.loss, recipe, patches)
        if plant is not None:
            plant(experiment)
        torch.manual_seed(1)
        torch.set_num_threads(experiment.recipe.threads)
        try:
            if experiment.instead is not None:
                return experiment.instead(dump) or Outcome({}, {})
            if experiment.inference:
                return _infer(experiment, dump)
            return _train(experiment, dump)
        finally:
            torch.set_num_threads(1)


def _infer(experiment: Experiment, dump: Path) -> Outcome:
    recipe, model = experiment.recipe, experiment.model.eval()
    debugger = _debugger(experiment, dump)
    moved = {}
    for step in range(recipe.steps):
        batch = _cast(experiment.batch(step), recipe.dtype)
        with debugger_step(debugger, model), torch.no_grad():
            moved[f"loss {step}"] = float(experiment.loss(model, batch).double().sum())
    return Outcome(moved, {name: _fingerprint(value) for name, value in model.named_parameters()})


@contextmanager
def debugger_step(debugger: PrecisionDebugger, model: nn.Module) -> Iterator[None]:
    debugger.start(model)
    yield
    debugger.stop()
    debugger.step()


def _train(experiment: Experiment, dump: Path) -> Outcome:
    recipe, model = experiment.recipe, experiment.model
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    start = {name: _fingerprint(value) for name, value in [*model.named_parameters(), *model.named_buffers()]}
    moved: dict[str, float] = {}
    optimizer = _optimizer(experiment)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, SCHEDULES[recipe.schedule])
    average = None
    if recipe.ema is not None:
        average = {name: value.detach().clone() for name, value in model.named_parameters()}
    debugger = _debugger(experiment, dump)
    for step in range(recipe.steps):
        parts = list(_parts(experiment.batch(step), recipe))
        debugger.start(model)
        losses = [_backward(experiment, part) for part in parts]
        if recipe.stop_first:
            debugger.stop()
            debugger.step()
        for hook in experiment.before_step:
            hook()
        if recipe.loss_scale != 1.0 and recipe.unscale:
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad.div_(recipe.loss_scale)
        if recipe.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        optimizer.step()
        scheduler.step()
        if recipe.zero_grad:
            optimizer.zero_grad()
        if average is not None:
            with torch.no_grad():
                for name, value in model.named_parameters():
                    average[name].lerp_(value, 1 - recipe.ema)
        if not recipe.stop_first:
            debugger.stop()
            debugger.step()
        moved[f"loss {step}"] = float(sum(losses))
    with torch.no_grad():
        moved.update({name: float(_local(value - before[name]).norm()) for name, value in model.named_parameters()})
    return Outcome(moved, start)


def _local(value: Tensor) -> Tensor:
    """This rank's part of a sharded tensor."""
    return value.to_local() if isinstance(value, DTensor) else value


def _fingerprint(value: Tensor) -> float:
    """A number that changes with any element and with their order."""
    flat = _local(value.detach()).double().flatten()
    return float((flat * torch.linspace(1, 2, flat.numel(), dtype=torch.float64)).sum())


def _backward(experiment: Experiment, part: Batch) -> Tensor:
    recipe = experiment.recipe
    context = torch.autocast("cpu", torch.bfloat16) if recipe.autocast else nullcontext()
    with context:
        loss = experiment.loss(experiment.model, part)
    if recipe.accumulate > 1 and recipe.divide:
        loss = loss / recipe.accumulate
    if recipe.loss_scale != 1.0:
        loss = loss * recipe.loss_scale
    loss.backward()
    return loss.detach()


def _cast(batch: Batch, dtype: str) -> Batch:
    if dtype == "float32":
        return batch
    kind = getattr(torch, dtype)
    return {key: value.to(kind) if _is_float(value) else value for key, value in batch.items()}


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _parts(batch: Batch, recipe: Recipe) -> Iterator[Batch]:
    """The batch, or its parts where gradients are accumulated, in the dtype of the run."""
    batch = _cast(batch, recipe.dtype)
    count = recipe.accumulate
    for part in range(count):
        yield {k: v.chunk(count)[part] if isinstance(v, Tensor) and count > 1 else v for k, v in batch.items()}


SCHEDULES: dict[str, Callable[[int], float]] = {
    "warmup": lambda step: min(1.0, 0.25 * (step + 1)),
    "late": lambda step: min(1.0, 0.25 * (step + 2)),
    "stuck": lambda step: 0.25,
    "none": lambda step: 1.0,
}


def _optimizer(experiment: Experiment) -> torch.optim.Optimizer:
    recipe, model = experiment.recipe, experiment.model
    parameters: Any = [p for p in model.parameters() if p.requires_grad]
    if experiment.groups is not None:
        parameters = experiment.groups(model)
    elif not recipe.decay_biases:
        parameters = [
            {"params": [p for p in parameters if p.ndim > 1]},
            {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
        ]
    options: dict[str, Any] = {"lr": recipe.lr, "weight_decay": recipe.weight_decay}
    if recipe.loop:
        options.update(foreach=recipe.loop == "foreach", fused=recipe.loop == "fused")
    if recipe.optimizer == "SGD":
        return torch.optim.SGD(parameters, momentum=recipe.momentum, **options)
    return getattr(torch.optim, recipe.optimizer)(parameters, betas=recipe.betas, eps=recipe.eps, **options)


def _debugger(experiment: Experiment, dump: Path) -> PrecisionDebugger:
    dump.mkdir(parents=True, exist_ok=True)
    recipe = experiment.recipe
    config: dict[str, Any] = {"task": recipe.task, "level": recipe.level, "dump_path": str(dump), recipe.task: {}}
    config.update(experiment.settings)
    if recipe.task == "statistics":
        config["statistics"]["summary_mode"] = recipe.summary
    path = dump.with_name(f"{dump.name}-{os.getpid()}.json")
    path.write_text(json.dumps(config))
    return PrecisionDebugger(config_path=str(path))
