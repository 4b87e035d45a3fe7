"""The gradients of calls on MindSpore: hooks on nodes of its backward graph (collect/gradients has the algorithm).

Hooks hold a small record of text, never a node, an output or a tensor. If several edges lead to an input, their sum is
kept in our own numpy memory until the last hook has fired.
"""

from __future__ import annotations

import traceback
from contextlib import nullcontext
from typing import Any, Optional

import numpy as np
from mindspore._c_expression import TensorPy

from msprobe.collect.gradients import backward_record
from msprobe.collect.gradients.backward_record import BackwardRecord, assign_exits
from msprobe.collect.gradients.call_gradients import BackwardEngine, CallGradients
from msprobe.collect.records.recorder import Recorder
from msprobe.frameworks.mindspore.tensors import Array, copy_values, has_values
from msprobe.mindspore.executor import backward_pass, requires_grad, when_backward_ends
from msprobe.mindspore.features import HAS_BACKWARD_GRAPH, LEAF, node_identity
from msprobe.mindspore.gradients.backward_graph import Graph, InputEdges, node_of, tensors_in
from msprobe.mindspore.tensors.tensor_text import TensorTexts
from msprobe.stats import dtypes

_ENGINE = BackwardEngine(
    running_pass=backward_pass,
    when_pass_ends=when_backward_ends,
    differentiates=requires_grad if HAS_BACKWARD_GRAPH else lambda: False,
    aside=nullcontext,
)
Places = backward_record.Places


class Gradients(CallGradients):
    """Hooks the graph of wanted calls and records their gradients."""

    def __init__(self, recorder: Recorder, texts: TensorTexts) -> None:
        super().__init__(recorder, _ENGINE)
        self._texts = texts
        self._graph = Graph()
        self._hooked: dict[tuple[Any, int], list[tuple[BackwardRecord, Places, Places]]] = {}
        self.latest = -1

    def inputs(self, args: Any, kwargs: Any) -> InputEdges:
        return InputEdges(args, kwargs, self.latest)

    def watch(self, name: str, parents: list[str], inputs: InputEdges, output: Any) -> None:
        """Hooks the backward of a forward call that has just returned `output`."""
        outputs = [output] if isinstance(output, TensorPy) else tensors_in(output, [])
        entries: dict[Any, Any] = {}
        places: dict[Any, list[tuple[int, int]]] = {}
        unchanged = False
        for position, tensor in enumerate(outputs):
            node = node_of(tensor)
            if node is None:
                continue
            number = node._sequence_nr()
            if number == LEAF:
                continue
            if number > self.latest:
                self.latest = number
            key, slot = node_identity(node), tensor._output_index
            if (key, slot) in inputs.edges:
                unchanged = True
                continue
            entries[key] = node
            places.setdefault(key, []).append((position, slot))
        if not entries:
            if unchanged:
                self.without_node.add(name)
            return
        record = self._open_record(name, parents, len(outputs), inputs.count)
        if record is not None:
            self._hook_call(record, entries, places, inputs)
        if not parents:
            self.forget_graph()

    def forget_graph(self) -> None:
        """The outermost call has returned: nothing of the graph is kept."""
        self._graph.forget()

    # The hooks.

    def _hook_call(
        self,
        record: BackwardRecord,
        entries: dict[Any, Any],
        places: dict[Any, list[tuple[int, int]]],
        inputs: InputEdges,
    ) -> None:
        """`entries` are the nodes where gradients come in; `places` are their places in the record."""
        leaving = assign_exits(record, self._graph.exits(entries, inputs)) if inputs.edges else {}
        if not self._recorder.selection.everything:
            # A scope needs the order in which calls begin: a call is hooked before the calls inside it.
            for key, node in entries.items():
                record.waiting += 1
                sequence = node._sequence_nr()
                record.lowest = min(record.lowest, sequence)
                node.register_prehook(self._before(record, places[key], sequence))
            places = {}
        for key, node in entries.items():
            leading = leaving.pop(key, [])
            if leading or key in places:
                self._hook(node, key, record, places.get(key, []), leading)
        for key, leading in leaving.items():
            self._hook(self._graph.node(key), key, record, [], leading)

    def _hook(self, node: Any, key: Any, record: BackwardRecord, places: Places, leading: Places) -> None:
        """Adds one hook per node, for any number of calls that end there: Cells are nested, and an API ends where its
        Cell does.

        A hook costs MindSpore more than the work in it. The sequence number distinguishes a node from an older one with
        the same identity.
        """
        sequence = node._sequence_nr()
        interests = self._hooked.get((key, sequence))
        if interests is None:
            interests = self._hooked[key, sequence] = []
            node.register_hook(self._after(interests, sequence))
        interests.append((record, places, leading))
        record.waiting += 1
        record.lowest = min(record.lowest, sequence)

    def _after(self, interests: list[tuple[BackwardRecord, Places, Places]], sequence: int) -> Any:
        def hook(grad_inputs: Any, grad_outputs: Any) -> None:
            try:
                with self._texts.unchanging():
                    self._finish_above(sequence)
                    for record, places, leading in interests:
                        self._fire(record, places, leading, grad_inputs, grad_outputs)
            except Exception:
                self._recorder.fault("backward", traceback.format_exc())

        return hook

    def _before(self, record: BackwardRecord, places: Places, sequence: int) -> Any:
        def hook(grad_outputs: Any) -> None:
            try:
                self._finish_above(sequence)
                self._fire(record, places, (), (), grad_outputs)
            except Exception:
                self._recorder.fault(record.name, traceback.format_exc())

        return hook

    def _finish_above(self, sequence: int) -> None:
        """Writes the records that wait for gradients that never come: of outputs that nothing uses, of integers.

        A pass runs the nodes from the newest to the oldest. So a record is over when a node runs that is older than all
        its nodes.
        """
        pending = self._pending.get(self.running_pass())
        over = [record for record in pending.values() if record.lowest > sequence] if pending else ()
        for record in over:
            assert pending is not None
            del pending[id(record)]
            try:
                self._complete(record)
            except Exception:
                self._recorder.fault(record.name, traceback.format_exc())

    # Sums over several edges.

    def _hold(self, gradient: Any) -> Optional[tuple[Array, dtypes.Dtype]]:
        return copy_values(gradient) if has_values(gradient) else None

    def _add(self, held: tuple[Array, dtypes.Dtype], gradient: Any) -> tuple[Array, dtypes.Dtype]:
        array, row = held
        return np.add(array, copy_values(gradient)[0], out=array), row

    def _write_sum(self, record: BackwardRecord, position: int, held: tuple[Array, dtypes.Dtype]) -> None:
        path = self._recorder.tensors_path(record.name, "output")
        record.outgoing[position] = self._texts.array_text(*held, f"{path}.{position}" if path else "")
