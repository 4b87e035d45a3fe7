"""start, stop, step: one small state machine, the same for both frameworks.

    idle --start--> collecting --stop--> paused --start--> collecting … --step--> idle, next step

Between stop and step the hooks are removed but the step is open: gradients of what ran before stop are
still recorded. step() closes the step. Outside the wanted steps and ranks nothing is installed.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import traceback
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Optional

from msprobe.collect import notices, tokens
from msprobe.collect.guard import MeantForTheScript, guarded
from msprobe.collect.levels import LEVELS
from msprobe.collect.parallel import RunHeader
from msprobe.collect.probe import Probe
from msprobe.collect.run.claims import Claims
from msprobe.collect.run.frontend import Frontend
from msprobe.collect.run.header import run_facts
from msprobe.collect.run.run_summary import RunSummary
from msprobe.collect.step_context import StepContext
from msprobe.collect.task import Task
from msprobe.dump import layout
from msprobe.dump.journal import FLOW_FORMAT
from msprobe.dump.writing.null_writer import NullWriter
from msprobe.dump.writing.writer import RankWriter, Worker
from msprobe.system.interrupts import Turns, WritesOnTerm


class UsageError(MeantForTheScript, ValueError):
    """start() cannot collect anything this way. The message says what to change."""


class Lifecycle:
    """One run of one process."""

    def __init__(self, task: Task, frontend: Frontend) -> None:
        self.settings = task.settings
        self.task = task
        self.step_number = 0
        self._level = LEVELS[task.settings.level]
        self._frontend = frontend
        self._selection = task.selection()
        self._worker = Worker(log=notices.warn)
        self._models: Optional[list[Any]] = None
        self._token_range: Optional[tuple[int, int]] = None
        self._probe: Optional[Probe] = None
        self._writer: Optional[RankWriter] = None
        self._collecting = False
        self._saves_alone = False
        self._rank_id: Optional[int] = None
        self._claims = Claims()
        self._turns = Turns()
        self._on_term = WritesOnTerm(self._write_all)
        self.summary = RunSummary(task.settings, task)
        self._run_facts: dict[str, Any] = {}
        self.closed = False
        self._pid = os.getpid()
        self._at_exit = _close_at_exit(self)

    # What the user calls.

    def start(self, model: Any = None, token_range: Any = None) -> None:
        if not self._is_forked_child():
            self._saves_alone = False
            self._turns.take(lambda: self._start(model, token_range))

    def _start(self, model: Any, token_range: Any) -> None:
        if self._is_replaced():
            return
        self.summary.started = True
        self.summary.starts_without_step += 1
        if not self.wants_more:
            return
        self._remember(model, token_range)
        if self._collecting or not self._wants_step() or not self._wants_rank():
            return
        if self._probe is None:
            self._open_step()
        assert self._probe is not None
        self._collecting = True
        self._guarded(self._probe.install, self._models or (), self._token_range)

    def stop(self) -> None:
        if not self._is_forked_child():
            self._turns.take(self._stop)

    def _stop(self) -> None:
        if not self._collecting:
            return
        assert self._probe is not None
        assert self._writer is not None
        self._collecting = False
        self._guarded(self._probe.remove)
        self._writer.flush()

    def step(self) -> None:
        if not self._is_forked_child():
            self._turns.take(self._step)

    def _step(self) -> None:
        if self._is_replaced():
            return
        self._stop()
        self._close_step()
        self.step_number += 1
        self.summary.starts_without_step = 0
        wanted = self.settings.step
        if not self.wants_more:
            self._models = None  # msprobe does not keep the model alive
        if wanted is not None and self.summary.steps and self.step_number == max(wanted) + 1:
            steps = "all wanted steps are collected" if not self.summary.lost else "all wanted steps have run"
            notices.inform(f"{steps}, in {self.settings.dump_path}; msprobe collects nothing more.")

    def save(self, variable: Any, name: str, save_backward: bool = True) -> None:
        if self._is_forked_child() or self._is_replaced():
            return
        if not self._level.saves_variables:
            notices.warn_once(f'save() works at level "debug" only; the level is "{self.settings.level}".')
        elif not isinstance(name, str) or not name:
            notices.warn_once(f"save() needs a name that is a string, not {name!r}; nothing was saved.")
        elif not self._may_save():
            if self._wants_step() and self.summary.missed_rank is None:
                notices.warn_once("save() works between start() and stop(); nothing was saved.")
        elif self._probe is not None:
            self._probe.save(variable, name, save_backward)

    def _may_save(self) -> bool:
        """save() opens the step in a script that never calls start(). The first start() ends that."""
        if not self.summary.started:
            self._saves_alone = True
        if self._saves_alone and not self._collecting:
            self._turns.take(lambda: self._start(None, None))
        return self._probe is not None and self._collecting

    def set_init_step(self, step: int) -> None:
        if not isinstance(step, int) or isinstance(step, bool) or step < 0:
            raise UsageError(f"set_init_step takes a whole number from 0, not {step!r}.")
        if self._probe is not None or self.summary.steps:
            notices.warn_once("set_init_step() was ignored: call it before the training loop.")
        else:
            self.step_number = step

    # What programs that embed a debugger call.

    def use_model(self, model: Any) -> None:
        """Remembers the model, as start(model) does."""
        self._remember(model, None)

    def use_rank(self, rank: int) -> None:
        """Sets the rank of this process, if the script knows better than the framework."""
        if not isinstance(rank, int) or isinstance(rank, bool) or rank < 0:
            raise UsageError(f"rank_id takes a whole number from 0, not {rank!r}.")
        if rank != self._rank_id:
            self.finish_step()
            self._rank_id = rank

    def use_dump_path(self, dump_path: Path) -> None:
        """Writes there from the next start() on."""
        if dump_path != self.settings.dump_path:
            self.finish_step()
            self._move_to(dump_path)

    def finish_step(self) -> None:
        """Completes the files of an open step. The step continues: it has the same number at the next start()."""
        if not self._is_forked_child():
            self._turns.take(self._finish_step)

    def _finish_step(self) -> None:
        self._stop()
        self._close_step()

    def close(self) -> None:
        """The run ends (process exit, or another debugger takes over): finish, and log what was not collected."""
        if not self._is_forked_child():
            self._turns.take(self._close)

    def close_replaced(self) -> None:
        """Another debugger takes over. Logs nothing if this one was never started."""
        self.summary.replaced = True
        self.close()

    def _close(self) -> None:
        if self.closed:
            return
        self.closed = True
        atexit.unregister(self._at_exit)
        self._stop()
        self._close_step()
        self._worker.close()
        for message in self.task.finish() if self.summary.steps else ():
            notices.inform(message)
        self.summary.log_result(self.step_number, self._selection.list_unmatched(self._frontend.explain_unmatched))

    def give_up(self) -> None:
        """After an error of msprobe: removes what is installed, keeps what is on disk and does nothing from now on."""
        self.closed, self._collecting = True, False
        atexit.unregister(self._at_exit)
        probe, writer = self._probe, self._writer
        self._probe = self._writer = None
        acts: list[Callable[[], Any]] = [self._on_term.remove]
        if probe is not None and writer is not None:
            probe.recorder.closed = True
            acts += [probe.remove, probe.close, writer.finish]
        for act in (*acts, self._worker.close):
            with contextlib.suppress(Exception):
                act()

    @property
    def probe(self) -> Optional[Probe]:
        """The probe of the open step; None between steps and in a forked child."""
        return None if self._is_forked_child() else self._probe

    @property
    def directory(self) -> Optional[Path]:
        """The rank directory of the open step; None between steps."""
        return None if self._is_forked_child() or self._writer is None else self._writer.directory

    @property
    def wants_more(self) -> bool:
        """Whether a later step may still be wanted."""
        return self.settings.step is None or self.step_number <= max(self.settings.step)

    # Opening and closing a step.

    def _open_step(self) -> None:
        task, frontend, models = self.task, self._frontend, self._models or ()
        rank = self._rank()
        if self.settings.dump_path not in self._claims and task.writes_records:
            self._archive(rank)
            if task.files and not self.summary.steps:
                self.summary.log_estimate(frontend.parameter_bytes(models))
        settings = self.settings
        directory = layout.rank_directory(settings.dump_path, self.step_number, rank, frontend.mode_directory(models))
        self._writer = self._make_writer(directory)
        self._selection.restart()
        task.open_step(directory, rank)
        header = RunHeader(self._writer.run_header)
        context = StepContext(
            settings, task, self._level, self._writer, self._selection, self.step_number, rank, header
        )
        self._probe = Probe(frontend.hooks(context))
        self._run_facts = self._run_facts or run_facts(settings)
        self._on_term.install()
        header.add({**self._run_facts, **frontend.facts()})
        self._probe.recorder.on_first_batch = lambda batch: header.add({"first_batch": batch})

    def _make_writer(self, directory: Path) -> RankWriter:
        if not self.task.writes_records:
            return NullWriter(directory)
        head = self.task.make_head(self._frontend.name, directory)
        if self._frontend.numbers_values and self._level.sees_writes and self.task.records_every_call:
            head = replace(head, flow=FLOW_FORMAT)
        return RankWriter(directory, head, self._worker)

    def _write_all(self) -> None:
        """On SIGTERM: all records are in the journal when this returns."""
        if self._writer is not None:
            self._writer.flush()

    def _close_step(self) -> None:
        probe, writer = self._probe, self._writer
        if probe is None or writer is None:
            return
        self._on_term.remove()
        for warning in self._guarded(probe.close) or ():
            notices.warn_once(warning)
        self._probe = self._writer = None
        recorder = probe.recorder
        recorder.closed = True
        self.summary.close_step(self.step_number, writer.finish(), recorder.faults, writer.directory)
        self.summary.add_records(probe.hooks.records_elsewhere)

    def _discard_step(self) -> None:
        """Drops the open step with its files."""
        probe, writer = self._probe, self._writer
        if probe is None or writer is None:
            return
        self._stop()
        self._on_term.remove()
        self._guarded(probe.close)
        self._probe = self._writer = None
        probe.recorder.closed = True
        writer.finish()
        shutil.rmtree(writer.directory, ignore_errors=True)
        with contextlib.suppress(OSError):  # the directory of another rank is next to it
            writer.directory.parent.rmdir()

    def _guarded(self, action: Callable[..., Any], *args: Any) -> Any:
        """Runs code that installs or removes hooks. An error of msprobe is logged like one at a call; the script
        continues."""
        try:
            return action(*args)
        except Exception:
            assert self._probe is not None
            self._probe.recorder.fault(action.__name__, traceback.format_exc())
            return None

    def _archive(self, rank: Optional[int]) -> None:
        root = self._claims.claim(self.settings.dump_path, rank)
        if root != self.settings.dump_path:
            self._move_to(root)

    def _move_to(self, dump_path: Path) -> None:
        self.settings = self.summary.settings = replace(self.settings, dump_path=dump_path)

    # Which steps, ranks and models.

    def _remember(self, model: Any, token_range: Any) -> None:
        if model is not None:
            models = self._frontend.listed_models(model)
            if models is None:
                raise UsageError(
                    f"start(model=…) takes {self._frontend.model_kind} or a list of them, not {type(model).__name__}."
                )
            self._models = models
        if self._level.needs_model and not self._models:
            raise UsageError(
                f'level "{self.settings.level}" collects modules and needs the model: call start(model=your_model).'
            )
        if token_range is not None:
            self._token_range = tokens.parse_range(token_range)
            if self._token_range is None:
                raise UsageError(
                    f"token_range takes [first, last], two whole numbers with 0 <= first <= last, not {token_range!r}."
                )
            if not self._models:
                raise UsageError(
                    "token_range counts the model's forwards and needs it: call start(model, token_range)."
                )

    def _wants_step(self) -> bool:
        return self.settings.step is None or self.step_number in self.settings.step

    def _rank(self) -> Optional[int]:
        return self._frontend.rank() if self._rank_id is None else self._rank_id

    def _wants_rank(self) -> bool:
        if self.settings.rank is None:
            return True
        rank = self._frontend.filter_rank() if self._rank_id is None else self._rank_id
        if rank in self.settings.rank:
            self.summary.missed_rank = None
            return True
        self.summary.missed_rank = rank
        return False

    def _is_replaced(self) -> bool:
        """Whether this debugger has ended. Warns if a later one has replaced it; at exit there is no warning."""
        if self.summary.replaced:
            notices.warn_once(
                "this call has no effect: this debugger was replaced by a newer PrecisionDebugger; use that one."
            )
        return self.closed

    def _is_forked_child(self) -> bool:
        """In a forked child (a DataLoader worker) the debugger does nothing."""
        return os.getpid() != self._pid


def _close_at_exit(lifecycle: Lifecycle) -> Any:
    reference = weakref.ref(lifecycle)

    def close() -> None:
        alive = reference()
        if alive is not None:
            guarded("msprobe", alive.close, alive.give_up)()

    atexit.register(close)
    return close
