"""Which calls are matrix products, from their names, and which of their tensors are factors.

These are the tensors that a low-precision format stores. Collecting and reading use the same rules.
"""

from __future__ import annotations

import re
from functools import lru_cache

from msprobe.dump.names import FORWARD, module_class, parse_name

WEIGHTS, INPUTS, GRADIENTS = "weights", "inputs", "gradients"
ROLES = (WEIGHTS, INPUTS, GRADIENTS)

_WEIGHTED = re.compile(r"linear|dense|conv\w*")
"""APIs whose second argument is a weight."""
_PLAIN = frozenset(
    ["matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "einsum", "batchmatmul", "scaled_dot_product_attention"]
)
_ADDED = frozenset(["addmm", "baddbmm", "addbmm"])
"""APIs whose first argument is added to the product."""
_FIRST_OTHER = {"scaled_dot_product_attention": 3}
"""The first argument that is no factor."""
_WEIGHT_NAME = re.compile(r"weight|proj|\bw\d*\b")
_OTHER_MODULES = re.compile(
    r"Norm|Embedding|Dropout|ReLU|GELU|SiLU|Tanh|Sigmoid|Softmax|Loss|Sequential|ModuleList|Identity|Pool|Flatten"
)
"""Modules that are no product themselves."""
_PATH = re.compile(r"(.+)\.((?:input|output|parameters)(?:\..+)?)\Z")


def product_word(name: str) -> str:
    """`linear` for `Functional.linear.0.forward`; empty if the call is no forward product of an API."""
    parsed = parse_name(name)
    if parsed.kind != "api" or parsed.direction != FORWARD:
        return ""
    return _word(parsed.key)


def _word(key: str) -> str:
    word = key.rpartition(".")[2].lower()
    return word if word in _PLAIN or word in _ADDED or _WEIGHTED.fullmatch(word) else ""


def role_of(word: str, slot: str) -> str:
    """The role of an argument of a product; empty if it is no factor."""
    if not slot.startswith("input."):
        return ""
    last = slot.rpartition(".")[2]
    if _WEIGHTED.fullmatch(word):
        return {"0": INPUTS, "input": INPUTS, "1": WEIGHTS, "weight": WEIGHTS}.get(last, "")
    if last in ("attn_mask", "bias") or (word in _ADDED and last in ("0", "input")):
        return ""
    return "" if last.isdigit() and int(last) >= _FIRST_OTHER.get(word, 99) else INPUTS


def names_weight(slot: str) -> bool:
    """Whether a parameter of a module has the name of a weight: `parameters.weight`, `parameters.in_proj_weight`."""
    head, _, name = slot.partition(".")
    return head == "parameters" and bool(_WEIGHT_NAME.search(name.replace("_", " ")))


def split_path(path: str) -> tuple[str, str]:
    """`Module.fc.Linear.forward.0.input.0` -> (`Module.fc.Linear.forward.0`, `input.0`)."""
    found = _PATH.match(path)
    return (found[1], found[2]) if found else (path, "")


@lru_cache(maxsize=4096)
def may_be_product(name: str) -> bool:
    """Whether a record may have factors of a product, as far as its name shows."""
    parsed = parse_name(name)
    if parsed.kind == "module":
        return not _OTHER_MODULES.search(module_class(parsed.key))
    return parsed.kind == "api" and bool(_word(parsed.key))


def role_of_path(path: str) -> str:
    """The role of a tensor that is being recorded; empty if it is no factor of a product.

    A module that only contains others may be a product, as far as its name shows.
    """
    name, slot = split_path(path)
    parsed = parse_name(name)
    if parsed.kind == "module":
        if not may_be_product(name):
            return ""
        if names_weight(slot):
            return WEIGHTS
        if slot != "input.0":
            return ""
        return INPUTS if parsed.direction == FORWARD else GRADIENTS
    word = _word(parsed.key) if parsed.kind == "api" else ""
    if not word:
        return ""
    if parsed.direction == FORWARD:
        return role_of(word, slot)
    return GRADIENTS if slot.startswith("input.") else ""
