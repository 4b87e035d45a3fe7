"""Writes down how the run is spread over ranks, at each start(). Nothing happens in a script without
torch.distributed."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Any

import torch

from msprobe.collect.parallel import ParallelRecord
from msprobe.collect.probe import Companion
from msprobe.collect.records.recorder import Recorder
from msprobe.pytorch.parallel.layouts import Layouts
from msprobe.pytorch.parallel.parameters import parameter_layouts
from msprobe.pytorch.parallel.topology import MESH, LivingObjects, is_distributed, named_groups
from msprobe.pytorch.tensors import nonplain_tensors


class ParallelFacts(Companion):
    """Of one step; `living` is of the run."""

    def __init__(self, recorder: Recorder, record: ParallelRecord, layouts: Layouts, living: LivingObjects) -> None:
        self._recorder = recorder
        self._record = record
        self._layouts = layouts
        self._living = living

    def install(self, models: Sequence[Any]) -> None:
        if not is_distributed():
            return
        try:
            with torch.no_grad(), torch._C.DisableTorchFunction(), nonplain_tensors.without_modes():
                self._note(models)
        except Exception:
            self._recorder.fault("run.json", traceback.format_exc())

    def _note(self, models: Sequence[Any]) -> None:
        self._living.look()
        meshes = list(self._living.of_kind(*MESH))
        if torch.distributed.get_world_size() == 1 and not meshes:
            return
        self._record.add(groups=named_groups())
        for mesh in sorted(meshes, key=lambda one: -one.ndim):
            self._layouts.mesh_number(mesh)
        self._record.add(parameters=parameter_layouts(models, self._layouts))
