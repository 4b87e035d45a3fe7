"""Translates names: what the target calls X, the golden run calls Y.

Two dumps of one framework use the same names. For two frameworks, a table (`correspondences.json`) lists the APIs,
classes and parameters that correspond. Mapping files of the user override it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from msprobe.compare.calls import Call, module_class, module_path


class ApiRule(NamedTuple):
    """One entry of an API mapping: the golden name, and which arguments and outputs correspond."""

    golden: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


@lru_cache(maxsize=1)
def _table() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((Path(__file__).parent / "correspondences.json").read_text("utf-8"))
    return loaded


@lru_cache(maxsize=1)
def _operations() -> dict[str, str]:
    return {alias: name for name, aliases in _table()["operations"].items() for alias in [name, *aliases]}


@lru_cache(maxsize=1)
def _classes() -> dict[str, str]:
    return {alias: name for name, aliases in _table()["classes"].items() for alias in aliases}


@lru_cache(maxsize=1)
def _parameters() -> dict[str, str]:
    return {alias: name for name, aliases in _table()["parameters"].items() for alias in aliases}


@lru_cache(maxsize=4096)
def operation_of(key: str) -> str:
    """`Tensor.__iadd__`, `Mint.add` and `Primitive.x.BiasAdd` are one operation: add."""
    word = key.rpartition(".")[2].strip("_").lower()
    return _operations().get(word, word)


def fused_ends(key: str) -> tuple[str, ...]:
    """The operations that the unfused form of a call ends in; empty for calls that have none."""
    return tuple(_table()["fused"].get(operation_of(key), ()))


def parameter_name(slot: str) -> str:
    """`parameters.gamma` -> `parameters.weight`: the golden framework's word for a parameter's slot."""
    head, dot, name = slot.rpartition(".")
    return head + dot + _parameters().get(name, name)


@dataclass
class Translation:
    """How names are made comparable.

    `calls` and `slots` come from a data mapping (full names), `apis` from an API mapping, `cells` from a cell mapping
    (`path.Class` of the target to that of the golden run), `layers` from a layer mapping (class -> {attribute:
    attribute}, with `TopLayer` for the model itself). `across` is set if the two dumps come from different frameworks.
    `classes` has the module classes of the target by path, for `layers`.
    """

    calls: dict[str, str] = field(default_factory=dict)
    slots: dict[str, str] = field(default_factory=dict)
    apis: dict[str, ApiRule] = field(default_factory=dict)
    cells: dict[str, str] = field(default_factory=dict)
    layers: dict[str, dict[str, str]] = field(default_factory=dict)
    across: bool = False
    classes: dict[str, str] = field(default_factory=dict, repr=False)

    def between_frameworks(self) -> Translation:
        return replace(self, across=True)

    @property
    def plain(self) -> bool:
        """Names mean the same on both sides."""
        return not (self.calls or self.slots or self.apis or self.cells or self.layers or self.across)

    def target_key(self, call: Call) -> str:
        if self.plain:
            return call.key
        if call.kind in ("module", "grads"):
            return "Module." + self.target_path(call)
        rule = self.apis.get(call.key)
        if rule is not None:
            return rule.golden
        return operation_of(call.key) if self.across else call.key

    def golden_key(self, call: Call) -> str:
        if self.plain:
            return call.key
        if call.kind in ("module", "grads"):
            return "Module." + self.golden_path(call)
        if call.key in self._golden_apis:
            return call.key
        return operation_of(call.key) if self.across else call.key

    def target_path(self, call: Call) -> str:
        """The module's path in the golden run's words."""
        mapped = self.cells.get(f"{module_path(call.key)}.{module_class(call.key)}")
        if mapped is not None:
            return mapped.rpartition(".")[0]
        path = module_path(call.key)
        return self._renamed(path) if self.layers else path

    def golden_path(self, call: Call) -> str:
        return module_path(call.key)

    def operation(self, call: Call) -> str:
        """The weakest name of a call: its operation, or its module's class."""
        if call.kind == "module":
            name = module_class(call.key)
            return "class " + _classes().get(name, name)
        return operation_of(call.key)

    def _renamed(self, path: str) -> str:
        """Renames each attribute by the mapping of its class; by any mapping if the class was not recorded."""
        parts, renamed, at = path.split("."), [], 0
        while at < len(parts):
            holder = "TopLayer" if at == 0 else self.classes.get(".".join(parts[:at]), "")
            names = self.layers.get(holder)
            if names is None:
                names = {} if holder and holder != "TopLayer" else self._any_layer
            taken = next((n for n in range(len(parts), at, -1) if ".".join(parts[at:n]) in names), at + 1)
            piece = ".".join(parts[at:taken])
            renamed.append(names.get(piece, piece))
            at = taken
        return ".".join(part for part in renamed if part)

    @cached_property
    def _any_layer(self) -> dict[str, str]:
        return {left: right for names in self.layers.values() for left, right in names.items()}

    @cached_property
    def _golden_apis(self) -> frozenset[str]:
        return frozenset(rule.golden for rule in self.apis.values())

    def knowing(self, target: Sequence[Call]) -> Translation:
        """The same translation with the classes of the target's modules, which a layer mapping needs."""
        if not self.layers:
            return self
        classes = {module_path(call.key): module_class(call.key) for call in target if call.kind == "module"}
        return replace(self, classes=classes)
