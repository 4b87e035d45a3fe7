"""Computes the trainer's model in float64, module by module, on the values that one side recorded.

Each module gets the recorded input and its result is replaced by the recorded output, so that the error of a module is
its own and not that of what ran before it (local replay). What stands between two modules (rotation of q and k, the
residual sum, the product of gate and up) is computed in float64 too, and measured at the next recorded value.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Callable, Optional

import numpy as np

from msprobe.dump.errors import DumpError

Array = np.ndarray[Any, Any]
ATTENTION = "msprobe_replay"
QUERY, KEY, VALUE, ATTENDED = "query", "key", "value", "attended"


@dataclass(frozen=True)
class Node:
    """A value in the trainer's model: the input or output of a module, or q, k, v and the result of attention."""

    path: str
    slot: str  # in, out, query, key, value, attended

    def __str__(self) -> str:
        return f"{self.path} {self.slot}"


Recorded = Callable[[Node], Optional[tuple[Array, Array]]]
"""The recorded values of a node for the sequence that runs, [tokens, columns], and which of these rows are known."""
Observe = Callable[[Node, Array], None]
"""Gets the values of a node in float64, before they are replaced."""


@dataclass
class Variation:
    """What a hypothesis changes in one module: its result, its attention, or the angles of its rotation."""

    path: str = ""
    module: Optional[Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]] = None
    attention: Optional[Callable[..., Any]] = None
    rotation: Optional[Callable[[Any, Any], Any]] = None


class Reference:
    """The trainer's model in float64."""

    def __init__(self, configuration: Mapping[str, Any], weights: Mapping[str, Array]) -> None:
        self.model, self.missing = _build(configuration, weights)
        self.paths = {id(module): path for path, module in self.model.named_modules()}
        self.modules: dict[str, Any] = dict(self.model.named_modules())
        self.leaves = [
            path for path, module in self.modules.items() if any(p is not None for p in module._parameters.values())
        ]
        self._observe: Observe = lambda node, values: None
        self._recorded: Recorded = lambda node: None
        self._variation = Variation()
        self._seen: set[Node] = set()
        self._shifts: Mapping[Node, Array] = {}
        self.attention: dict[str, dict[str, Any]] = {}  # the settings of attention in each layer

    def call(self, path: str, rows: Array, shape: tuple[int, ...], module: Any = None) -> Array:
        """One module on some rows, in float64. `shape` is the shape of one row of its input. `module` replaces it."""
        import torch

        with torch.no_grad(), _double():
            given = torch.from_numpy(np.ascontiguousarray(rows))
            given = given.reshape(1, len(rows), *shape) if given.is_floating_point() else given.reshape(1, -1)
            result = _first((module or self.modules[path])(given))
            return np.asarray(result.reshape(len(rows), -1).double().numpy())

    def run(
        self,
        tokens: list[int],
        recorded: Recorded,
        observe: Observe,
        aliases: Mapping[str, Node],
        variation: Optional[Variation] = None,
        shifts: Optional[Mapping[Node, Array]] = None,
    ) -> None:
        """One sequence. `aliases` are modules that are not leaves, and the node that their input equals. `shifts` are
        added to values."""
        import torch

        self._recorded, self._observe, self._variation = recorded, observe, variation or Variation()
        self._seen = set()
        self._shifts = shifts or {}
        _CURRENT[:] = [self]
        with ExitStack() as hooks:
            for path in self.leaves:
                module = self.modules[path]
                hooks.callback(module.register_forward_pre_hook(self._enter(Node(path, "in")), with_kwargs=True).remove)
                hooks.callback(module.register_forward_hook(self._leave(path), with_kwargs=True).remove)
            for path, node in aliases.items():
                hooks.callback(self.modules[path].register_forward_pre_hook(self._enter(node), with_kwargs=True).remove)
            if self._variation.rotation is not None:
                for path, module in self.modules.items():
                    if path.endswith("rotary_emb"):
                        hooks.callback(module.register_forward_hook(self._rotate).remove)
            with torch.no_grad(), _double():
                self.model(input_ids=torch.tensor([tokens]), use_cache=False)
        _CURRENT.clear()

    # Hooks.

    def _enter(self, node: Node) -> Callable[..., Any]:
        def hook(module: Any, args: Any, kwargs: Any) -> Any:
            return self._replace_first(node, args, kwargs)

        return hook

    def _replace_first(self, node: Node, args: Any, kwargs: Any) -> Any:
        import torch

        for place, value in enumerate(args):
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                made = self.exchange(node, value)
                return (*args[:place], made, *args[place + 1 :]), kwargs
        for key, value in kwargs.items():
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                return args, {**kwargs, key: self.exchange(node, value)}
        return None

    def _leave(self, path: str) -> Callable[..., Any]:
        node = Node(path, "out")

        def hook(module: Any, args: Any, kwargs: Any, output: Any) -> Any:
            if self._variation.module is not None and self._variation.path == path:
                output = self._variation.module(module, args, kwargs)
            if not isinstance(output, tuple):
                return self.exchange(node, output)
            made = self.exchange(node, output[0])
            if len(output) > 1 and made is not output[0]:  # a router has made its choice from its own logits
                function = self._variation.module if self._variation.path == path else None
                with _ReplacedLinear(made):
                    return module.forward(*args, **kwargs) if function is None else function(module, args, kwargs)
            return (made, *output[1:])

        return hook

    def _rotate(self, module: Any, args: Any, output: Any) -> Any:
        assert self._variation.rotation is not None
        return self._variation.rotation(args, output)

    def attend(self, module: Any, query: Any, key: Any, value: Any, **settings: Any) -> Any:
        path = self.paths[id(module)]
        window = settings.pop("window")
        self.attention[path] = {**settings, "window": window, "heads": (query.shape[1], key.shape[1])}
        query, key, value = (
            self._by_token(Node(path, slot), one) for slot, one in ((QUERY, query), (KEY, key), (VALUE, value))
        )
        function = plain_attention
        if self._variation.attention is not None and self._variation.path in (path, ""):
            function = self._variation.attention
        result = function(query, key, value, **settings)
        flat = result.transpose(1, 2).contiguous()
        return self.exchange(Node(path, ATTENDED), flat), None

    def _by_token(self, node: Node, value: Any) -> Any:
        """[batch, heads, tokens, size] with the recorded values, which are [tokens, heads * size]."""
        return self.exchange(node, value.transpose(1, 2).contiguous()).transpose(1, 2)

    def exchange(self, node: Node, value: Any) -> Any:
        """The value with the recorded rows in place of its own. It is observed once: the input of a layer is also
        that of its first module."""
        import torch

        length = value.shape[1] if value.dim() > 2 else value.shape[0]
        flat = value.reshape(length, -1)
        if node not in self._seen:
            self._seen.add(node)
            self._observe(node, np.asarray(flat.double().numpy()))
            shift = self._shifts.get(node)
            if shift is not None:
                return (flat + torch.from_numpy(shift)).reshape(value.shape)
        known = self._recorded(node)
        if known is None or known[0].shape != tuple(flat.shape):
            return value
        rows, there = torch.from_numpy(known[0]), torch.from_numpy(known[1])
        return torch.where(there[:, None], rows, flat).reshape(value.shape)


_CURRENT: list[Reference] = []


def plain_attention(
    query: Any,
    key: Any,
    value: Any,
    *,
    mask: Any,
    scale: float,
    softcap: Optional[float] = None,
) -> Any:
    """Attention as its definition says, in the dtype of its arguments."""
    import torch

    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = query @ key.transpose(2, 3) * scale
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores + mask
    return torch.softmax(scores, -1) @ value


def _attention(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: Any = None, **kwargs: Any
) -> Any:
    import torch

    length = query.shape[2]
    if attention_mask is None:
        attention_mask = torch.full((length, length), float("-inf"), dtype=query.dtype).triu(1)[None, None]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    settings = {"scale": scale, "softcap": kwargs.get("softcap"), "window": kwargs.get("sliding_window")}
    return _CURRENT[0].attend(module, query, key, value, mask=attention_mask[..., :length], **settings)


class _ReplacedLinear:
    """The first linear function inside returns this value: a router then chooses from recorded logits."""

    def __init__(self, value: Any) -> None:
        import torch
        from torch.overrides import TorchFunctionMode

        class Mode(TorchFunctionMode):  # type: ignore[misc]
            pending = True

            def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                if self.pending and func is torch.nn.functional.linear:
                    self.pending = False
                    return value
                return func(*args, **(kwargs or {}))

        self._mode = Mode()

    def __enter__(self) -> None:
        self._mode.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._mode.__exit__(*error)


def _first(output: Any) -> Any:
    return output[0] if isinstance(output, tuple) else output


def _double() -> Any:
    """Code that asks for float32 (norms, rotations, softmax) gets float64."""
    import torch
    from torch.overrides import TorchFunctionMode

    narrow = (torch.float32, torch.bfloat16, torch.float16)

    class Double(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.Tensor.float:
                func = torch.Tensor.double
            args = tuple(torch.float64 if isinstance(one, torch.dtype) and one in narrow else one for one in args)
            kwargs = {
                k: torch.float64 if isinstance(v, torch.dtype) and v in narrow else v for k, v in (kwargs or {}).items()
            }
            return func(*args, **kwargs)

    return Double()


def _build(configuration: Mapping[str, Any], weights: Mapping[str, Array]) -> tuple[Any, list[str]]:
    """The model with the recorded weights, and the names of parameters that were not recorded."""
    import torch

    try:
        from transformers import CONFIG_MAPPING, AutoModelForCausalLM
        from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    except ImportError:
        raise DumpError("comparing by token needs transformers: `pip install transformers`.") from None
    kind = configuration.get("model_type")
    if kind not in CONFIG_MAPPING:
        raise DumpError(f"this transformers does not know the model type {kind!r}: install a newer one.")
    ALL_ATTENTION_FUNCTIONS.register(ATTENTION, _attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(ATTENTION, eager_mask)
    config = CONFIG_MAPPING[kind].from_dict(dict(configuration))
    config._attn_implementation = ATTENTION
    config._experts_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config, trust_remote_code=False).double().eval()
    missing = []
    with torch.no_grad():
        for name, parameter in model.named_parameters(remove_duplicate=False):
            value = weights.get(name)
            if value is None or tuple(value.shape) != tuple(parameter.shape):
                missing.append(name)
            else:
                parameter.data = torch.from_numpy(np.array(value, dtype=np.float64))
    return model, missing
