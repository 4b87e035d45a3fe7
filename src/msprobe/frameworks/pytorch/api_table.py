"""Which PyTorch calls are APIs and what they are called: support_wrap_ops.yaml, resolved to function objects.

A TorchFunctionMode gets the function object of every call, whatever name the user bound it to. The
table turns that object into an `Api` with one dictionary lookup. Names are resolved once, when the table is
loaded; operators of ``torch.ops`` cannot be known beforehand and are added when they first arrive.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import FunctionType
from typing import Any, Callable, Optional

import torch
import torch.nn.functional

from msprobe.dump.names import BACKWARD, FORWARD
from msprobe.frameworks.pytorch.api_list import read_lists
from msprobe.frameworks.pytorch.operators import ARRIVES_AS
from msprobe.frameworks.pytorch.overridable import builtin_functions, dispatches, python_functions, untracked_functions

PACKAGED = Path(__file__).parents[2] / "pytorch" / "support_wrap_ops.yaml"

PREFIXES = {
    "functional": "Functional",
    "vf": "VF",
    "tensor": "Tensor",
    "torch": "Torch",
    "distributed": "Distributed",
    "npu": "NPU",
}
# Ascend's operators are in these namespaces of torch.ops; `torch_npu.x` is `torch.ops.npu.x`.
_NPU_NAMESPACES = {"npu": "", "atb": "atb."}
# Operators of all other namespaces may write tensors without a change of the version counter.
_TRACKED_NAMESPACES = frozenset(("aten", "prim", "prims", "profiler"))
# torch 2.13 renamed the function below the public name; records keep the name that all versions know.
_RENAMED = {
    "all_gather_into_tensor": "all_gather_single",
    "reduce_scatter_tensor": "reduce_scatter_single",
}
_RANDOM_NAMES = """
alpha_dropout alpha_dropout_ bernoulli bernoulli_ binomial cauchy_ dropout dropout_ dropout1d dropout2d
dropout3d exponential_ feature_alpha_dropout feature_alpha_dropout_ feature_dropout feature_dropout_
fractional_max_pool2d fractional_max_pool2d_with_indices fractional_max_pool3d
fractional_max_pool3d_with_indices geometric_ gru gumbel_softmax log_normal_ lstm
multi_head_attention_forward multinomial native_dropout normal normal_ poisson rand rand_like
randint randint_like randn randn_like random_ randperm rnn_relu rnn_tanh rrelu rrelu_
scaled_dot_product_attention uniform_ _npu_dropout npu_dropout_with_add_softmax
npu_fusion_attention npu_fusion_attention_v2 npu_fusion_attention_v3 npu_random_choice_with_mask
npu_top_k_top_p_sample
"""
_OPERATOR_NAMES = "add sub mul truediv floordiv mod pow and or xor lshift rshift matmul"
_OPERATORS = frozenset(f"__{name}__" for name in _OPERATOR_NAMES.split())
_RANDOM = frozenset(_RANDOM_NAMES.split())
NOTHING, FIRST, ANY = range(3)
# Functions that write arguments although neither their name nor a parameter `inplace` shows it.
_WRITING = """
batch_norm_gather_stats batch_norm_gather_stats_with_counts batch_norm_update_stats embedding embedding_bag
fused_moving_avg_obs_fake_quant rrelu_with_noise _amp_foreach_non_finite_check_and_unscale_
_fused_moving_avg_obs_fq_helper
"""
_WRITING_NAMES = frozenset(_WRITING.split())
_NORMALISING = frozenset(("batch_norm", "instance_norm", "native_batch_norm", "_native_batch_norm_legit"))
_WRITING_PARTS = (torch.Tensor.real.__set__, torch.Tensor.imag.__set__)


@dataclass(frozen=True, eq=False)
class Api:
    """One API. ``{prefix}.{name}`` is what its records are called. Compared by identity."""

    prefix: str
    name: str
    inplace: bool = False  # always writes its first argument
    inplace_at: int = -1  # position of a parameter called `inplace`, if it has one
    random: bool = False  # may draw random numbers
    collective: bool = False
    untracked: bool = False  # may write tensors without a change of their version counters
    members = ""  # every record of an API has the same members

    @cached_property
    def title(self) -> str:
        return f"{self.prefix}.{self.name}"

    @cached_property
    def writes_statistics(self) -> bool:
        """Whether it may write running statistics, which its name does not show."""
        return self.name in _NORMALISING

    @cached_property
    def writes(self) -> int:
        """What it may write, apart from `out`: NOTHING, its FIRST argument or ANY."""
        return ANY if self.inplace_at >= 0 else _writes(self.name)

    @cached_property
    def changes(self) -> bool:
        """Whether it may write anything, apart from `out`."""
        return self.untracked or bool(self.writes)

    @cached_property
    def simple(self) -> bool:
        """Whether its name says what it writes: its first argument, or nothing."""
        special = self.random or self.collective or self.untracked or self.writes_statistics
        return not special and self.inplace_at < 0

    @cached_property
    def first_call(self) -> str:
        """The name of its first call, used for all its calls if calls are not numbered."""
        return f"{self.title}.0.forward"


class ApiTable:
    """The list, resolved.

    lookup: function object -> Api, or None if it is not collected. ``lookup[func]`` never raises; ``get`` does not see
    operators of torch.ops before their first ``lookup[func]``. operators: ``__add__`` -> Api, for those operators that
    arrive as another method (operators.ARRIVES_AS). An operator that is not here is off, even if the method is on.
    composite: Python functions of torch that are not in the list; what they call may be. untracked: functions,
    collected or not, after which remembered statistics must not be trusted. writes: function object -> what it may
    write (see Api.writes), for those that are not collected. plain: functions that can be ignored: neither they nor
    what they call is collected, and they write nothing. by_attribute: names in torch.distributed that are wanted but
    never arrive: to be wrapped where they are. missing: ``category.name`` of what this version of torch (and torch_npu)
    does not have. switched_on: whether `named`, the names in scope and list, has switched on a call that the file
    leaves off.
    """

    def __init__(self, path: Path, named: Sequence[str] = ()) -> None:
        on, off = read_lists(path)
        self.path = path
        further = [found for name in named for found in _find_off(name, on, off)]
        for category, name in further:
            on[category].append(name)
        self.switched_on = bool(further)
        self.missing: list[str] = []
        self.by_attribute: list[str] = []
        self.operators: dict[str, Api] = {}
        self.untracked: set[Callable[..., Any]] = set(untracked_functions())
        self.lookup = _Lookup(_OpRules(on, off), self.untracked)
        for category in PREFIXES:
            for name in on[category]:
                self._add(category, name)
        self.composite = frozenset(f for f in python_functions() if f not in self.lookup)
        others = [f for f in builtin_functions() if self.lookup.get(f) is None and f not in self.untracked]
        self.writes = _Writes(dict.fromkeys(_WRITING_PARTS, FIRST))
        self.plain = frozenset(f for f in others if not self.writes[f])

    def explain(self, entry: str) -> Optional[str]:
        """Why a name in scope or list is never the name of a record; None if it can be one."""
        found = _parse_entry(entry)
        if found is None:
            return None
        category, name = found
        func = _resolve(category, name)
        if func is None:
            return f"this version of PyTorch has no {PREFIXES[category]}.{name}"
        api = self.lookup.get(func)
        if api is not None and api.title != f"{PREFIXES[category]}.{name}" and name not in ARRIVES_AS:
            return f"PyTorch calls it {api.title}: use that name"
        return None

    def _add(self, category: str, name: str) -> None:
        func = _resolve(category, name)
        if func is None:
            self.missing.append(f"{category}.{name}")
            return
        api = _describe(category, name, func)
        if category == "distributed" and not dispatches(func):
            self.by_attribute.append(name)
        elif category == "tensor" and name in ARRIVES_AS:
            self.operators[name] = api
        else:
            self.lookup.setdefault(func, api)


class _Writes(dict[Any, int]):
    def __missing__(self, func: Any) -> int:
        writes = self[func] = _writes(str(getattr(func, "__name__", "")).split(".")[0])  # of an overload: add_.Tensor
        return writes


class _Lookup(dict[Callable[..., Any], Optional[Api]]):
    """Adds operators of torch.ops when they are first called, and returns None for all others."""

    def __init__(self, rules: _OpRules, untracked: set[Callable[..., Any]]) -> None:
        super().__init__()
        self._rules = rules
        self._untracked = untracked

    def __missing__(self, func: Callable[..., Any]) -> Optional[Api]:
        if not isinstance(func, _OPERATOR_TYPES):
            return None
        namespace, name = _operator_name(func)
        api = self._rules.find(namespace, name)
        self[func] = api
        if namespace not in _TRACKED_NAMESPACES:
            self._untracked.add(func)
        return api


class _OpRules:
    """The rules of the `ops` and `npu` lists for an operator of torch.ops. The more specific line applies."""

    def __init__(self, on: dict[str, list[str]], off: dict[str, list[str]]) -> None:
        self._wanted = dict.fromkeys(on["ops"], True)
        self._wanted.update(dict.fromkeys(off["ops"], False))
        self._wanted.update(dict.fromkeys(map(_npu_operator, on["npu"]), True))
        self._wanted.update(dict.fromkeys(map(_npu_operator, off["npu"]), False))

    def find(self, namespace: str, name: str) -> Optional[Api]:
        for rule in (f"{namespace}.{name}", f"{namespace}.*", "*"):
            if rule in self._wanted:
                wanted = self._wanted[rule]
                break
        else:
            wanted = False
        if not wanted:
            return None
        prefix, title = "Ops", f"{namespace}.{name}"
        if namespace in _NPU_NAMESPACES:
            prefix, title = "NPU", _NPU_NAMESPACES[namespace] + name
        elif namespace == "aten":
            prefix, title = "Aten", name
        return Api(
            prefix,
            title,
            inplace=_is_inplace(name),
            random=name in _RANDOM,
            collective="c10d" in namespace,
            untracked=namespace not in _TRACKED_NAMESPACES,
        )


_OPERATOR_TYPES: tuple[type, ...] = (
    torch._ops.OpOverload,
    torch._ops.OpOverloadPacket,
    torch._ops.HigherOrderOperator,
)


def load_table(path: Optional[str] = None, named: Sequence[str] = ()) -> ApiTable:
    """The table of the packaged list, or of the user's copy at `path`, with the APIs that `named` switches on."""
    return ApiTable(PACKAGED if path is None else Path(path), named)


def _parse_entry(entry: str) -> Optional[tuple[str, str]]:
    """`Tensor.permute.1.forward` -> (`tensor`, `permute`); None if it is not the name of an API."""
    prefix, _, rest = entry.partition(".")
    parts = rest.split(".")
    while len(parts) > 1 and (parts[-1].isdigit() or parts[-1] in (FORWARD, BACKWARD)):
        parts.pop()
    category = next((category for category, known in PREFIXES.items() if known == prefix), None)
    return (category, ".".join(parts)) if category is not None and parts[0] else None


def _find_off(entry: str, on: dict[str, list[str]], off: dict[str, list[str]]) -> list[tuple[str, str]]:
    """The calls that an entry of scope or list names and that the file leaves off."""
    if "." not in entry:
        return [(category, entry) for category in PREFIXES if entry in off[category]]
    found = _parse_entry(entry)
    if found is None or found[1] in on[found[0]] or _resolve(*found) is None:
        return []
    return [found]


def _operator_name(func: Any) -> tuple[str, str]:
    if isinstance(func, torch._ops.HigherOrderOperator):
        return "higher_order", str(func.__name__)
    packet = func.overloadpacket if isinstance(func, torch._ops.OpOverload) else func
    namespace, _, name = packet._qualified_op_name.partition("::")
    return namespace, name


def _npu_operator(name: str) -> str:
    return name if name.startswith("atb.") else f"npu.{name}"


def _home(category: str) -> Any:
    if category == "functional":
        return torch.nn.functional
    if category == "tensor":
        return torch.Tensor
    if category == "vf":
        return torch._VF
    if category == "distributed":
        return torch.distributed if torch.distributed.is_available() else None
    if category == "npu":
        return sys.modules.get("torch_npu")
    return torch


def _resolve(category: str, name: str) -> Optional[Callable[..., Any]]:
    """The object that arrives when `name` is called, or None if there is no such function here."""
    found = _home(category)
    if category == "distributed":
        found = getattr(found, _RENAMED.get(name, name), None) or getattr(found, name, None)
    else:
        for part in name.split("."):
            found = getattr(found, part, None)
    return found if callable(found) else None


def _describe(category: str, name: str, func: Callable[..., Any]) -> Api:
    collective = category == "distributed"
    return Api(
        PREFIXES[category],
        name,
        inplace=_is_inplace(name),
        inplace_at=_position_of_inplace(func),
        random=name in _RANDOM,
        collective=collective,
        untracked=collective or name.startswith("_fused_") or category == "npu",
    )


def _is_inplace(name: str) -> bool:
    """Whether an API writes its first argument, by torch's naming: also `__iadd__`, but not `__invert__` or
    `__int__`."""
    if name.endswith("__"):
        return name == "__setitem__" or (name.startswith("__i") and f"__{name[3:]}" in _OPERATORS)
    return name.endswith("_")


def _writes(name: str) -> int:
    if name in _WRITING_NAMES or name in _NORMALISING:
        return ANY
    return FIRST if _is_inplace(name) else NOTHING


def _position_of_inplace(func: Callable[..., Any]) -> int:
    if not isinstance(func, FunctionType):
        return -1
    names = func.__code__.co_varnames[: func.__code__.co_argcount]
    return names.index("inplace") if "inplace" in names else -1
