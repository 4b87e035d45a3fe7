"""Drives a directed run: the steps of `msprobe run`, with acts at calls, and an end after the last wanted step.

A step has everything since the step before: what prepares the data too. The first begins with the first parameter.
"""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any, Callable

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook

from msprobe.collect.run.directed import DirectedLifecycle, make_directed
from msprobe.collect.seeding import pin_seeds
from msprobe.collect.step_context import StepContext
from msprobe.config import Settings, load
from msprobe.config.directions import Directions, Remedies, write_report
from msprobe.dump import layout
from msprobe.pytorch.debugger import PrecisionDebugger, TorchFrontend
from msprobe.pytorch.directed.calls import DirectedApis, DirectedModules, TorchActs
from msprobe.pytorch.directed.generators import all_states, loader_workers
from msprobe.pytorch.driver import StepDriver
from msprobe.pytorch.seed import seed_all
from msprobe.pytorch.step_hooks import TaskHooks
from msprobe.tasks import make_task

FURTHER = (
    *(f"Torch.{name}" for name in ("rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "normal")),
    "Torch.randperm",
    "Tensor.__getitem__",
)
"""Calls that a plain dump leaves out: those that make random tensors, and those that choose the data."""


def _nothing() -> None:
    """No step is open."""


class DirectedFrontend(TorchFrontend):
    """Records the makers of random tensors too, and the states of the generators."""

    def __init__(self, task: Any, directions: Directions, imported: dict[str, Any]) -> None:
        super().__init__(task)
        if directions.whole:
            self._named = FURTHER
        self._make_hooks = self._directed_hooks
        self.write_generators: Callable[[], None] = _nothing
        """Writes what the calls of the open step have drawn."""
        self._directions = directions
        self._imported = imported

    def _directed_hooks(self, context: StepContext) -> TaskHooks:
        acts = TorchActs(self._directions, context.step, context.rank)
        file = context.writer.directory / layout.GENERATORS
        self.write_generators = partial(self._write, file, acts, self._states())
        return TaskHooks(apis=partial(DirectedApis, acts=acts), modules=partial(DirectedModules, acts=acts))

    def _states(self) -> dict[str, Any]:
        return {
            **all_states(),
            "seeded": torch.initial_seed() != self._imported["torch"][1],
            "hash_randomization": not os.environ.get("PYTHONHASHSEED", "").isdigit(),
        }

    def _write(self, file: Path, acts: TorchActs, start: dict[str, Any]) -> None:
        end = all_states()
        used = {name: state != self._imported[name] for name, state in end.items()}
        facts = {**start, "used": used, "loader_workers": loader_workers(), "threads": torch.get_num_threads()}
        text = json.dumps({"start": facts, "end": end, "draws": acts.draws})
        layout.write_file(file, [text.encode()])
        if self._directions.report and acts.grafts.names:
            write_report(
                f"{self._directions.report}/{file.parent.parent.name}_{file.parent.name}.json", acts.grafts.report()
            )
        self.write_generators = _nothing


class DirectedDriver(StepDriver):
    def __init__(self, directions: Directions) -> None:
        super().__init__(load("pytorch", directions.config))
        self._directions = directions
        self._imported = all_states()
        self._frontend: Any = None
        self._parameter_hook: Any = None

    def install(self) -> None:
        apply_remedies(self._directions.remedies)
        super().install()
        if not self._directions.whole:
            return
        self._parameter_hook = register_module_parameter_registration_hook(self._guard(self._first_parameter))

    def _first_parameter(self, module: Any, name: str, parameter: Any) -> None:
        self._parameter_hook.remove()
        if self._debugger is None and not self._taken_over():
            self._debugger = self._make_debugger(self._settings)
            self._debugger.start()

    def _model_called(self, module: Any) -> None:
        waits = self._put_back is not None and next(module.parameters(), None) is not None
        if waits and self._model is None and self._debugger is not None:
            self._debugger.stop()  # the step continues with hooks on the modules
        super()._model_called(module)

    def _make_debugger(self, settings: Settings) -> PrecisionDebugger:
        made: PrecisionDebugger = make_directed(PrecisionDebugger, settings, self._make_lifecycle)
        return made

    def _make_lifecycle(self, settings: Settings) -> DirectedLifecycle:
        task = make_task(settings)
        self._frontend = DirectedFrontend(task, self._directions, self._imported)
        return DirectedLifecycle(task, self._frontend)

    def finish(self) -> None:
        """The script has ended: a step may still be open."""
        if self._frontend is not None:
            self._frontend.write_generators()
        self.warn_if_nothing_ran()

    def _end_step(self) -> bool:
        self._frontend.write_generators()
        more = super()._end_step()
        assert self._debugger is not None
        last = self._directions.last
        if last is not None and self._debugger._lifecycle.step_number > last:
            raise SystemExit(0)
        if more and self._directions.whole:
            self._debugger.start()
        return more


def apply_remedies(remedies: Remedies) -> None:
    if remedies.threads is not None:
        torch.set_num_threads(remedies.threads)
    if remedies.seed is not None:
        seed_all(remedies.seed, remedies.deterministic)
        pin_seeds(remedies.seed, ((torch, "manual_seed"), (torch.random, "manual_seed")))
    elif remedies.deterministic:
        torch.use_deterministic_algorithms(True, warn_only=True)
