"""Records one step of one process: passes names, parents, stacks and texts to the writer.

Frontends call `enter`, `leave` and `write_record`. A recorder is closed at the end of its step. Hooks that fire later
(a graph kept for a second backward, a hook in another thread) find it closed and do nothing.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import Any, Callable, Optional, Protocol

from msprobe.collect.records.call_numbers import CallNumbers
from msprobe.collect.records.phases import Phases
from msprobe.collect.records.selection import Selection
from msprobe.collect.records.stacks import Position, Stacks, positions_of, render_positions
from msprobe.collect.records.values import Values
from msprobe.dump.products import may_be_product
from msprobe.system.interrupts import is_of_the_script, let_through
from msprobe.system.living import Living


class Writer(Protocol):
    """The part of `msprobe.dump.writing.writer.RankWriter` that recording needs."""

    def begin(self, call: int, name: str, parent: Optional[str], stack: Optional[int], text: str) -> None: ...

    def end(self, call: int, text: str) -> None: ...

    def record(self, name: str, parent: Optional[str], stack: Optional[int], text: str) -> None: ...

    def place(self, name: str, parent: Optional[str]) -> None: ...

    def debug(self, name: str, text: str) -> None: ...

    def phase(self, text: str) -> None: ...

    def made(self, text: str, place: Optional[tuple[str, int]] = None) -> None: ...

    def training(self, text: str, frames: Optional[Callable[[], Sequence[str]]] = None) -> None: ...

    def stack(self, number: int, frames: Callable[[], Sequence[str]]) -> None: ...

    def error(self, name: str, trace: str) -> None: ...


class _OpenModules(threading.local):
    """The modules that are running in this thread, outermost first."""

    def __init__(self) -> None:
        self.modules: list[str] = []


_recorders: Living[Recorder] = Living()


class Recorder:
    def __init__(
        self,
        writer: Writer,
        values: Values,
        selection: Selection,
        *,
        with_data: bool,
        with_stacks: bool,
        batch: Optional[Values] = None,
    ) -> None:
        """`with_data` False records structure only. `batch` renders the digests of the first batch for run.json."""
        self.writer = writer
        self.values = values
        self.selection = selection
        self.numbers = CallNumbers()
        self.closed = False
        self.faults = 0
        self.records = 0
        self.chunk = ""  # JSON members of every call that begins now: its pipeline stage and microbatch
        self.phases: Optional[Phases] = None
        self.on_first_batch: Optional[Callable[[object], None]] = None
        self._batch = batch
        self._with_data = with_data
        self._with_inputs = with_data and selection.inputs
        self._with_outputs = with_data and selection.outputs
        # Bound once: they are used at every call.
        self._sequence, self._mapping, self._result = values.sequence, values.mapping, values.result
        self._saves = selection.saves if selection.saves_any else None
        self._stacks = Stacks(writer.stack) if with_stacks else None
        self._calls = count()
        self._placed: set[str] = set()
        self._open = _OpenModules()
        _recorders.add(self)

    # Modules: a module is the parent of the calls inside it.

    @property
    def parent(self) -> Optional[str]:
        modules = self._open.modules
        return modules[-1] if modules else None

    @property
    def parents(self) -> list[str]:
        return self._open.modules

    def push(self, name: str) -> None:
        self._open.modules.append(name)

    def pop(self, name: str) -> None:
        """Leaves module `name`, and all modules inside it that an exception left open."""
        modules = self._open.modules
        if modules and modules[-1] is name:
            modules.pop()
        elif name in modules:
            while modules.pop() != name:
                pass

    def first_batch(self, args: Any, kwargs: Any) -> None:
        """Digests of the inputs of the first module in the step: runs with different data are not comparable."""
        report, self.on_first_batch = self.on_first_batch, None
        if report is not None and self._batch is not None:
            report(json.loads(self._batch.sequence((*args, *kwargs.values()), "")))

    def set_source(self, positions: Optional[tuple[Position, ...]]) -> None:
        """Sets the source of the next calls of this thread if its frames do not show it; None if they do."""
        if self._stacks is not None:
            self._stacks.set_source(positions)

    def frames(self) -> Optional[Callable[[], Sequence[str]]]:
        """The stack of what the script does now, for the writer; None without stacks."""
        return None if self._stacks is None else partial(render_positions, positions_of(sys._getframe(1)))

    # Records.

    def enter(self, name: str, parent: Optional[str], args: Any, kwargs: Any, depth: int = 1) -> Optional[int]:
        """A wanted forward call begins. Returns its number for `leave`."""
        call = next(self._calls)
        text = ""
        if self._with_inputs:
            path = f"{name}.input" if self._saves is not None and self._saves(name) else ""
            named = self._mapping(kwargs, path) if kwargs else "{}"
            text = f'"input_args": {self._sequence(args, path)}, "input_kwargs": {named}'
        if self.chunk:
            text = f"{text}, {self.chunk}" if text else self.chunk
        stack = self._stacks.number(depth + 1) if self._stacks is not None else None
        if self.phases is not None:
            self.phases.begin_call()
        self.writer.begin(call, name, parent, stack, text)
        return call

    def place(self, parents: Sequence[str]) -> None:
        """Notes the calls around a record, outermost first, if they have no record of their own (level L2)."""
        for depth in range(len(parents) - 1, -1, -1):
            name = parents[depth]
            if name in self._placed:
                return
            self._placed.add(name)
            self.writer.place(name, parents[depth - 1] if depth else None)

    def leave(self, call: int, name: str, output: Any, extra: str = "") -> None:
        """The call returned `output`. `extra` has further JSON members."""
        text = extra
        if self._with_outputs:
            path = f"{name}.output" if self._saves is not None and self._saves(name) else ""
            text = f'"output": {self._result(output, path)}'
            if extra:
                text = f"{text}, {extra}"
        self.records += 1
        if self.phases is not None and self.phases.between:
            self.phases.end_call(call, output)
        self.writer.end(call, text)

    def fail(self, call: Optional[int], error: BaseException, extra: str = "") -> None:
        """The call raised an exception: the record keeps its inputs and has the name of the exception. With None,
        the call has no record."""
        if call is None:
            return
        self.records += 1
        raised = f'"raised": "{type(error).__name__}"'
        self.writer.end(call, f"{raised}, {extra}" if extra else raised)

    def unwaited(self, call: int) -> None:
        """The script never waited for an asynchronous collective: its result is unknown."""
        self.writer.end(call, '"not_waited": true')

    def write_record(self, name: str, parent: Optional[str], text: str, stack: Optional[int] = None) -> None:
        """A record with one event: backward, parameters_grad."""
        self.records += 1
        if self.phases is not None:
            self.phases.begin_gradient()
        self.writer.record(name, parent, stack, text if self._with_data else "")

    def tensors_path(self, name: str, side: str) -> str:
        """The beginning of the file names for one side of a call, or "" if it gets no files."""
        return f"{name}.{side}" if self._saves is not None and self._saves(name) else ""

    @property
    def with_inputs(self) -> bool:
        return self._with_inputs

    @property
    def with_outputs(self) -> bool:
        return self._with_outputs

    def name_products(self) -> None:
        """Gives the tensors of matrix products the name of their file, so that their text may depend on their place;
        `values` decides which have a file."""
        saves = self._saves
        self._saves = lambda name: may_be_product(name) or (saves is not None and saves(name))

    def fault(self, name: str, trace: str) -> None:
        """Reports an error of msprobe at this call: writes it to dump_error_info.log, counts it, and logs it when the
        step ends.

        If a signal handler of the script raised the exception, it is raised again: it belongs to the script.
        """
        error = sys.exc_info()[1]
        if error is not None and is_of_the_script(error):
            raise error
        self.faults += 1
        try:
            self.writer.error(name, trace)
        except Exception as failure:  # the log itself cannot be written; the step says how many errors there were
            let_through(failure)


def _in_forked_child() -> None:
    """In a forked child: closes the recorder, because the step belongs to the parent."""
    for recorder in _recorders:
        recorder.closed = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_forked_child)
