"""From the title of a record to a callable: only names in the support list, whatever a dump says.

A dump may come from anyone. The table is made from the list and from the operators that this process has registered. A
title is looked up as a whole and never split to reach into a module.
"""

from __future__ import annotations

import re
from typing import Any, Callable, NamedTuple, Optional

import torch

from msprobe.check.core.framework import NotCallable
from msprobe.frameworks.pytorch.api_table import Api, load_table
from msprobe.frameworks.pytorch.operators import ARRIVES_AS

_PART = re.compile(r"[A-Za-z_]\w*\Z", re.ASCII)
# Operators that read or write files, or do not compute.
_NAMESPACES_LEFT_OUT = frozenset(("prim", "prims", "profiler", "higher_order", "debugprims", "_test", "inductor"))
_OPERATORS_LEFT_OUT = frozenset(("from_file", "save", "warn", "format", "print"))


class ResolvedApi(NamedTuple):
    api: Api
    func: Callable[..., Any]


class Callables:
    def __init__(self) -> None:
        self._table = load_table()
        self.known: dict[str, ResolvedApi] = {}
        for func, api in self._table.lookup.items():
            if api is not None and not api.collective:
                self.known.setdefault(api.title, ResolvedApi(api, func))
        for dunder, api in self._table.operators.items():
            original = getattr(torch.Tensor, dunder, None) or getattr(torch.Tensor, ARRIVES_AS[dunder])
            self.known.setdefault(api.title, ResolvedApi(api, original))

    def find(self, title: str) -> ResolvedApi:
        """The callable for a title; raises NotCallable."""
        prefix, _, name = title.partition(".")
        if prefix == "Distributed":
            raise NotCallable("a collective cannot be run alone")
        found = self.known.get(title)
        if found is None and prefix in ("Ops", "Aten", "NPU"):
            found = self._operator(prefix, name)
            if found is not None:
                self.known[title] = found
        if found is None:
            raise NotCallable(f"{title} is not in the support list, or this installation has no such API")
        return found

    def _operator(self, prefix: str, name: str) -> Optional[ResolvedApi]:
        """An operator of torch.ops that is registered here and that the list allows."""
        if prefix == "Ops":
            namespace, _, name = name.partition(".")
        else:
            namespace = {"Aten": "aten", "NPU": "npu"}[prefix]
        if not _PART.match(namespace) or not _PART.match(name) or namespace.startswith("__"):
            return None
        if namespace in _NAMESPACES_LEFT_OUT or name in _OPERATORS_LEFT_OUT:
            return None
        home = getattr(torch.ops, namespace, None)
        if type(home) is not type(torch.ops.aten):
            return None
        func = getattr(home, name, None)
        if not isinstance(func, torch._ops.OpOverloadPacket):
            return None
        api = self._table.lookup[func]
        if api is None or api.collective:
            return None
        return ResolvedApi(api, func)
