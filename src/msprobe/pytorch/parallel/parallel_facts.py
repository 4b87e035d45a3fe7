"""Records how the run is spread over ranks: at each start(), and when a pipeline or context parallelism begins.

Does nothing in a script without torch.distributed.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Any

import torch

from msprobe.collect.parallel import ParallelRecord
from msprobe.collect.probe import Companion
from msprobe.collect.records.recorder import Recorder
from msprobe.pytorch.parallel import megatron
from msprobe.pytorch.parallel.context import ContextCalls
from msprobe.pytorch.parallel.layouts import Layouts
from msprobe.pytorch.parallel.parameters import parameter_layouts, paths_in_complete_model
from msprobe.pytorch.parallel.pipeline import PipelineCalls
from msprobe.pytorch.parallel.topology import MESH, SAMPLER, LivingObjects, batch_part, is_distributed, named_groups
from msprobe.pytorch.replacements import Replacements
from msprobe.pytorch.tensors import nonplain_tensors


class ParallelFacts(Companion):
    """The facts of one step; `living` belongs to the run."""

    def __init__(
        self,
        recorder: Recorder,
        record: ParallelRecord,
        layouts: Layouts,
        living: LivingObjects,
        pipeline: PipelineCalls,
    ) -> None:
        self._recorder = recorder
        self._record = record
        self._layouts = layouts
        self._living = living
        self._pipeline = pipeline
        self._context = ContextCalls(record, layouts, recorder.fault)
        self._replacements = Replacements()

    def install(self, models: Sequence[Any]) -> None:
        if not is_distributed() or self._replacements:
            return
        try:
            with torch.no_grad(), torch._C.DisableTorchFunction(), nonplain_tensors.without_modes():
                self._note(models)
                self._pipeline.install(self._replacements, models)
                self._context.install(self._replacements)
        except Exception:
            self._recorder.fault("run.json", traceback.format_exc())

    def remove(self) -> None:
        self._replacements.remove()

    def _note(self, models: Sequence[Any]) -> None:
        self._living.look()
        meshes = list(self._living.of_kind(*MESH))
        if torch.distributed.get_world_size() == 1 and not meshes:
            return
        self._record.add(groups=named_groups())
        for mesh in sorted(meshes, key=lambda one: -one.ndim):
            self._layouts.mesh_number(mesh)
        self._record.add(parameters=parameter_layouts(models, self._layouts), modules=paths_in_complete_model(models))
        self._record.add(batch=batch_part(self._living.of_kind(*SAMPLER)), pipeline=megatron.pipeline_facts())
