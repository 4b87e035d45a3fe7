"""Context parallelism (torch.distributed.tensor.experimental.context_parallel): how the sequence is cut."""

from __future__ import annotations

import traceback
from typing import Any, Callable, Optional

from torch.nn import functional

from msprobe.collect.parallel import ParallelRecord
from msprobe.pytorch.features import context_parallel_module
from msprobe.pytorch.parallel.layouts import Layouts
from msprobe.pytorch.replacements import Replacements

_ORDERS = {"NoneType": "contiguous", "_HeadTailLoadBalancer": "load_balanced", "Tensor": "load_balanced"}
"""By how the order is given: up to 2.9 by indices."""


class ContextCalls:
    """Context parallelism in one step. Records the cut when it is made, and the one that is active at start()."""

    def __init__(self, record: ParallelRecord, layouts: Layouts, fault: Callable[[str, str], None]) -> None:
        self._record = record
        self._layouts = layouts
        self._fault = fault

    def install(self, replacements: Replacements) -> None:
        """Does nothing if the script has not imported context_parallel."""
        module = context_parallel_module()
        if module is None:
            return
        mesh = _mesh_in_force(module)
        if mesh is not None:  # in attention, dimension 2 is the sequence
            self._note(mesh, [2], "load_balanced" if module._cp_options.enable_load_balance else "contiguous")
        replacements.put(module, "_context_parallel_buffers", self._around)

    def _around(self, original: Any) -> Any:
        def ours(mesh: Any, buffers: Any, dimensions: Any, *order: Any) -> Any:
            try:
                given = type(order[0]).__name__ if order else "NoneType"
                self._note(mesh, [int(one) for one in dimensions], _ORDERS.get(given))
            except Exception:
                self._fault("context_parallel", traceback.format_exc())
            return original(mesh, buffers, dimensions, *order)

        return ours

    def _note(self, mesh: Any, dimensions: list[int], order: Optional[str]) -> None:
        number = self._layouts.mesh_number(mesh)
        self._record.add(context={"mesh": number, "order": order, "sequence_dimension": dimensions})


def _mesh_in_force(module: Any) -> Any:
    """The mesh of a context that was entered before: torch keeps it in the function that replaces attention."""
    ours = functional.scaled_dot_product_attention
    if ours not in getattr(module, "_replaced_functions", ()):
        return None
    cells = zip(ours.__code__.co_freevars, ours.__closure__ or ())
    return next((cell.cell_contents for name, cell in cells if name == "device_mesh"), None)
