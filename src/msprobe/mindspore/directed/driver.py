"""Drives a directed run of a MindSpore script in PYNATIVE mode, and ends it after the last wanted step.

A step has everything since the step before: what prepares the data too. The first begins with the first Cell that is
made. A step ends when the optimizer has run; if it runs inside the model (TrainOneStepCell), when the model returns.
"""

from __future__ import annotations

import functools
import json
import os
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Callable, Optional

import mindspore
from mindspore import nn
from mindspore.experimental import optim

from msprobe.collect import notices
from msprobe.collect.run.directed import DirectedLifecycle, make_directed
from msprobe.collect.seeding import pin_seeds
from msprobe.collect.step_context import StepContext
from msprobe.config import Settings, load
from msprobe.config.directions import REFUSED, Directions, Remedies
from msprobe.dump import layout
from msprobe.graphdump.dumping.running import is_scheduler
from msprobe.mindspore.debugger import MindSporeFrontend, PrecisionDebugger
from msprobe.mindspore.directed.calls import DirectedApis, DirectedCells, MindSporeActs
from msprobe.mindspore.directed.generators import all_states
from msprobe.mindspore.header import in_graph_mode
from msprobe.mindspore.seed import seed_all
from msprobe.mindspore.step_hooks import TaskHooks
from msprobe.tasks import make_task

_IN_GRAPH = (
    "MindSpore is in graph mode: msprobe sees single calls only in PYNATIVE mode. Call "
    "mindspore.set_context(mode=mindspore.PYNATIVE_MODE) in the script"
)
_OPTIMIZERS = (nn.Optimizer, optim.Optimizer)


class DirectedFrontend(MindSporeFrontend):
    """Also writes the states of the generators."""

    def __init__(self, task: Any, directions: Directions, imported: dict[str, Any]) -> None:
        super().__init__(task)
        self._make_hooks = self._directed_hooks
        self._directions = directions
        self._imported = imported
        self.acts: Optional[MindSporeActs] = None
        self._write: Optional[Callable[[], None]] = None

    def _directed_hooks(self, context: StepContext) -> TaskHooks:
        self.acts = acts = MindSporeActs(self._directions, context.step, context.rank)
        file = context.writer.directory / layout.GENERATORS
        self._write = partial(self._write_states, file, acts, all_states())
        return TaskHooks(apis=partial(DirectedApis, acts=acts), cells=partial(DirectedCells, acts=acts))

    def mode_directory(self, models: Sequence[Any]) -> None:
        """All steps are in one place: a compiled region is one record."""

    def write_generators(self) -> None:
        """Writes what the calls of the open step have drawn."""
        if self._write is not None:
            self._write()
        self._write = None

    def _write_states(self, file: Path, acts: MindSporeActs, start: dict[str, Any]) -> None:
        now = all_states()
        facts = {
            **start,
            "seeded": now["mindspore"][1] is not None,
            "hash_randomization": not os.environ.get("PYTHONHASHSEED", "").isdigit(),
            "used": {name: state != self._imported[name] for name, state in now.items()},
            "threads": mindspore.get_context("runtime_num_threads"),
        }
        layout.write_file(file, [json.dumps({"start": facts, "end": now, "draws": acts.draws}).encode()])


class DirectedDriver:
    """Installed once, after mindspore is imported. Patches `Cell.__init__` and `Cell.__call__`."""

    def __init__(self, directions: Directions) -> None:
        self._directions = directions
        self._settings = load("mindspore", directions.config)
        self._imported = all_states()
        self._debugger: Any = None
        self._frontend: Any = None
        self._model: Any = None
        self._depth = 0
        self._stepped = False
        self._over = False
        self._pid = os.getpid()

    def install(self) -> None:
        apply_remedies(self._directions.remedies)
        if is_scheduler():
            return
        self._patch_init()
        self._patch_call()

    @property
    def collected(self) -> bool:
        return self._debugger is not None

    def finish(self) -> None:
        """The script has ended: a step may still be open."""
        if self._over or os.getpid() != self._pid:
            return
        if self._model is None and in_graph_mode():
            self._write_refusal()
        if self._frontend is not None:
            self._guard(self._frontend.write_generators)()

    def _patch_init(self) -> None:
        original = nn.Cell.__init__
        cell_made = self._guard(self._cell_made)

        @functools.wraps(original)
        def made(cell: Any, *args: Any, **kwargs: Any) -> None:
            if nn.Cell.__init__ is made:
                nn.Cell.__init__ = original
            cell_made()
            original(cell, *args, **kwargs)

        nn.Cell.__init__ = made

    def _patch_call(self) -> None:
        original = nn.Cell.__call__
        enter, leave = self._guard(self._enter), self._guard(self._leave)

        @functools.wraps(original)
        def called(cell: Any, *args: Any, **kwargs: Any) -> Any:
            enter(cell)
            try:
                return original(cell, *args, **kwargs)
            finally:
                leave(cell)

        nn.Cell.__call__ = called

    def _cell_made(self) -> None:
        if self._debugger is None and not self._gives_way():
            self._debugger = self._make_debugger(self._settings)
            self._debugger.start()

    def _enter(self, cell: Any) -> None:
        self._depth += 1
        if self._depth > 1 or self._model is not None or self._gives_way() or isinstance(cell, _OPTIMIZERS):
            return
        if not any(True for _ in cell.get_parameters()):
            return
        if in_graph_mode():
            self._write_refusal()
            raise SystemExit(2)  # nothing that the script does from here on can be compared
        self._cell_made()
        self._model = cell
        self._debugger.stop()  # the step continues with hooks on the Cells
        self._debugger.start(cell)

    def _leave(self, cell: Any) -> None:
        self._depth -= 1
        self._stepped = self._stepped or isinstance(cell, _OPTIMIZERS)
        if self._stepped and not self._depth and self._debugger is not None and not self._gives_way():
            self._stepped = False
            self._end_step()

    def _end_step(self) -> None:
        self._repeat_at_end()
        self._frontend.write_generators()
        self._debugger.step()
        last = self._directions.last
        if last is not None and self._debugger._lifecycle.step_number > last:
            self._over = True
            raise SystemExit(0)
        self._debugger.start()

    def _repeat_at_end(self) -> None:
        probe = self._debugger._lifecycle.probe
        waiting = self._frontend.acts.at_end if self._frontend.acts is not None else []
        if probe is None or not waiting:
            return
        probe.recorder.closed = True  # what runs now is not part of the script
        try:
            while waiting:
                waiting.pop(0)()
        finally:
            probe.recorder.closed = False

    def _make_debugger(self, settings: Settings) -> PrecisionDebugger:
        made: PrecisionDebugger = make_directed(PrecisionDebugger, settings, self._make_lifecycle)
        return made

    def _make_lifecycle(self, settings: Settings) -> DirectedLifecycle:
        task = make_task(settings)
        self._frontend = DirectedFrontend(task, self._directions, self._imported)
        return DirectedLifecycle(task, self._frontend)

    def _gives_way(self) -> bool:
        """Whether to ignore this call: it runs in a forked worker, or the script has its own debugger."""
        return self._over or os.getpid() != self._pid or PrecisionDebugger._current is not self._debugger

    def _write_refusal(self) -> None:
        """The parent prints the reason."""
        self._over = True
        (Path(self._directions.config).parent / REFUSED).write_text(_IN_GRAPH, encoding="utf-8")

    def _guard(self, act: Callable[..., None]) -> Callable[..., None]:
        """Keeps our errors away from the script: logs the error and stops collecting; the script continues."""

        def hook(*call: Any) -> None:
            try:
                act(*call)
            except Exception:
                self._over = True
                notices.warn(f"msprobe stopped collecting; the script continues:\n{traceback.format_exc()}")

        return hook


def apply_remedies(remedies: Remedies) -> None:
    if remedies.threads is not None:
        mindspore.set_context(runtime_num_threads=remedies.threads)
    if remedies.seed is not None:
        seed_all(remedies.seed)
        pin_seeds(remedies.seed, ((mindspore, "set_seed"), (mindspore, "manual_seed")))
    if remedies.deterministic:
        mindspore.set_deterministic(True)
        mindspore.set_deterministic = lambda deterministic: None  # MindSpore refuses a second call
