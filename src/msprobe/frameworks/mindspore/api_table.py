"""Which MindSpore calls are APIs and what they are called: support_wrap_ops.yaml, resolved to functions."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional

from mindspore import Tensor

from msprobe.frameworks.api_lists import read_lists

PACKAGED = Path(__file__).parents[2] / "mindspore" / "dump" / "hook_cell" / "support_wrap_ops.yaml"
# Category -> (where its names are, what its records begin with). A function that mint shares with ops, called by a
# name of the user, counts as one of ops, where it is defined.
_CATEGORIES = {
    "ops": (("mindspore.ops", "mindspore.ops.functional"), "Functional"),
    "mint.nn.functional": (("mindspore.mint.nn.functional",), "MintFunctional"),
    "mint.distributed": (("mindspore.mint.distributed",), "MintDistributed"),
    "mint.ops": (("mindspore.mint",), "Mint"),
    "communication.comm_func": (("mindspore.communication.comm_func",), "Distributed"),
}
CATEGORIES = ("tensor", *_CATEGORIES)


class Api(NamedTuple):
    """One API. Its records are called `{title}.{n}.forward`.

    `owner` is the Cell that a compiled region is part of; `members` are JSON members of each record.
    """

    title: str
    name: str
    collective: bool = False
    owner: Any = None
    members: str = ""
    changes: bool = False  # nothing is cached on MindSpore, so it does not matter what an API writes


class ListedFunction(NamedTuple):
    """One place that has a listed function."""

    holder: Any
    name: str
    function: Callable[..., Any]
    api: Api


def load_table(path: Path = PACKAGED) -> list[ListedFunction]:
    """Every listed function that this version of MindSpore has."""
    on, _ = read_lists(path, CATEGORIES)
    table: list[ListedFunction] = []
    for name in on["tensor"]:
        method = getattr(Tensor, name, None)
        if callable(method):
            table.append(ListedFunction(Tensor, name, method, Api(f"Tensor.{name}", name)))
    for category, (places, prefix) in _CATEGORIES.items():
        collective = prefix in ("MintDistributed", "Distributed")
        for place in places:
            module = importlib.import_module(place)
            for listed in on[category]:
                found = _resolve(module, listed, Api(f"{prefix}.{listed.rpartition('.')[2]}", listed, collective))
                if found is not None:
                    table.append(found)
    return table


def _resolve(module: Any, listed: str, api: Api) -> Optional[ListedFunction]:
    path, _, name = listed.rpartition(".")
    holder = getattr(module, path, None) if path else module
    function = getattr(holder, name, None)
    if not callable(function) or isinstance(function, type):
        return None
    return ListedFunction(holder, name, function, api)
