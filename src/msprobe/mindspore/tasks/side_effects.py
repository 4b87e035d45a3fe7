"""The side effects of a call: it draws random numbers, writes its input, or communicates with other ranks.

MindSpore does not list them in one place. They are derived from names: of the listed functions, of the classes of
operators and, for a user function, of the operators that it ran.
"""

from __future__ import annotations

import inspect
import re
from functools import cache
from typing import Any, Callable, NamedTuple

from mindspore import ops

from msprobe.frameworks.mindspore.api_table import Api
from msprobe.mindspore.features import MsDispatchMode

SHOWS_INSIDE = MsDispatchMode is not None
_RANDOM_FUNCTIONS = re.compile(
    r"(dropout\w*|rand(_like|int|int_like|n|n_like|perm)?|random_\w*|normal_?|log_normal_?|uniform_?|bernoulli_?"
    r"|multinomial\w*|poisson|gamma|\w*laplace|\w+_candidate_sampler|shuffle|choice_with_mask|standard_\w+"
    r"|gumbel_softmax|rrelu|exponential_|cauchy_|geometric_)"
)
_RANDOM_OPERATORS = re.compile(
    r"Rand|Dropout|Uniform|(Standard|Truncated|Log|Inplace)Normal|^Normal|Multinomial|Bernoulli|^Gamma|Poisson|Laplace"
    r"|Sampler|Shuffle|Exponential"
)
# These draw from the generator, whose state can be restored; older operators have their own, whose state cannot.
_FROM_GENERATOR = re.compile(r"Ext$|^Inplace|^Normal(Tensor|Float)")
_COLLECTIVES = re.compile(
    r"^(Inner|Dist)Comm|^(All|Reduce|Collective|NeighborExchange|Alltoall|AlltoAll)(Reduce|Gather|Scatter|toAll|ToAll|V)"
    r"|^(Broadcast|Send|Receive|Barrier|Reduce)$|ReduceScatter|AllGather|_reduce_scatter$|^all_gather|AllReduce"
)
_WRITING_OPERATORS = re.compile(r"^(Assign|Scatter|Inplace|Apply|SparseApply|BatchNorm|CopyWith)|^Adam|Momentum")
_WRITING_FUNCTIONS = re.compile(
    r"assign\w*|scatter_(update|add|sub|mul|div|max|min)|scatter_nd_(add|sub|mul|div|max|min|update)|index_add"
    r"|inplace_\w+|batch_norm|instance_norm|__setitem__|__i(add|sub|mul|truediv|floordiv|mod|pow)__|.*[^_]_"
)


class SideEffects(NamedTuple):
    random: bool
    writes: bool
    collective: bool
    inplace_at: int
    """The position of an argument `inplace`, or -1."""


@cache
def _of_name(title: str, name: str) -> SideEffects:
    last = name.rpartition(".")[2]
    if title.startswith("Primitive."):
        return SideEffects(bool(_RANDOM_OPERATORS.search(last)), False, bool(_COLLECTIVES.search(last)), -1)
    random, writes = _RANDOM_FUNCTIONS.fullmatch(last), _WRITING_FUNCTIONS.fullmatch(last)
    return SideEffects(bool(random), bool(writes), bool(_COLLECTIVES.search(last)), -1)


@cache
def _inplace_at(function: Callable[..., Any]) -> int:
    try:
        return list(inspect.signature(function).parameters).index("inplace")
    except (TypeError, ValueError):
        return -1


def side_effects_of(api: Api, func: Any, args: Any, kwargs: Any) -> SideEffects:
    """The effects of a listed function, or of a Primitive that a Cell owns."""
    known = _of_name(api.title, api.name)
    owner = getattr(func, "args", None)
    if owner and isinstance(owner[0], ops.Primitive):
        return known._replace(writes=bool(owner[0].attrs.get("side_effect_mem")))
    at = _inplace_at(func)
    if at >= 0 and (args[at] if len(args) > at else kwargs.get("inplace", False)):
        return known._replace(writes=True)
    return known


class WatchedFunction:
    """Runs a user function once and notes which kinds of operators run inside."""

    def __init__(self, func: Callable[..., Any]) -> None:
        self._func = func
        self.seen: set[str] = set()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not SHOWS_INSIDE:
            return self._func(*args, **kwargs)
        seen = self.seen

        class Mode(MsDispatchMode):
            def __ms_dispatch__(self, func: Any, args: Any = (), kwargs: Any = None) -> Any:
                seen.add(func.name)
                return func(*args, **(kwargs or {}))

        with Mode():
            return self._func(*args, **kwargs)

    def obstacle(self) -> str:
        """Why it cannot run a second time, or an empty text."""
        if not SHOWS_INSIDE:
            return "this version of MindSpore does not show what runs inside it; MindSpore 2.8 does"
        for name in sorted(self.seen):
            if _COLLECTIVES.search(name):
                return f"{name} runs inside it, and a collective is never run a second time"
            if _RANDOM_OPERATORS.search(name) and not _FROM_GENERATOR.search(name):
                return f"{name} runs inside it, and its random numbers cannot be drawn a second time"
            if _WRITING_OPERATORS.search(name):
                return f"{name} runs inside it, and may write what is not among its arguments"
        return ""
