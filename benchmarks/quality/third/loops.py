"""Training loops of different users: Trainer, accelerate, Lightning, closures, two optimizers, scalers, averages.

Each function returns a plant that records the run in its own way. Two runs differ in the options that they are given.
"""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from training import Experiment, Outcome, Plant, _debugger, _fingerprint

STEPS = 2
Make = Callable[[nn.Module], torch.optim.Optimizer]


def _outcome(run: Experiment, dump: Path, train: Callable[[Any], list[float]]) -> Outcome:
    model = run.model
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    start = {name: _fingerprint(value) for name, value in [*model.named_parameters(), *model.named_buffers()]}
    losses = train(_debugger(run, dump))
    moved = {f"loss {step}": loss for step, loss in enumerate(losses)}
    with torch.no_grad():
        moved.update({name: float((value - before[name]).norm()) for name, value in model.named_parameters()})
    return Outcome(moved, start)


def _looped(train: Callable[[Experiment, Any], list[float]]) -> Plant:
    def plant(run: Experiment) -> None:
        run.instead = lambda dump: _outcome(run, dump, lambda debugger: train(run, debugger))

    return plant


def custom(
    make: Make,
    *,
    clip: Optional[float] = None,
    schedule: Optional[Callable[[torch.optim.Optimizer], Any]] = None,
    scale: float = 0.0,
    unscale_first: bool = True,
    ema: float = 0.0,
    parts: int = 1,
    steps: int = STEPS,
    autocast: Any = None,
    value_clip: Optional[float] = None,
) -> Plant:
    """A loop by hand with any optimizer; `scale` uses a GradScaler, `ema` an averaged model."""

    def train(run: Experiment, debugger: Any) -> list[float]:
        model = run.model
        optimizer = make(model)
        scheduler = schedule(optimizer) if schedule else None
        scaler = torch.amp.GradScaler("cpu", init_scale=scale, enabled=bool(scale))
        average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=None, avg_fn=_decay(ema)) if ema else None
        losses = []
        for step in range(steps):
            debugger.start(model)
            for part in range(parts):
                batch = {k: v.chunk(parts)[part] if isinstance(v, Tensor) else v for k, v in run.batch(step).items()}
                with torch.autocast("cpu", autocast) if autocast else nullcontext():
                    loss = run.loss(model, batch) / parts
                scaler.scale(loss).backward()
            if unscale_first:
                scaler.unscale_(optimizer)
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            if value_clip is not None:
                nn.utils.clip_grad_value_(model.parameters(), value_clip)
            scaler.step(optimizer)
            scaler.update()
            if scheduler is not None:
                scheduler.step()
            optimizer.zero_grad()
            if average is not None:
                average.update_parameters(model)
            debugger.stop()
            debugger.step()
            losses.append(float(loss))
        return losses

    return _looped(train)


def _decay(rate: float) -> Callable[[Tensor, Tensor, Any], Tensor]:
    return lambda averaged, current, count: rate * averaged + (1 - rate) * current


def closure(lr: float = 0.5, iterations: int = 3, history: int = 10, line_search: Optional[str] = None) -> Plant:
    """LBFGS, which calls the model as often as it likes."""

    def train(run: Experiment, debugger: Any) -> list[float]:
        model = run.model
        optimizer = torch.optim.LBFGS(
            model.parameters(), lr=lr, max_iter=iterations, history_size=history, line_search_fn=line_search
        )
        losses = []
        for step in range(STEPS):
            batch = run.batch(step)

            def evaluate(batch: Any = batch) -> Tensor:
                optimizer.zero_grad()
                loss = run.loss(model, batch)
                loss.backward()
                return loss

            debugger.start(model)
            losses.append(float(optimizer.step(evaluate)))
            debugger.stop()
            debugger.step()
        return losses

    return _looped(train)


def adversarial(
    critic_lr: float = 2e-3, betas: tuple[float, float] = (0.5, 0.9), detach: bool = True, turns: int = 1,
    clear_critic: bool = True,
) -> Plant:  # fmt: skip
    """A GAN: the critic learns, then the generator; each has an optimizer."""

    def train(run: Experiment, debugger: Any) -> list[float]:
        model = run.model
        maker = torch.optim.Adam(model.generator.parameters(), lr=1e-3, betas=betas)
        judge = torch.optim.Adam(model.critic.parameters(), lr=critic_lr, betas=(0.5, 0.9))
        losses = []
        for step in range(STEPS):
            batch = run.batch(step)
            debugger.start(model)
            for _ in range(turns):
                fake = model.generator(batch["noise"])
                seen = fake.detach() if detach else fake
                loss = F.softplus(model.critic(seen)).mean() + F.softplus(-model.critic(batch["real"])).mean()
                if clear_critic:
                    judge.zero_grad()
                loss.backward()
                judge.step()
            if detach:
                maker.zero_grad()
            if clear_critic:
                judge.zero_grad()
            fooled = F.softplus(-model.critic(model.generator(batch["noise"]))).mean()
            fooled.backward()
            maker.step()
            debugger.stop()
            debugger.step()
            losses += [float(loss), float(fooled)]
        return losses

    return _looped(train)


def trainer(**options: Any) -> Plant:
    """The Trainer of transformers; a callback records each step."""

    def train(run: Experiment, debugger: Any) -> list[float]:
        import transformers

        class Record(transformers.TrainerCallback):
            def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                debugger.start(run.model)

            def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                debugger.stop()
                debugger.step()

        data = [
            {key: value[one] for key, value in run.batch(step).items()} for step in range(2 * STEPS) for one in range(4)
        ]
        with tempfile.TemporaryDirectory() as folder:
            settings = {
                "output_dir": folder, "max_steps": STEPS, "per_device_train_batch_size": 4, "learning_rate": 1e-3,
                "use_cpu": True, "report_to": [], "save_strategy": "no", "logging_strategy": "no", "seed": 3,
                "disable_tqdm": True, "dataloader_num_workers": 0, "warmup_steps": 1, "weight_decay": 0.01,
            }  # fmt: skip
            settings.update(options)
            args = transformers.TrainingArguments(**settings)
            made = transformers.Trainer(run.model, args, train_dataset=data, callbacks=[Record()])
            return [made.train().training_loss]

    return _looped(train)


def accelerated(
    lr: float = 1e-3, parts: int = 2, clip: Optional[float] = 1.0, precision: str = "no", always_step: bool = False
) -> Plant:
    """accelerate: prepare, accumulate, clip."""

    def train(run: Experiment, debugger: Any) -> list[float]:
        from accelerate import Accelerator

        helper = Accelerator(cpu=True, gradient_accumulation_steps=parts, mixed_precision=precision)
        optimizer = torch.optim.AdamW(run.model.parameters(), lr=lr)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        model, optimizer, schedule = helper.prepare(run.model, optimizer, schedule)
        losses = []
        for step in range(STEPS):
            debugger.start(model)
            for part in range(parts):
                with helper.accumulate(model):
                    loss = run.loss(model, run.batch(step * parts + part))
                    helper.backward(loss)
                    if helper.sync_gradients and clip is not None:
                        helper.clip_grad_norm_(model.parameters(), clip)
                    optimizer.step()
                    schedule.step()
                    optimizer.zero_grad()
            debugger.stop()
            debugger.step()
            losses.append(float(loss))
        return losses

    return _looped(train)


def lightning(lr: float = 1e-3, **options: Any) -> Plant:
    """Lightning: a module with a training step; hooks record each batch."""

    def train(run: Experiment, debugger: Any) -> list[float]:
        import lightning as pl

        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        losses = []

        class Work(pl.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.model = run.model

            def training_step(self, batch: Any, index: int) -> Tensor:
                loss = run.loss(self.model, batch)
                losses.append(float(loss))
                return loss

            def configure_optimizers(self) -> Any:
                optimizer = torch.optim.NAdam(self.parameters(), lr=lr)
                return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]

            def on_train_batch_start(self, *args: Any) -> None:
                debugger.start(self.model)

            def on_train_batch_end(self, *args: Any) -> None:
                debugger.stop()
                debugger.step()

        loader = torch.utils.data.DataLoader([run.batch(step) for step in range(STEPS)], batch_size=None)
        with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
            warnings.simplefilter("ignore")
            settings = {
                "max_epochs": 1, "accelerator": "cpu", "devices": 1, "logger": False, "enable_checkpointing": False,
                "enable_progress_bar": False, "enable_model_summary": False, "default_root_dir": folder,
            }  # fmt: skip
            pl.Trainer(**{**settings, **options}).fit(Work(), loader)
        return losses

    return _looped(train)
