"""Attention logits on MindSpore: the largest number that a softmax over heads gets, exact in every watched step.

While a watched cell runs, the softmax functions of MindSpore are replaced by functions that call them and then look at
their input; cells that are a softmax have a hook. A softmax counts if it goes over the last of four axes, or of three
in a cell that says how many heads it has. MindSpore does not say from which operator a tensor came.
"""

from __future__ import annotations

import functools
import threading
from typing import Any, Callable, Optional

import mindspore
from mindspore import mint, nn, ops
from mindspore._c_expression import TensorPy
from mindspore.ops.function import nn_func

from msprobe.collect import notices
from msprobe.mindspore.executor import backward_pass
from msprobe.mindspore.header import in_graph_mode
from msprobe.mindspore.watch.health import Array, HealthHooks, without_result
from msprobe.mindspore.watch.tensors import floats
from msprobe.watch.store import ABSENT
from msprobe.watch.targets import ATTENTION_LOGITS, Figures, Target

_PLACES: tuple[tuple[Any, str], ...] = (
    (ops, "softmax"), (ops.function, "softmax"), (nn_func, "softmax"), (nn_func, "softmax_ext"), (mint, "softmax"),
    (mint.nn.functional, "softmax"), (mindspore.Tensor, "softmax"),
)  # fmt: skip
_SOFTMAX_CELLS = (nn.Softmax, mint.nn.Softmax)
_absent = float(ABSENT[0])


class AttentionHooks(HealthHooks):
    """Hooks that know in which cell the script is, and functions that look at logits."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._names = _Names()
        self._lock = threading.Lock()
        self._replaced: list[tuple[Any, str, Any, Any]] = []  # owner, name, the original function, and ours
        self._saw_any = False

    def _put_hooks(self) -> None:
        entered, left, looked = (self._guarded(one) for one in (self._entered, self._left, self._at_cell))
        for name, cell in self._cells:
            if isinstance(cell, _SOFTMAX_CELLS):
                self._handles.append(cell.register_forward_pre_hook(without_result(looked)))
                continue
            self._handles.append(cell.register_forward_pre_hook(without_result(functools.partial(entered, name))))
            self._handles.append(cell.register_forward_hook(without_result(left)))

    def remove(self) -> None:
        super().remove()
        self._names.stack.clear()
        self._put_back()

    def _entered(self, name: str, cell: Any, args: Any) -> None:
        if backward_pass() >= 0:  # recomputed
            return
        stack = self._names.stack
        while stack and any(one is cell for _, one in stack):  # an exception ended an earlier call
            stack.pop()
        if not stack:
            self._replace()
        stack.append((name, cell))

    def _left(self, cell: Any, args: Any, output: Any) -> None:
        stack = self._names.stack
        if stack and stack[-1][1] is cell:
            stack.pop()
            if not stack:
                self._put_back()

    def _at_cell(self, cell: Any, args: Any) -> None:
        axis = getattr(getattr(cell, "softmax", None), "axis", getattr(cell, "dim", None))
        if args and self._names.stack:
            self._look(args[0], axis[0] if isinstance(axis, (tuple, list)) and len(axis) == 1 else axis)

    def _replace(self) -> None:
        with self._lock:
            for owner, name in _PLACES if not self._replaced else ():
                original = getattr(owner, name, None)
                if original is not None:
                    ours = self._observed(original)
                    self._replaced.append((owner, name, original, ours))
                    setattr(owner, name, ours)

    def _put_back(self) -> None:
        with self._lock:
            for owner, name, original, ours in self._replaced:
                if getattr(owner, name) is ours:  # the script may have replaced it too
                    setattr(owner, name, original)
            self._replaced = []

    def _observed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        names, look = self._names, self._guarded(self._look)

        @functools.wraps(original)
        def observed(*args: Any, **kwargs: Any) -> Any:
            if names.looks or not names.stack:
                return original(*args, **kwargs)
            names.looks = True
            try:
                output = original(*args, **kwargs)
                logits = args[0] if args else kwargs.get("input", kwargs.get("self"))
                axis = args[1] if len(args) > 1 else kwargs.get("axis", kwargs.get("dim", -1))
                look(logits, axis)
            finally:
                names.looks = False
            return output

        return observed

    def _look(self, logits: Any, axis: Any) -> None:
        if not isinstance(logits, TensorPy) or axis not in (-1, len(logits._shape) - 1):
            return
        name, cell = self._names.stack[-1]
        heads = _heads(logits, cell)
        values = floats(logits) if heads is not None else None
        if values is not None and heads is not None:
            self._put(name, values.reshape(-1, heads, *values.shape[-2:]).max(axis=(0, 2, 3)), logits)

    def _put(self, name: str, largest: Array, logits: Any) -> None:
        self._saw_any = True
        for head, value in enumerate(largest.tolist()):
            row = self._rows.get((name, head, len(largest)))
            if row is None:
                shown = f"{name}.head{head}" if name else f"head{head}"
                target = Target(ATTENTION_LOGITS, shown if len(largest) > 1 else name, len(self._rows))
                row = self._rows[name, head, len(largest)] = self._recording.row(target)
            before = self._found.get(row)
            value = value if value > float("-inf") else _absent  # all masked
            if before is None or not before.max >= value:
                self._found[row] = Figures(value, value, _absent, *[float("nan")] * 6)

    def finish(self) -> None:
        if not self._saw_any:
            reason = "in graph mode it sees no call" if in_graph_mode() else "it sees softmax functions and cells"
            notices.warn_once(f"attention_logits has seen no attention: {reason}.")
            self._saw_any = True


class _Names(threading.local):
    """The cells in which this thread is, and whether it is in a function that is looked at."""

    def __init__(self) -> None:
        self.stack: list[tuple[str, Any]] = []
        self.looks = False


def _heads(logits: Any, cell: Any) -> Optional[int]:
    """How many heads the logits have; None if they are not those of attention."""
    shape = logits._shape
    if len(shape) == 4:
        return int(shape[1])
    heads = getattr(cell, "num_heads", None)
    if len(shape) == 3 and isinstance(heads, int) and heads > 0 and shape[0] % heads == 0:
        return heads
    return None
