"""The gradients of calls on PyTorch: hooks on nodes of the autograd graph (collect/gradients has the algorithm).

Hooks hold a small record of text, never a node, an output or a tensor: the graph is freed as without msprobe. A
gradient is held only if several edges lead to an input, until the last hook has fired.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import torch

from msprobe.collect.gradients.backward_record import assign_exits
from msprobe.pytorch.gradients.backward_graph import InputEdges, tensors_in, walk
from msprobe.pytorch.gradients.parameter_gradients import ParameterGradients

# Calls that return their input by design: a cast to the same dtype, dropout with p=0 or in eval.
_MAY_RETURN_ITS_INPUT = re.compile(
    r"\.(\w*dropout\w*|contiguous|to|type|type_as|float|double|half|bfloat16|cpu|cuda|npu|reshape|flatten|identity)\.\d+\."
    r"forward$|\.\w*(Dropout\w*|Identity|DropPath|Flatten)\.forward\.\d+$"
)


class Gradients(ParameterGradients):
    """Hooks the graph of wanted calls and records their gradients."""

    inputs = InputEdges  # the class itself, without a function call

    def watch(self, name: str, parents: list[str], inputs: InputEdges, output: Any) -> None:
        """Hooks the backward of a forward call that has just returned `output`."""
        self._forwards += 1
        outputs = [output] if isinstance(output, torch.Tensor) else tensors_in(output, [])
        entries: dict[Any, list[tuple[int, int]]] = {}
        for position, tensor in enumerate(outputs):
            node = tensor.grad_fn
            if node is None:
                continue
            if (id(node), tensor.output_nr) in inputs.edges:
                self.without_node.add(name)
                continue
            entries.setdefault(node, []).append((position, tensor.output_nr))
        if not entries:
            return
        record = self._open_record(name, parents, len(outputs), inputs.count)
        if record is None:
            return
        leaving = assign_exits(record, walk(entries, inputs))
        # A scope needs the order in which calls begin: a call is hooked before the calls inside it.
        apart = not self._recorder.selection.everything
        # The hooks are functions, not bound methods: there are thousands of them, and every additional object
        # makes the garbage collector run earlier.
        for node, places in entries.items():
            leading = leaving.pop(node, ())
            if not leading or apart:
                node.register_prehook(partial(Gradients._fire, self, record, places, (), ()))
                if leading:
                    record.waiting += 1
                    node.register_hook(partial(Gradients._fire, self, record, (), leading))
            else:
                node.register_hook(partial(Gradients._fire, self, record, places, leading))
        for node, leading in leaving.items():
            node.register_hook(partial(Gradients._fire, self, record, (), leading))
        record.waiting += len(entries) + len(leaving)

    def close(self) -> None:
        super().close()
        self.without_node = {name for name in self.without_node if not _MAY_RETURN_ITS_INPUT.search(name)}

    def _add(self, held: Any, gradient: Any) -> Any:
        with torch.no_grad():
            return held + gradient
