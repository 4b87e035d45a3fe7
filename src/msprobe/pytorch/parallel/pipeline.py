"""torch.distributed.pipelining: the stage and the microbatch of every call, for any schedule.

All schedules run a stage through the same few methods. msprobe replaces these while it collects. Before the first
microbatch torch runs each stage once, on generated values, to learn the shapes: that run is not recorded.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from typing import Any, Callable, Optional

import torch

from msprobe.collect.parallel import ParallelRecord
from msprobe.collect.records.recorder import Recorder
from msprobe.pytorch.replacements import Replacements
from msprobe.pytorch.tensors import nonplain_tensors

_STAGES = "torch.distributed.pipelining.stage"
_SCHEDULES = "torch.distributed.pipelining.schedules"
_Undo = Callable[[], None]
_Begin = Callable[..., Optional[_Undo]]


class PipelineCalls:
    """The pipeline in one step. `forget` clears cached statistics; `read_gradients` records the gradients of all
    parameters."""

    def __init__(
        self,
        recorder: Recorder,
        record: ParallelRecord,
        forget: _Undo,
        read_gradients: Optional[_Undo],
    ) -> None:
        self._recorder = recorder
        self._record = record
        self._forget = forget
        self._read_gradients = read_gradients
        self._models: list[int] = []

    def install(self, replacements: Replacements, models: Sequence[Any]) -> None:
        """Does nothing if the script has not imported pipelining."""
        self._models = [id(getattr(model, "module", model)) for model in models]
        stage = getattr(sys.modules.get(_STAGES), "_PipelineStageBase", None)
        if stage is not None:
            for name in ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk"):
                replacements.put(stage, name, self._around(self._begin_chunk))
        for schedule in list(vars(sys.modules.get(_SCHEDULES, object)).values()):
            if isinstance(schedule, type) and "Schedule" in schedule.__name__:
                replacements.put(schedule, "step", self._around(self._begin_step))
                replacements.put(schedule, "_maybe_compute_loss", self._around(self._begin_loss))
                for name in ("_initialize_stage", "_initialize_stages"):
                    replacements.put(schedule, name, self._around(self._begin_preparation))

    def _begin_chunk(self, stage: Any, number: int, *args: Any, **kwargs: Any) -> _Undo:
        return self._set_chunk(f'"stage": {int(stage.stage_index)}, "microbatch": {int(number)}')

    def _begin_loss(self, schedule: Any, stage: Any, output: Any, targets: Any, number: int, *rest: Any) -> _Undo:
        return self._begin_chunk(stage, number)

    def _set_chunk(self, members: str) -> _Undo:
        recorder, before = self._recorder, self._recorder.chunk
        recorder.chunk = members

        def undo() -> None:
            recorder.chunk = before

        return undo

    def _begin_preparation(self, *args: Any, **kwargs: Any) -> _Undo:
        recorder, before = self._recorder, self._recorder.closed
        recorder.closed = True

        def undo() -> None:
            recorder.closed = before
            self._forget()

        return undo

    def _begin_step(self, schedule: Any, *args: Any, **kwargs: Any) -> Optional[_Undo]:
        stages = getattr(schedule, "_stages", None) or [schedule._stage]
        at = {id(getattr(one.submod, "module", one.submod)): int(one.stage_index) for one in stages}
        self._record.add(
            pipeline={
                "stages": int(stages[0].num_stages),
                "stage": sorted(at.values()),
                "models": [at.get(model) for model in self._models],
                "schedule": type(schedule).__name__,
                "microbatches": int(schedule._n_microbatches),
            }
        )
        return self._read_gradients

    def _around(self, begin: _Begin) -> Callable[[Any], Any]:
        """The replacement calls `begin` before torch's function, and the result of `begin` after it."""

        def make(original: Any) -> Any:
            def ours(*args: Any, **kwargs: Any) -> Any:
                undo = self._guarded(begin, *args, **kwargs)
                try:
                    return original(*args, **kwargs)
                finally:
                    if undo is not None:
                        self._guarded(undo)

            return ours

        return make

    def _guarded(self, action: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Keeps our errors away from the script."""
        try:
            with torch.no_grad(), torch._C.DisableTorchFunction(), nonplain_tensors.without_modes():
                return action(*args, **kwargs)
        except Exception:
            self._recorder.fault("the pipeline", traceback.format_exc())
            return None
