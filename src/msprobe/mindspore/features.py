"""What differs between the versions of MindSpore that msprobe supports, found by looking, not by comparing versions.

Each name says which versions differ. Other code asks here; a private name of MindSpore that moved has its line here.
"""

from __future__ import annotations

import importlib
from typing import Any, Callable

import mindspore
from mindspore import _c_expression
from mindspore._c_expression import TensorPy


def _first(*places: str) -> Any:
    """The first of these modules or names that exists; None if none does."""
    for place in places:
        module, _, name = place.partition(":")
        try:
            found = importlib.import_module(module)
        except ImportError:
            continue
        if not name or hasattr(found, name):
            return getattr(found, name) if name else found
    return None


graph_api: Any = _first("mindspore.graph.api", "mindspore.common.api")
"""The module with the executors; it moved in 2.9."""

MsDispatchMode: Any = _first("mindspore.utils:MsDispatchMode")
"""The class whose subclasses see each operator; None before 2.8."""

PIJitCaptureContext: Any = _first("mindspore.graph._utils.pijit_context:PIJitCaptureContext")
"""None before 2.9."""

_Node: Any = getattr(_c_expression, "BackwardNodePy", None)

HAS_BACKWARD_GRAPH = hasattr(_Node, "register_prehook") and hasattr(TensorPy, "_grad_node")
"""Whether Python can read and hook the backward graph: since 2.7.1. Without it, backward records do not exist."""

LEAF = 2**64 - 1  # the sequence number of an input or a parameter


def _number_or_name(node: Any) -> Any:
    number = node._sequence_nr()
    return node.name() if number == LEAF else number


node_identity: Callable[[Any], Any] = getattr(_Node, "_unique_id", _number_or_name)
"""What tells one node of the backward graph from all others that live. Before 2.9, nodes have no identity: inputs and
parameters then have a name, and all others a number."""

HOOKS_RUN_AFTER_ERRORS = hasattr(mindspore.nn.Cell, "_forward_hook_always_called")
"""Whether a Cell that raises can still call its forward hooks: since 2.10."""
