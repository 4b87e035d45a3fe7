"""Taps on the CPU: custom operators whose kernel is a Python function (`ops.Custom`, "pyfunc").

The functions get numpy arrays. They must not raise, because the error would reach the script, and must return an array
of the declared type. A tensor without dimensions would arrive as a Python number, so it is reshaped to one dimension.
"""

from __future__ import annotations

from typing import Any, Callable

import mindspore
import numpy as np
from mindspore import Tensor, nn, ops

from msprobe.mindspore.graph.call_templates import CallTemplate
from msprobe.mindspore.graph.cell_records import NO_CALL
from msprobe.mindspore.graph.taps import Taps

_FLOATS = (mindspore.float16, mindspore.float32, mindspore.float64, mindspore.bfloat16)
_NOTHING = np.full((1,), NO_CALL, np.int32)


class PyfuncBackend:
    """The functions that are compiled into graphs, for one `Taps` object."""

    def __init__(self, taps: Taps) -> None:
        self._titles: list[str] = []
        titles, templates = self._titles, taps.templates

        def begins(title: Any) -> Any:
            listener = taps.listener
            return _NOTHING if listener is None else np.array([listener.enter(titles[int(title[0])])], np.int32)

        def shows(number: Any, place: Any, array: Any) -> Any:
            listener = taps.listener
            if listener is not None and number[0] != NO_CALL:
                listener.see(int(number[0]), templates[int(place[0])], int(place[1]), array)
            return number

        def flows(number: Any, place: Any, array: Any) -> Any:
            listener = taps.listener
            if listener is not None:
                listener.gradient(int(number[0]), templates[int(place[0])], int(place[1]), array)
            return number

        self.enter = _operator(begins, in_order=True)
        show, flow = _operator(shows, in_order=True), _operator(flows, in_order=False)

        class Gate(nn.Cell):
            """Passes a tensor through; in the backward pass, passes its gradient to Python."""

            def construct(self, value: Any, number: Any, place: Any) -> Any:
                return ops.stop_gradient(value)  # otherwise, next to a BatchNorm, gradients are summed before the gate

            def bprop(self, value: Any, number: Any, place: Any, out: Any, dout: Any) -> Any:
                shown = ops.reshape(dout, (1,)) if dout.ndim == 0 else dout
                dout = ops.depend(dout, flow(number, place, shown))
                return dout, ops.zeros_like(number), ops.zeros_like(place)

        gate = Gate()

        def seen(number: Any, value: Any, place: Any) -> Any:
            if isinstance(place, int):
                return number
            shown = ops.stop_gradient(value)
            if value.ndim == 0:
                shown = ops.reshape(shown, (1,))
            return show(number, place, shown)

        def watched(number: Any, value: Any, place: Any) -> Any:
            if isinstance(place, int):
                return value
            seen(number, value, place)
            if value.dtype in _FLOATS:
                return gate(value, number, place)
            return value

        self.seen = seen
        self.watched = watched
        self._flow = flow

    def title(self, title: str) -> Any:
        """The argument for `enter`."""
        self._titles.append(title)
        return Tensor([len(self._titles) - 1], mindspore.int32)

    def place(self, template: CallTemplate, slot: int) -> Any:
        return Tensor([template.number, slot], mindspore.int32)

    def parameter_hook(self, template: CallTemplate) -> Callable[[Any], Any]:
        """A hook that passes on the gradient of the parameter of this template."""
        flow, place, number = self._flow, self.place(template, 0), Tensor([NO_CALL], mindspore.int32)

        def hook(gradient: Any) -> Any:
            shown = ops.reshape(gradient, (1,)) if gradient.ndim == 0 else gradient
            return ops.depend(gradient, flow(number, place, shown))

        return hook

    def drain(self) -> None:
        """Nothing to do: the functions were called while the graph ran."""


def _operator(function: Callable[..., Any], in_order: bool) -> Any:
    """A custom operator. MindSpore takes the number of inputs from the parameters of `function`."""
    made = ops.Custom(function, lambda *shapes: (1,), lambda *kinds: mindspore.int32, func_type="pyfunc")
    made.recompute(False)  # a call begins once, also if its Cell is recomputed
    if in_order:
        made.add_prim_attr("side_effect_io", True)
    return made
