"""Which calls exchange tensors between ranks, by the names that both frameworks record."""

from __future__ import annotations

SENDS, RECEIVES = ("send", "isend"), ("recv", "irecv")
# Operators of MindSpore, in a graph or called as a Primitive.
OPERATORS = frozenset(("AllReduce", "AllGather", "AlltoAll", "AllToAllv", "Broadcast", "Reduce", "ReduceScatter"))
_PREFIXES = ("Distributed.", "MintDistributed.")
# Collectives under the prefix of a functional API (`Ops._c10d_functional.all_reduce`).
_FUNCTIONS = frozenset(
    (
        "all_reduce",
        "all_gather",
        "all_gather_base",
        "all_gather_into_tensor",
        "all_to_all_single",
        "reduce_scatter",
        "reduce_scatter_base",
        "reduce_scatter_tensor",
    )
)


def is_collective(key: str) -> bool:
    """Whether a call exchanges tensors with other ranks; `key` is its name without number and direction."""
    last = key.rpartition(".")[2]
    return key.startswith(_PREFIXES) or last in OPERATORS or last.strip("_") in _FUNCTIONS
