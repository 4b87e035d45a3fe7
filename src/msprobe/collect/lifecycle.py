"""start, stop, step: one small state machine, the same for both frameworks.

    idle --start--> collecting --stop--> paused --start--> collecting … --step--> idle, next step

Between stop and step the probes are off but the step is open: gradients of what ran before stop are
still recorded. step() closes the step. Outside the wanted steps and ranks nothing is installed.
"""

from __future__ import annotations

import atexit
import os
import traceback
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Callable, Optional, Protocol

from msprobe.collect import notices
from msprobe.collect.header import run_facts
from msprobe.collect.interrupts import Turns, WritesOnTerm
from msprobe.collect.recorder import Recorder
from msprobe.collect.run_summary import RunSummary
from msprobe.collect.selection import Selection
from msprobe.config import Settings
from msprobe.dump import layout
from msprobe.dump.archive import archive_older_run
from msprobe.dump.null_writer import NullWriter
from msprobe.dump.writer import Head, RankWriter, Worker


class UsageError(ValueError):
    """start() was called in a way that cannot collect anything; the message says what to change."""


class Probe(Protocol):
    """The hooks of one step. `install` and `remove` may alternate; `close` ends it for good."""

    recorder: Recorder

    def install(self, models: Sequence[Any], token_range: Optional[tuple[int, int]]) -> None: ...

    def remove(self) -> None: ...

    def close(self) -> list[str]:
        """Writes what is open. Returns what the user should be told, a sentence each."""

    def save(self, variable: Any, name: str, with_gradient: bool) -> None: ...


class Frontend(Protocol):
    """What a framework brings to the lifecycle."""

    name: str
    model_kind: str

    def rank(self) -> Optional[int]:
        """The global rank, or None in a run without ranks."""

    def filter_rank(self) -> int:
        """The rank that the `rank` key is compared with."""

    def listed_models(self, model: Any) -> Optional[list[Any]]:
        """The models as a list, or None when `model` is not one of the framework's."""

    def mode_directory(self, settings: Settings, models: Sequence[Any]) -> Optional[str]:
        """`pynative` where a part of the models runs compiled and is kept apart, else None."""

    def probe(self, settings: Settings, writer: RankWriter, selection: Selection) -> Probe: ...

    def facts(self) -> dict[str, Any]:
        """Versions, devices, determinism: the framework's part of run.json."""

    def parameter_bytes(self, models: Sequence[Any]) -> int: ...

    def ending(self) -> list[str]:
        """What the task has to say when the run ends, a message each."""


def selection_of(settings: Settings) -> Selection:
    section = settings.section
    scope, wanted = getattr(section, "scope", ()), getattr(section, "list", ())
    if len(scope) == 1 or settings.task == "free_benchmark":  # calls, no range; at level L2 of PyTorch one API
        scope, wanted = (), scope or wanted
    files = settings.task == "tensor" or tuple(getattr(section, "tensor_list", ())) or False
    return Selection(scope, wanted, getattr(section, "data_mode", ("all",)), files)


class Lifecycle:
    """One run of one process."""

    def __init__(self, settings: Settings, frontend: Frontend) -> None:
        self.settings = settings
        self.step_number = 0
        self._frontend = frontend
        self._selection = selection_of(settings)
        self._worker = Worker(tell=notices.warn)
        self._models: Optional[list[Any]] = None
        self._token_range: Optional[tuple[int, int]] = None
        self._probe: Optional[Probe] = None
        self._writer: Optional[RankWriter] = None
        self._collecting = False
        self._turns = Turns()
        self._on_term = WritesOnTerm(self._write_all)
        self.account = RunSummary(settings)
        self._run_facts: dict[str, Any] = {}
        self.closed = False
        self._pid = os.getpid()
        for warning in settings.warnings:
            notices.warn_once(f"{warning}.")
        self._at_exit = _close_at_exit(self)

    # What the user calls.

    def start(self, model: Any = None, token_range: Any = None) -> None:
        if not self._is_foreign():
            self._turns.take(lambda: self._start(model, token_range))

    def _start(self, model: Any, token_range: Any) -> None:
        self.account.started = True
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
        if not self._is_foreign():
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
        if not self._is_foreign():
            self._turns.take(self._step)

    def _step(self) -> None:
        self._stop()
        self._close_step()
        self.step_number += 1
        wanted = self.settings.step
        if not self.wants_more:
            self._models = None  # nothing of ours keeps the model alive
        if wanted is not None and self.account.steps and self.step_number == max(wanted) + 1:
            whole = "all wanted steps are collected" if not self.account.lost else "all wanted steps have run"
            notices.inform(f"{whole}, in {self.settings.dump_path}; probes are off.")

    def save(self, variable: Any, name: str, save_backward: bool = True) -> None:
        if self._is_foreign():
            return
        if self.settings.level != "debug":
            notices.warn_once(f'save() works at level "debug" only; the level is "{self.settings.level}".')
        elif not isinstance(name, str) or not name:
            notices.warn_once(f"save() needs a name that is a string, not {name!r}; nothing was saved.")
        elif self._probe is None or not self._collecting:
            if self._wants_step() and self.account.missed_rank is None:
                notices.warn_once("save() works between start() and stop(); nothing was saved.")
        else:
            self._probe.save(variable, name, save_backward)

    def set_init_step(self, step: int) -> None:
        if not isinstance(step, int) or isinstance(step, bool) or step < 0:
            raise UsageError(f"set_init_step takes a whole number from 0, not {step!r}.")
        if self._probe is not None or self.account.steps:
            notices.warn_once("set_init_step() belongs before the training loop; it was ignored.")
        else:
            self.step_number = step

    def close(self) -> None:
        """The run ends (process exit, or another debugger takes over): finish, and tell what came to nothing."""
        if not self._is_foreign():
            self._turns.take(self._close)

    def _close(self) -> None:
        if self.closed:
            return
        self.closed = True
        atexit.unregister(self._at_exit)
        self._stop()
        self._close_step()
        self._worker.close()
        for told in self._frontend.ending():
            notices.inform(told)
        self.account.tell_result(self.step_number, self._selection.matched_nothing())

    @property
    def probe(self) -> Optional[Probe]:
        """The probe of the open step; None between steps and in a forked child."""
        return None if self._is_foreign() else self._probe

    @property
    def wants_more(self) -> bool:
        """Whether a later step may still be wanted."""
        return self.settings.step is None or self.step_number <= max(self.settings.step)

    # Opening and closing a step.

    def _open_step(self) -> None:
        settings = self.settings
        rank = self._frontend.rank()
        saves = settings.task in ("tensor", "overflow_check") or bool(getattr(settings.section, "tensor_list", ()))
        if not self.account.steps and settings.task != "free_benchmark":
            self._archive(rank)
            if saves and settings.task != "overflow_check":
                self.account.tell_estimate(self._frontend.parameter_bytes(self._models or ()))
        settings = self.settings
        parent = self._frontend.mode_directory(settings, self._models or ())
        directory = layout.rank_directory(settings.dump_path, self.step_number, rank, parent)
        data_dir = str(directory / layout.TENSORS) if saves else None
        head = Head(settings.task, settings.level, self._frontend.name, data_dir, settings.extra_info)
        records = settings.task != "free_benchmark"
        self._writer = RankWriter(directory, head, self._worker) if records else NullWriter(directory)
        self._selection.restart()
        self._probe = self._frontend.probe(settings, self._writer, self._selection)
        self._run_facts = self._run_facts or run_facts(settings)
        self._on_term.install()
        facts = {**self._run_facts, **self._frontend.facts()}
        header = self._writer.run_header
        header(facts)
        self._probe.recorder.on_first_batch = lambda batch: header({**facts, "first_batch": batch})

    def _write_all(self) -> None:
        """SIGTERM: what was recorded is in the journal when this returns."""
        if self._writer is not None:
            self._writer.flush()

    def _close_step(self) -> None:
        probe, writer = self._probe, self._writer
        if probe is None or writer is None:
            return
        self._on_term.remove()
        for told in self._guarded(probe.close) or ():
            notices.warn_once(told)
        self._probe = self._writer = None
        recorder = probe.recorder
        recorder.closed = True
        self.account.close_step(self.step_number, writer.finish(), recorder.faults, writer.directory)

    def _guarded(self, action: Callable[..., Any], *args: Any) -> Any:
        """A fault of ours while probes go in or out is logged like one at a call: it does not reach the script."""
        try:
            return action(*args)
        except Exception:
            assert self._probe is not None
            self._probe.recorder.fault(action.__name__, traceback.format_exc())
            return None

    def _archive(self, rank: Optional[int]) -> None:
        try:
            root, moved = archive_older_run(self.settings.dump_path, rank)
        except OSError:
            return  # the writer meets the same trouble and tells it
        if root != self.settings.dump_path:
            notices.warn(
                f"another run is in {self.settings.dump_path} and may still write there; this one goes to {root}."
            )
            self.settings = replace(self.settings, dump_path=root)
        if moved is not None:
            notices.inform(f"an earlier dump was in {root}; it is now in {moved}.")

    # Which steps, ranks and models.

    def _remember(self, model: Any, token_range: Any) -> None:
        if model is not None:
            models = self._frontend.listed_models(model)
            if models is None:
                raise UsageError(
                    f"start(model=…) takes {self._frontend.model_kind} or a list of them, not {type(model).__name__}."
                )
            self._models = models
        if self.settings.level in ("L0", "mix") and not self._models:
            raise UsageError(
                f'level "{self.settings.level}" collects modules and needs the model: call start(model=your_model).'
            )
        if token_range is not None:
            self._token_range = _checked_range(token_range)
            if not self._models:
                raise UsageError(
                    "token_range counts the model's forwards and needs it: call start(model, token_range)."
                )

    def _wants_step(self) -> bool:
        return self.settings.step is None or self.step_number in self.settings.step

    def _wants_rank(self) -> bool:
        if self.settings.rank is None:
            return True
        rank = self._frontend.filter_rank()
        if rank in self.settings.rank:
            self.account.missed_rank = None
            return True
        self.account.missed_rank = rank
        return False

    def _is_foreign(self) -> bool:
        """In a forked child (a DataLoader worker) the debugger does nothing."""
        return os.getpid() != self._pid


def _checked_range(value: Any) -> tuple[int, int]:
    good = (
        isinstance(value, (list, tuple))
        and len(value) == 2
        and all(isinstance(one, int) and not isinstance(one, bool) for one in value)
        and 0 <= value[0] <= value[1]
    )
    if not good:
        raise UsageError(f"token_range takes [first, last], two whole numbers with 0 <= first <= last, not {value!r}.")
    return value[0], value[1]


def _close_at_exit(lifecycle: Lifecycle) -> Any:
    reference = weakref.ref(lifecycle)

    def close() -> None:
        alive = reference()
        if alive is not None:
            alive.close()

    atexit.register(close)
    return close
