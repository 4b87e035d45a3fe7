"""Results that the training run saved are judged, or the verdict says that they were not."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pytest
import torch

from msprobe.check.core.examine import Examiner, Outcome
from msprobe.check.core.results import RESULT_COLUMNS, read_csv, write_table
from msprobe.dump.errors import DumpError
from msprobe.dump.reader import RankDump
from msprobe.dump.tensor_files import codec
from msprobe.dump.untrusted import yaml_files
from msprobe.frameworks.pytorch.tensors import payload


class Saved:
    """A rank directory with the tensors of one call."""

    def __init__(self, path: Path) -> None:
        self.path = path / "step0" / "rank"
        self._data = self.path / "dump_tensor_data"
        self._data.mkdir(parents=True)
        (self.path / "dump.json").write_text(json.dumps({"framework": "pytorch", "data": {}}))

    def item(self, name: str, tensor: torch.Tensor, shape: Optional[list[int]] = None) -> dict[str, Any]:
        plain = tensor.detach().contiguous()
        content = b"".join(bytes(part) for part in codec.encode(payload(plain)))  # type: ignore[call-overload]
        (self._data / f"{name}.pt").write_bytes(content)
        return {
            "type": "torch.Tensor",
            "dtype": str(tensor.dtype),
            "shape": shape or list(tensor.shape),
            "requires_grad": tensor.requires_grad,
            "data_name": f"{name}.pt",
        }

    def damage(self, name: str) -> None:
        (self._data / f"{name}.pt").write_bytes(b"damaged")

    def examine(self, title: str, args: list[Any], outputs: list[Any], backward: Any = None, **kwargs: Any) -> Outcome:
        given = {key: {"type": type(value).__name__, "value": value} for key, value in kwargs.items()}
        forward = {"input_args": args, "input_kwargs": given, "output": outputs}
        return Examiner().examine(f"{title}.0", title, forward, backward, RankDump(self.path))


@pytest.fixture
def saved(tmp_path: Path) -> Saved:
    torch.manual_seed(0)
    return Saved(tmp_path)


def test_the_first_result_of_embedding_bag_is_judged(saved: Saved) -> None:
    weight, indices, offsets = torch.randn(10, 4), torch.tensor([1, 2, 4, 5]), torch.tensor([0, 2])
    results = torch.embedding_bag(weight, indices, offsets)
    args = [saved.item("w", weight), saved.item("i", indices), saved.item("o", offsets)]
    right = [saved.item(f"r{n}", one) for n, one in enumerate(results)]
    outcome = saved.examine("Torch.embedding_bag", args, right)
    assert outcome.forward == "pass"
    assert "3 more results, used only by its backward, are not judged" in outcome.message
    wrong = [saved.item("r0", results[0] * 1.1), *right[1:]]
    assert saved.examine("Torch.embedding_bag", args, wrong).forward == "error"


def test_another_number_of_recorded_results_is_a_warning(saved: Saved) -> None:
    x = torch.randn(4)
    item = saved.item("y", x.sin())
    outcome = saved.examine("Torch.sin", [saved.item("x", x)], [item, item])
    assert outcome.forward == "warning"
    assert "the dump has 2 results of its forward, the re-run 1" in outcome.message


@pytest.mark.parametrize("how", ["damaged", "missing"])
def test_a_recorded_result_that_cannot_be_read_is_a_warning(saved: Saved, how: str) -> None:
    x = torch.randn(4)
    item = saved.item("y", x.sin())
    if how == "damaged":
        saved.damage("y")
    else:
        item["data_name"] = "nowhere.pt"
    outcome = saved.examine("Torch.sin", [saved.item("x", x)], [item])
    assert outcome.forward == "warning"
    assert "a recorded output is not judged" in outcome.message


def test_what_dropout_kept_and_how_much_it_dropped_is_judged(saved: Saved) -> None:
    x = torch.randn(64, 64)
    right = torch.nn.functional.dropout(x, 0.3)
    args = [saved.item("x", x)]

    def status(result: torch.Tensor) -> str:
        return saved.examine("Functional.dropout", args, [saved.item("y", result)], p=0.3, training=True).forward

    assert status(right) == "pass"
    one = right.clone()
    one.view(-1)[one.view(-1).nonzero()[5]] *= 3
    for wrong in (right * 1.1, -right, right.roll(1), torch.nn.functional.dropout(x, 0.6), one):
        assert status(wrong) in ("error", "warning")


def test_the_stored_values_of_a_sparse_result_are_judged(saved: Saved) -> None:
    x = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    right = x.to_sparse()
    args = [saved.item("x", x)]
    values = right.values()
    for result, expected in ((values, "pass"), (values * 2, "error"), (values[:1], "error")):
        outcome = saved.examine("Tensor.to_sparse", args, [saved.item("y", result, shape=[2, 2])])
        assert outcome.forward == expected, outcome.message


def test_a_backward_that_is_not_checked_has_a_reason(saved: Saved) -> None:
    x = torch.randn(4)
    gradient = saved.item("g", torch.ones(4))
    cases = {
        "none of its inputs requires a gradient": ({"input": [gradient], "output": [None]}, x),
        "the dump has no gradient of its outputs": ({"input": [None], "output": [None]}, x.requires_grad_()),
    }
    for reason, (backward, given) in cases.items():
        if "requires" in reason:
            given = given.detach()
        outcome = saved.examine("Torch.sin", [saved.item("x", given)], [saved.item("y", x.sin())], backward)
        assert (outcome.forward, outcome.backward) == ("pass", "SKIP")
        assert f"its backward is not checked: {reason}" in outcome.message


def test_results_with_a_huge_field_are_one_sentence(tmp_path: Path) -> None:
    csv.field_size_limit(131_072)  # Python's own limit; another library may have raised it in this process
    file = tmp_path / "results.csv"
    file.write_text(",".join(RESULT_COLUMNS) + "\n" + "x" * 200_000 + ",pass,pass,\n")
    with pytest.raises(DumpError, match="is not a results file of msprobe: field larger"):
        read_csv(file, RESULT_COLUMNS)


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_results_that_are_no_regular_file_are_refused(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "results.csv"
    if kind == "pipe":
        os.mkfifo(file)
    else:
        file.symlink_to("/dev/null")  # /dev/zero would take all memory, should this fail
    with pytest.raises(DumpError, match="it is not a regular file"):
        read_csv(file, RESULT_COLUMNS)


def test_a_cell_is_never_a_formula(tmp_path: Path) -> None:
    file = tmp_path / "results.csv"
    write_table(file, [["=1+1", "+1+1", "-1+1", "@x", "-1.5", "1e-3", -2, "plain"]])
    assert file.read_text().strip() == "'=1+1,'+1+1,'-1+1,'@x,-1.5,1e-3,-2,plain"


def test_yaml_aliases_are_refused_at_once() -> None:
    lines = ["a0: &a0 [x, x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    with pytest.raises(Exception, match="aliases"):
        yaml_files.load_all("\n".join(lines).encode())
    assert yaml_files.load_all(b"a: [1, 2]\n---\nb: c\n") == [{"a": [1, 2]}, {"b": "c"}]
    assert np.isnan(yaml_files.load_all(b"x: .nan")[0]["x"])


def test_a_gradient_through_another_output_of_the_call_counts_once(saved: Saved) -> None:
    """lstm_cell computes h from c: what the dump records as the gradient of c has the part of h in it."""
    x, h0, c0 = (torch.randn(2, n, requires_grad=True) for n in (3, 4, 4))
    weights = [torch.randn(16, n, requires_grad=True) for n in (3, 4)]
    given = [x, h0, c0, *weights]
    h, c = torch._VF.lstm_cell(x, (h0, c0), *weights)  # type: ignore[attr-defined]
    of_h, of_c = torch.randn(2, 4), torch.randn(2, 4)
    totals: list[torch.Tensor] = []
    c.register_hook(lambda total: totals.append(total.clone()))
    gradients = torch.autograd.grad([h, c], given, [of_h, of_c])
    items = [saved.item(f"i{n}", one) for n, one in enumerate(given)]
    backward = {
        "input": [saved.item("gh", of_h), saved.item("gc", totals[0])],
        "output": [saved.item(f"g{n}", one) for n, one in enumerate(gradients)],
    }
    args = [items[0], items[1:3], *items[3:]]
    outcome = saved.examine("VF.lstm_cell", args, [saved.item("h", h), saved.item("c", c)], backward)
    assert (outcome.forward, outcome.backward, outcome.message) == ("pass", "pass", "")
    backward["output"][2] = saved.item("g2", gradients[2] * 1.01)
    outcome = saved.examine("VF.lstm_cell", args, [saved.item("h", h), saved.item("c", c)], backward)
    assert outcome.backward == "error"


def test_a_hash_of_bits_is_not_judged_and_says_why(saved: Saved) -> None:
    if not hasattr(torch, "hash_tensor"):
        pytest.skip("this torch has no hash_tensor")
    x = torch.randn(4)
    outcome = saved.examine("Torch.hash_tensor", [saved.item("x", x)], [saved.item("y", torch.hash_tensor(x))])
    assert (outcome.forward, outcome.backward) == ("SKIP", "SKIP")
    assert "depends on every bit" in outcome.message


@pytest.mark.parametrize("steady", [True, False])
def test_a_function_that_gives_another_result_each_time_excuses_nothing(
    saved: Saved, monkeypatch: pytest.MonkeyPatch, steady: bool
) -> None:
    """As the gradient of MindSpore's fftshift: its kernel changes its own shifts at every call."""
    calls = 0

    def rolls(x: torch.Tensor, shifts: int) -> torch.Tensor:
        nonlocal calls
        calls += not steady
        return x[torch.arange(len(x)).add(shifts + calls).remainder(len(x))]

    x = torch.rand(12)
    monkeypatch.setattr(torch, "roll", rolls)
    args = [saved.item("x", x), {"type": "int", "value": 1}]
    outcome = saved.examine("Torch.roll", args, [saved.item("y", x[torch.arange(12).add(1).remainder(12)])])
    assert outcome.forward == ("pass" if steady else "warning")
    assert ("a different result for the same inputs each time" in outcome.message) is not steady
