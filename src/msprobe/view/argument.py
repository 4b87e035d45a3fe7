"""Which words of a source line give an argument of a call: `self.eps` in `x * torch.rsqrt(variance + self.eps)`.

The line comes from a dump: it is parsed, never run. If the line has several such calls, or only a part of the call, no
words are named.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, Optional

_LONGEST = 1000
_OPERATORS: dict[str, type[ast.operator]] = {
    "add": ast.Add, "sub": ast.Sub, "mul": ast.Mult, "truediv": ast.Div, "floordiv": ast.FloorDiv, "mod": ast.Mod,
    "pow": ast.Pow, "matmul": ast.MatMult,
}  # fmt: skip


def argument_in(line: str, key: str, slot: str) -> Optional[dict[str, Any]]:
    """The words in `line` for `slot` (`input.1`, `input.eps`) of the call `key` (`Tensor.__add__`,
    `Functional.softmax`), and where they begin; None if they are not certain."""
    name = slot.removeprefix("input.")
    if name == slot or len(line) > _LONGEST:
        return None
    found = [_argument(node, key, name) for tree in _parsed(line) for node in ast.walk(tree) if _is_call(node, key)]
    if len(found) != 1 or found[0] is None:
        return None
    words = ast.get_source_segment(line, found[0])
    return {"at": len(line.encode()[: found[0].col_offset].decode()), "words": words} if words else None


def _parsed(line: str) -> Iterator[ast.AST]:
    for text in (line, f"{line} pass"):  # the first line of a block has nothing in it
        try:
            yield ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        return


def _operator(key: str) -> tuple[Optional[type[ast.operator]], bool]:
    """The operator of `Tensor.__radd__`, and whether it has its tensor on the right."""
    word = key.rpartition(".")[2]
    if not (word.startswith("__") and word.endswith("__")):
        return None, False
    word = word.strip("_")
    if word in _OPERATORS:
        return _OPERATORS[word], False
    return _OPERATORS.get(word[1:]) if word[:1] in ("r", "i") else None, word.startswith("r")


def _is_call(node: ast.AST, key: str) -> bool:
    operator, _ = _operator(key)
    if isinstance(node, (ast.BinOp, ast.AugAssign)):
        return operator is not None and isinstance(node.op, operator)
    function = node.func if isinstance(node, ast.Call) else None
    called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", None)
    return called == key.rpartition(".")[2]


def _argument(node: ast.AST, key: str, name: str) -> Optional[ast.expr]:
    if isinstance(node, (ast.BinOp, ast.AugAssign)):
        sides = [node.left, node.right] if isinstance(node, ast.BinOp) else [node.target, node.value]
        if _operator(key)[1]:
            sides.reverse()
        return sides[int(name)] if name in ("0", "1") else None
    assert isinstance(node, ast.Call)
    if not name.isdigit():
        return next((one.value for one in node.keywords if one.arg == name), None)
    given = list(node.args)
    if key.startswith("Tensor.") and isinstance(node.func, ast.Attribute):
        given.insert(0, node.func.value)
    if any(isinstance(one, ast.Starred) for one in given):
        return None
    return given[int(name)] if int(name[:6]) < len(given) else None
