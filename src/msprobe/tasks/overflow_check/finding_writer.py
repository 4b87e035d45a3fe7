"""overflow_check: writes the record of each overflow, and stops training after the last wanted one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Callable, Optional

from msprobe.collect.guard import MeantForTheScript
from msprobe.collect.records.recorder import Recorder
from msprobe.collect.records.stacks import Stacks
from msprobe.collect.step_context import StepContext
from msprobe.dump.stack_frames import source_line
from msprobe.stats.finiteness import WORDS
from msprobe.tasks.overflow_check.policy import PRODUCER, Finding, OverflowPolicy


class OverflowStop(MeantForTheScript, RuntimeError):
    """overflow_nums overflows were found: everything is on disk, and training stops here on purpose."""


class FindingWriter:
    """Writes findings. Stacks are numbered for every call and written only for calls that overflow."""

    def __init__(self, context: StepContext, policy: OverflowPolicy) -> None:
        self._frames: dict[int, Callable[[], Sequence[str]]] = {}
        self.stacks = Stacks(self._frames.__setitem__)
        self._context = context
        self._policy = policy
        self._written_stacks: set[int] = set()

    def write(self, recorder: Recorder, finding: Finding, text: str) -> None:
        """Writes a record with the members `text`. Raises OverflowStop after the last wanted finding."""
        run = self._policy.run
        counts = self._policy.add(finding)
        recorder.write_record(finding.name, finding.parent, text, self._write_stack(finding.stack))
        description = self._describe(finding)
        run.first = run.first or description
        if counts and 0 < run.limit <= run.counted:
            recorder.closed = True
            writer = self._context.writer
            writer.finish()
            raise OverflowStop(
                f"overflow_check: {description}. This is overflow {run.counted} of overflow_nums {run.limit}, so "
                f"training stops; the findings are in {writer.directory}. `msprobe overflow` analyses them; "
                '"overflow_nums": -1 never stops.'
            )

    def _write_stack(self, stack: Optional[int]) -> Optional[int]:
        if stack is None or not self._context.settings.extra_info:
            return None
        if stack not in self._written_stacks:
            self._written_stacks.add(stack)
            self._context.writer.stack(stack, self._frames[stack])
        return stack

    def _describe(self, finding: Finding) -> str:
        verb = "produced" if finding.role == PRODUCER else "propagated"
        step, rank = self._context.step, self._context.rank
        where = f"step {step}" if rank is None else f"step {step}, rank {rank}"
        frames = self._frames[finding.stack]() if finding.stack in self._frames else ()
        return f"{finding.name} {verb} {WORDS[finding.state]}, {where}, {source_line(frames) or 'at an unknown line'}"
