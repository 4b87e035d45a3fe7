"""Attention logits: the largest logit of each head, or a bound for it.

While a watched model runs its forward, `scaled_dot_product_attention` and the softmax functions of torch are replaced
by functions that call them and then look at their arguments. A softmax counts if its input comes from a product of two
batches of matrices. No tensor is kept, only one number per head.
"""

from __future__ import annotations

import functools
import re
import threading
from typing import Any, Callable, Optional

import torch
import torch.nn.functional as F

from msprobe.collect import notices
from msprobe.pytorch.modules.model_tree import is_compiled_in_place, is_wrapper
from msprobe.pytorch.watch.modules import _graph_task, _is_compiling, _named
from msprobe.watch.recording import Recording
from msprobe.watch.selection import Filter
from msprobe.watch.step_figures import StepFigures
from msprobe.watch.store import ABSENT
from msprobe.watch.targets import ATTENTION_LOGITS, Figures, Target

_MOST_CELLS = 1 << 22
"""Logits that are computed at once."""
_BATCHED = ("BmmBackward0", "BaddbmmBackward0")
_ELEMENTWISE = re.compile(
    r"(Add|Sub|Mul|Div|Neg|Tanh|Clamp|MaskedFill|Where|View|UnsafeView|ReshapeAlias|Expand|ToCopy|Clone|Permute"
    r"|Transpose|Unsqueeze|Squeeze|Slice)Backward\d+"
)
_FAR = 16
_absent = float(ABSENT[0])
_PLACES = ((F, "scaled_dot_product_attention"), (F, "softmax"), (torch, "softmax"), (torch.Tensor, "softmax"))
_SDPA = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


class _Inside(threading.local):
    """The modules in which this thread is, and whether it is in a function that is looked at."""

    def __init__(self) -> None:
        self.names: list[tuple[str, Any]] = []
        self.looks = False


class AttentionHooks:
    """Installed only during watched steps."""

    def __init__(self, models: list[Any], recording: Recording, guarded: Callable[[Any], Any]) -> None:
        settings = recording.settings
        self._recording, self._settings = recording, settings
        self._guarded = guarded
        chosen = Filter(settings)
        compiled = [name for name, module in _named(models) if is_wrapper(module) or is_compiled_in_place(module)]
        self._compiled = bool(compiled) or any(map(is_wrapper, models))
        self._modules = [
            (name, module)
            for name, module in _named(models)
            if chosen.wants(name) and not (type(module).__module__.startswith("torch.nn.modules") and _is_leaf(module))
        ]
        self._inside = _Inside()
        self._lock = threading.Lock()
        self._replaced: list[tuple[Any, Any]] = []  # the original functions, and ours
        self._handles: list[Any] = []
        self._rows: dict[tuple[str, int], list[int]] = {}
        self._measured: list[tuple[list[int], Optional[Any], Optional[Any]]] = []  # rows, exact maximum, bound
        self._found = StepFigures(0)
        self._exact = False
        self._saw_any = False

    def prepare(self, step: int) -> None:
        self._exact = self._settings.wants_each(step, self._settings.attention_logits.exact_every)

    def install(self, found: StepFigures) -> None:
        self._found = found
        self._measured = []
        if self._compiled:
            notices.warn_once("attention_logits has no effect: msprobe does not see calls inside torch.compile.")
            return
        if self._handles:
            return
        entered, left = self._guarded(self._entered), self._guarded(self._left)
        for name, module in self._modules:
            self._handles.append(module.register_forward_pre_hook(functools.partial(entered, name)))
            self._handles.append(module.register_forward_hook(left, always_call=True))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._inside.names.clear()
        self._put_back()

    def _entered(self, name: str, module: Any, args: Any) -> None:
        if _is_compiling() or _graph_task() >= 0:  # recomputed in the backward pass
            return
        names = self._inside.names
        while names and any(one is module for _, one in names):  # an exception ended an earlier call
            names.pop()
        if not names:
            self._replace()
        names.append((name, module))

    def _left(self, module: Any, args: Any, output: Any) -> None:
        names = self._inside.names
        if names and names[-1][1] is module:
            names.pop()
            if not names:
                self._put_back()

    def _replace(self) -> None:
        with self._lock:
            if self._replaced:
                return
            product, softmax = self._guarded(self._look_at_product), self._guarded(self._look_at_softmax)
            for owner, name in _PLACES:
                original = getattr(owner, name)
                ours = self._observed(original, softmax if name == "softmax" else product)
                self._replaced.append((original, ours))
                setattr(owner, name, ours)

    def _put_back(self) -> None:
        with self._lock:
            for (owner, name), (original, ours) in zip(_PLACES, self._replaced):
                if getattr(owner, name) is ours:  # the script may have replaced it too
                    setattr(owner, name, original)
            self._replaced = []

    def _observed(self, original: Any, look: Callable[..., None]) -> Any:
        inside = self._inside

        @functools.wraps(original)
        def observed(*args: Any, **kwargs: Any) -> Any:
            if inside.looks or not inside.names or _is_compiling():
                return original(*args, **kwargs)
            inside.looks = True
            try:
                output = original(*args, **kwargs)
                look(args, kwargs)
            finally:
                inside.looks = False
            return output

        return observed

    @torch.no_grad()
    def _look_at_product(self, args: Any, kwargs: Any) -> None:
        given = {**dict(zip(_SDPA, args)), **kwargs}
        query, key, mask = given["query"], given["key"], given.get("attn_mask")
        if not _is_plain(query) or not _is_plain(key) or query.dim() not in (3, 4) or key.dim() != query.dim():
            return
        if mask is not None and not _is_plain(mask):
            return
        with torch.autocast(query.device.type, enabled=False):
            query, key = (one.detach() if one.dim() == 4 else one.detach().unsqueeze(1) for one in (query, key))
            if mask is not None:
                mask = mask.detach() if mask.dim() != 3 or given["query"].dim() == 4 else mask.detach().unsqueeze(1)
            scale = query.shape[-1] ** -0.5 if given.get("scale") is None else given["scale"]
            bound = bound_of(query, key, scale, mask)
            exact = largest_logits(query, key, scale, mask, bool(given.get("is_causal"))) if self._exact else None
        self._put(query.shape[1], exact, bound)

    @torch.no_grad()
    def _look_at_softmax(self, args: Any, kwargs: Any) -> None:
        logits = args[0] if args else kwargs.get("input", kwargs.get("self"))
        if not _is_plain(logits) or logits.dim() not in (3, 4) or not logits.is_floating_point():
            return
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        if dim not in (-1, logits.dim() - 1) or not _is_attention(logits):
            return
        values = logits.detach()
        if values.dim() == 3:  # all heads of all sequences; MultiheadAttention says how many heads there are
            heads = getattr(self._inside.names[-1][1], "num_heads", 1)
            heads = heads if isinstance(heads, int) and heads > 0 and len(values) % heads == 0 else 1
            values = values.reshape(-1, heads, *values.shape[1:])
        self._put(values.shape[1], values.amax(dim=(0, 2, 3)).float(), None)

    def _put(self, heads: int, exact: Optional[Any], bound: Optional[Any]) -> None:
        name = self._inside.names[-1][0]
        rows = self._rows.get((name, heads))
        if rows is None:
            rows = self._rows[name, heads] = [self._row(name, head, heads) for head in range(heads)]
        self._saw_any = True
        self._measured.append((rows, exact, bound))

    def _row(self, name: str, head: int, heads: int) -> int:
        shown = f"{name}.head{head}" if name else f"head{head}"
        return self._recording.row(Target(ATTENTION_LOGITS, shown if heads > 1 else name, len(self._rows)))

    def finish(self) -> None:
        """The step ends: waits for the devices, once for each attention."""
        for rows, *parts in self._measured:
            exact, bound = ([_absent] * len(rows) if part is None else part.tolist() for part in parts)
            for row, largest, limit in zip(rows, exact, bound):
                largest, limit = (one if one > float("-inf") else _absent for one in (largest, limit))  # all masked
                before = self._found.get(row)
                if before is not None:
                    largest, limit = _larger(before.max, largest), _larger(before.min, limit)
                shown = largest if largest == largest or self._settings.attention_logits.exact_every else limit
                self._found[row] = Figures(shown, largest, limit, *[float("nan")] * 6)
        self._measured = []
        if not self._saw_any and not self._compiled:
            notices.warn_once(
                "attention_logits has seen no attention: msprobe sees scaled_dot_product_attention, and softmax after "
                "a batched product, inside the modules of the model."
            )
            self._saw_any = True


def _larger(one: float, other: float) -> float:
    return one if one >= other or other != other else other


def _is_leaf(module: Any) -> bool:
    return next(module.children(), None) is None


def _is_plain(tensor: Any) -> bool:
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and not tensor.is_nested


def _is_attention(logits: Any) -> bool:
    """Whether the tensor comes from a product of two batches of matrices, by elementwise operations only."""
    if logits.grad_fn is None:
        return logits.dim() == 4  # nothing says where it comes from: four axes are heads of attention
    nodes, seen = [logits.grad_fn], 0
    while nodes and seen < _FAR:
        node = nodes.pop(0)
        seen += 1
        name = type(node).__name__
        if name in _BATCHED:
            return True
        if _ELEMENTWISE.fullmatch(name):
            nodes += [before for before, _ in node.next_functions if before is not None]
    return False


def bound_of(query: Any, key: Any, scale: float, mask: Optional[Any]) -> Any:
    """For each head a number that no logit exceeds: the largest norm of a query times that of a key (Cauchy-Schwarz),
    plus the largest number that a mask adds."""
    longest = [torch.linalg.vector_norm(one, dim=-1, dtype=torch.float32).amax(-1) for one in (query, key)]
    bound = abs(scale) * longest[0] * _for_each_head(longest[1], query.shape[1])
    if mask is not None and mask.dtype != torch.bool:
        bound = bound + mask.float().amax(dim=(-2, -1))
    return bound.amax(0)


def largest_logits(query: Any, key: Any, scale: float, mask: Optional[Any], causal: bool) -> Any:
    """The largest logit of each head, over all pairs that the mask allows; minus infinity if there is none."""
    batch, heads, length = max(len(query), len(key)), query.shape[1], query.shape[2]
    seen, group = key.shape[2], heads // key.shape[1]
    if mask is not None:
        mask = mask.expand(batch, heads, length, seen)
    rows = max(1, _MOST_CELLS // max(1, batch * seen))
    found = []
    for head in range(heads):
        keys = key[:, head // group].float().transpose(-2, -1)
        best = []
        for top in range(0, length, rows):
            part = slice(top, top + rows)
            logits = torch.matmul(query[:, head, part].float(), keys) * scale
            if causal:
                at = torch.arange(top, top + logits.shape[1], device=logits.device)
                logits.masked_fill_(torch.arange(seen, device=logits.device)[None] > at[:, None], float("-inf"))
            if mask is not None and mask.dtype == torch.bool:
                logits.masked_fill_(~mask[:, head, part], float("-inf"))
            elif mask is not None:
                logits += mask[:, head, part]
            best.append(logits.amax())
        found.append(torch.stack(best).amax())
    return torch.stack(found)


def _for_each_head(norms: Any, heads: int) -> Any:
    """Heads of grouped queries share a key."""
    return norms if norms.shape[1] == heads else norms.repeat_interleave(heads // norms.shape[1], dim=1)
