"""The words of a source line that give an argument of a call."""

from __future__ import annotations

import pytest

from msprobe.view.argument import argument_in


@pytest.mark.parametrize(
    ("line", "key", "slot", "words"),
    [
        ("x = y * torch.rsqrt(variance + self.eps)", "Tensor.__add__", "input.1", "self.eps"),
        ("x = y * torch.rsqrt(variance + self.eps)", "Tensor.__mul__", "input.0", "y"),
        ("return (1 - beta) * 2", "Tensor.__rsub__", "input.1", "1"),
        ("x += step", "Tensor.__iadd__", "input.1", "step"),
        ("return F.softmax(scores, dim=self.axis)", "Functional.softmax", "input.dim", "self.axis"),
        ("return F.softmax(scores, dim=self.axis)", "Functional.softmax", "input.0", "scores"),
        ("return scores.softmax(-1)", "Tensor.softmax", "input.1", "-1"),
        ("with scale(x, 2.0):", "Torch.scale", "input.1", "2.0"),
        ("x = größe * self.gain", "Tensor.__mul__", "input.1", "self.gain"),
        ("return F.relu(F.relu(x))", "Functional.relu", "input.0", None),  # which of the two?
        ("return a + b + c", "Tensor.__add__", "input.1", None),
        ("return F.layer_norm(", "Functional.layer_norm", "input.eps", None),  # the rest is on the next line
        ("return F.linear(*given)", "Functional.linear", "input.1", None),
        ("return F.linear(x)", "Functional.linear", "input.weight", None),
        ("return F.linear(x)", "Functional.linear", "input.99999999", None),
        ("y = x * gain", "Tensor.__mul__", "input.other", None),
        ("y = x * gain", "Tensor.__mul__", "output.0", None),
        ("\0", "Tensor.__mul__", "input.0", None),
        ("(" * 900, "Tensor.__mul__", "input.0", None),
        ("x * 1" + " " * 2000, "Tensor.__mul__", "input.1", None),
    ],
)
def test_words_are_named_only_if_they_are_certain(line: str, key: str, slot: str, words: str | None) -> None:
    found = argument_in(line, key, slot)
    assert (found and found["words"]) == words
    if found:
        assert line[found["at"] :].startswith(found["words"])
