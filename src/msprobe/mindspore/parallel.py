"""How a MindSpore run is spread over ranks: groups, and the layouts (`mindspore.Layout`) of parameters and tensors.

Nothing happens before `mindspore.communication.init`.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Sequence
from math import prod
from typing import Any, Optional

import numpy as np
from mindspore.communication import _comm_helper, management

from msprobe.collect.parallel import ParallelRecord
from msprobe.collect.probe import Companion
from msprobe.collect.records.recorder import Recorder
from msprobe.mindspore.header import is_initialised, rank
from msprobe.mindspore.tensors.tensor_text import FileWriter, TensorTexts


class Layouts:
    """The layouts of one step."""

    def __init__(self, record: ParallelRecord) -> None:
        self._record = record
        self._texts: dict[Any, str] = {}

    def member(self, tensor: Any) -> str:
        """The member "layout" of a tensor, with a comma before it; "" for a tensor without a layout."""
        info = getattr(tensor, "_dist_tensor_info", None)
        if info is None:
            return ""
        found = info.layout.to_dict()
        key = (str(found), tensor.shape)
        if key not in self._texts:
            described = self.describe(found, tensor.shape, is_part=True)
            self._texts[key] = "" if described is None else f', "layout": {json.dumps(described)}'
        return self._texts[key]

    def of_parameter(self, parameter: Any) -> Optional[dict[str, Any]]:
        """The layout of a parameter from `shard` or a Layout. Before the graph is compiled, the parameter is still
        complete."""
        info = getattr(parameter, "_dist_tensor_info", None)
        if info is not None:
            return self.describe(info.layout.to_dict(), parameter.shape, is_part=True)
        noted = parameter.param_info
        if not noted.device_matrix:
            return None
        names = ("device_matrix", "tensor_map", "interleaved_parallel", "alias_name")
        return self.describe({name: getattr(noted, name) for name in names}, parameter.shape, bool(parameter.sliced))

    def describe(self, found: dict[str, Any], shape: Sequence[int], is_part: bool) -> Optional[dict[str, Any]]:
        """The layout in the form of the files; None for interleaved parallel, which cannot be described."""
        matrix = [int(size) for size in found["device_matrix"]]
        if found.get("interleaved_parallel") or len(found["tensor_map"]) != len(shape):
            return None
        placements, complete = ["R"] * len(matrix), [int(size) for size in shape]
        for dimension, entry in enumerate(found["tensor_map"]):
            places = entry if isinstance(entry, (tuple, list)) else (entry,)
            cuts = [len(matrix) - 1 - int(place) for place in places if int(place) != -1]  # the outermost first
            for number, cut in enumerate(cuts):
                factor = prod(matrix[other] for other in cuts[:number] if other > cut)
                placements[cut] = f"S({dimension})" if factor == 1 else f"S({dimension},{factor})"
            if is_part:
                complete[dimension] *= prod(matrix[cut] for cut in cuts)
        return {"shape": complete, "mesh": self._mesh(found, matrix), "placements": placements}

    def _mesh(self, found: dict[str, Any], matrix: list[int]) -> int:
        ranks = [int(one) for one in found.get("rank_list") or range(prod(matrix))]
        own, names = rank(), [str(name) for name in found.get("alias_name") or ()]
        at = np.unravel_index(ranks.index(own), matrix) if own in ranks else None
        grid = np.reshape(ranks, matrix).tolist()
        return self._record.mesh(names or None, grid, None if at is None else [int(one) for one in at])


class SpreadTexts(TensorTexts):
    """Renders tensors of a distributed run, with their layout if they have one."""

    def __init__(self, want: int, files: Optional[FileWriter], layouts: Layouts) -> None:
        super().__init__(want, files)
        self._layouts = layouts

    def tensor_text(self, tensor: Any, path: str) -> str:
        text = super().tensor_text(tensor, path)
        member = self._layouts.member(tensor)
        return f"{text[:-1]}{member}}}" if member else text


class ParallelFacts(Companion):
    """Records groups and the layouts of parameters at each start()."""

    def __init__(self, recorder: Recorder, record: ParallelRecord, layouts: Layouts) -> None:
        self._recorder = recorder
        self._record = record
        self._layouts = layouts

    def install(self, models: Sequence[Any]) -> None:
        if not is_initialised():
            return
        try:
            if management.get_group_size() > 1:
                self._record.add(groups=_groups(), parameters=self._parameters(models))
        except Exception:
            self._recorder.fault("run.json", traceback.format_exc())

    def _parameters(self, models: Sequence[Any]) -> dict[str, Any]:
        found = {}
        for index, model in enumerate(models):
            start = f"{index}." if len(models) > 1 else ""
            for name, parameter in model.parameters_and_names():
                described = self._layouts.of_parameter(parameter)
                if described is not None:
                    found[f"{start}{name}"] = described
        return found


def _groups() -> dict[str, list[int]]:
    found = {management.GlobalComm.WORLD_COMM_GROUP: list(range(management.get_group_size()))}
    made = getattr(getattr(_comm_helper, "_ExistingGroup", None), "ITEMS", {})
    for name, ranks in made.items():
        if isinstance(ranks, (list, tuple)):
            found[str(name)] = [int(one) for one in ranks]
    return found
