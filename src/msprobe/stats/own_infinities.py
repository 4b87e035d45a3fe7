"""Decides whether a call that got an infinity has produced a new one.

A mask of -inf goes through a call and comes out again: that is not an overflow. But `scores + mask` may also overflow
where the mask is 0. So infinities are distinguished by place, sign and count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Signs = Any
"""1, -1 or 0 for each element of a tensor: +inf, -inf, anything else."""

_MOVE = """
__getitem__ __setitem__ cat concat concatenate stack hstack vstack dstack split chunk unbind index_select gather take
take_along_dim repeat repeat_interleave tile expand expand_as broadcast_to flip fliplr flipud roll rot90 sort msort topk
t transpose permute movedim swapaxes reshape view flatten unflatten squeeze unsqueeze narrow select slice clone
contiguous detach index_put index_put_ scatter scatter_ index_copy_ masked_select masked_scatter masked_scatter_ unfold
as_strided diagonal diag diag_embed pad max min amax amin cummax cummin all_gather all_gather_into_tensor broadcast
scatter_nd gather_nd tensor_scatter_update select_scatter slice_scatter
"""
_TURN = """
neg neg_ __neg__ negative sub sub_ __sub__ __rsub__ __isub__ rsub subtract mul mul_ __mul__ __rmul__ __imul__ multiply
div div_ __truediv__ __rtruediv__ __itruediv__ divide true_divide abs __abs__ absolute square pow __pow__ __rpow__
matmul __matmul__ mm bmm linear einsum dot mv norm vector_norm prod lerp addcmul addcdiv
Neg Sub Mul Div RealDiv Abs Square Pow MatMul BatchMatMul
"""
MOVES = frozenset(_MOVE.split())
"""Calls that compute nothing: an infinity in their result was in their input."""
TURNS = frozenset(_TURN.split())
"""Calls that may change the sign of an infinity in their input."""


def signs_of(values: Any) -> Signs:
    """The signs for an array of any floating dtype; for a complex one, both parts count."""
    array = np.asarray(values)
    if array.dtype.kind == "c":
        return np.where(np.isinf(array.real), np.sign(array.real), np.where(np.isinf(array.imag), 1, 0)).astype(np.int8)
    if array.dtype.kind not in "f":
        array = array.astype(np.float32)
    return np.where(np.isinf(array), np.sign(array), 0).astype(np.int8)


def makes_own(api: str, given: Sequence[Signs], numbers: set[int], made: Sequence[Signs]) -> bool:
    """Whether an infinity in `made` comes neither from one in `given` nor from a number."""
    if api in MOVES:
        return False
    sources = [one for one in given if one.any()]
    return any(_is_own(api, sources, numbers, one) for one in made if one.any())


def _is_own(api: str, sources: Sequence[Signs], numbers: set[int], made: Signs) -> bool:
    known = {sign for one in sources for sign in (1, -1) if (one == sign).any()} | numbers
    fitting = [one for one in sources if _fits(one.shape, made.shape)]
    if len(fitting) < len(sources) or not sources:
        return api not in TURNS and bool(set(np.unique(made)) - {0} - known)
    unexplained = made != 0
    allowed = 0
    for one in fitting:
        spread = np.broadcast_to(one != 0, made.shape)
        unexplained &= ~spread
        allowed += int(np.count_nonzero(spread))
    for sign in numbers:
        unexplained &= made != sign
    if not unexplained.any():
        return False
    # If infinities were only moved (a transposed mask), their places differ, but not their number and sign.
    others = set(np.unique(made[unexplained])) - known
    return bool(others) or int(np.count_nonzero(made)) > allowed


def _fits(shape: tuple[int, ...], wide: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, wide) == wide
    except ValueError:
        return False
