"""Each line of an answer is about the answer: lines of both runs, labelled where they differ; no unrelated call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from msprobe.compare import compare
from msprobe.pytorch import PrecisionDebugger
from msprobe.report.comparison_terminal import answer

Act = Callable[[Tensor], Tensor]


def by_library(x: Tensor) -> Tensor:
    return F.gelu(x)


def by_hand(x: Tensor) -> Tensor:
    return x * 0.5 * (1.0 + torch.tanh(x * 0.8))


class Net(nn.Module):
    def __init__(self, act: Act) -> None:
        super().__init__()
        self.first, self.act, self.last = nn.Linear(8, 8), act, nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(self.act(self.first(x)))
        return result


def recorded(
    path: Path, act: Act = by_library, clears: bool = True, lr: float = 0.1, steps: int = 2, scale: float = 1.0
) -> Path:
    torch.manual_seed(0)
    net = Net(act)
    optimizer = torch.optim.AdamW(net.parameters(), lr=lr)
    debugger = PrecisionDebugger(dump_path=str(path), task="statistics", level="mix")
    for _ in range(steps):
        batch = torch.linspace(-1, 2, 48).view(6, 8) * scale
        debugger.start(net)
        F.cross_entropy(net(batch), torch.arange(6) % 4).backward()
        optimizer.step()
        if clears:
            optimizer.zero_grad()
        debugger.stop()
        debugger.step()
    return path


def starting_with(lines: list[str], label: str) -> list[str]:
    return [line for line in lines if line.startswith(f"  {label}")]


def test_lines_that_differ_are_labelled_with_their_run(tmp_path: Path) -> None:
    found = compare(recorded(tmp_path / "target", by_hand), recorded(tmp_path / "golden"))
    origin = found.origin
    assert origin is not None
    assert origin.source is None or "in by_hand" in origin.source
    assert origin.golden_source is not None
    assert "in by_library" in origin.golden_source
    lines = answer(found)
    place = lines.index(next(line for line in lines if "in by_library" in line))
    assert lines[place].split("golden: ")[1] == origin.golden_source
    if origin.source:
        assert lines[place - 1] == f"  source  target: {origin.source}"


def test_a_line_that_is_the_same_in_both_runs_is_said_once(tmp_path: Path) -> None:
    def scaled(x: Tensor) -> Tensor:
        return x * scale

    scale = 2.0
    golden = recorded(tmp_path / "golden", scaled)
    scale = 2.5
    found = compare(recorded(tmp_path / "target", scaled), golden)
    assert found.origin is not None
    assert found.origin.source == found.origin.golden_source
    assert starting_with(answer(found), "source") == [f"  source  {found.origin.source}"]
    assert not starting_with(answer(found), "golden:")


def test_data_that_is_twice_as_large_is_said_with_its_factor(tmp_path: Path) -> None:
    found = compare(recorded(tmp_path / "target", scale=2.0), recorded(tmp_path / "golden"))
    assert found.origin is not None
    assert found.origin.kind == "input"
    assert "maximum, minimum, mean and norm are 2 times those of the golden run" in found.origin.evidence
    assert str(found.origin.next).startswith("no call is recorded before it: look at the data")
    other = compare(recorded(tmp_path / "other", by_hand), recorded(tmp_path / "again"))
    assert other.origin is not None
    assert not any("times those of the golden run" in line for line in other.origin.evidence)


def test_a_finding_about_the_loop_names_no_call_that_has_nothing_to_do_with_it(tmp_path: Path) -> None:
    found = compare(recorded(tmp_path / "target", clears=False), recorded(tmp_path / "golden"))
    assert found.origin is not None
    assert "optimizer.zero_grad" in found.origin.sentence
    lines = answer(found)
    for label in ("call", "module", "inside"):
        assert not starting_with(lines, label), label
    (line,) = starting_with(lines, "source")
    number = int(line.rpartition(" in recorded")[0].rpartition(":")[2])
    assert Path(__file__).read_text().splitlines()[number - 1].strip().endswith(".backward()")
    assert found.origin.next == "make this the same in both runs and compare again"


def test_the_optimizers_own_calls_show_a_wrong_learning_rate(tmp_path: Path) -> None:
    found = compare(recorded(tmp_path / "target", lr=0.2, steps=1), recorded(tmp_path / "golden", steps=1))
    assert found.origin is not None
    assert found.origin.sentence == "AdamW: lr is 0.2, not 0.1"
    lines = answer(found)
    assert not starting_with(lines, "call")
    assert len(starting_with(lines, "seen in")) == 1
    assert found.origin.source is not None
    assert "in recorded" in found.origin.source
    assert found.origin.library is not None
    assert "adam" in found.origin.library


def test_what_to_do_next_does_not_contradict_the_answer(tmp_path: Path) -> None:
    """Weights that differ only from the second step on were not loaded differently."""

    def at_level_l0(path: Path, lr: float) -> Path:
        torch.manual_seed(0)
        net = Net(by_library)
        debugger = PrecisionDebugger(dump_path=str(path), task="statistics", level="L0")
        for _ in range(2):
            debugger.start(net)
            net(torch.linspace(-1, 1, 48).view(6, 8)).sum().backward()
            debugger.stop()
            with torch.no_grad():
                for parameter in net.parameters():
                    parameter -= lr * parameter.grad
            net.zero_grad()
            debugger.step()
        return path

    found = compare(at_level_l0(tmp_path / "target", 0.5), at_level_l0(tmp_path / "golden", 0.1))
    assert found.origin is not None
    assert (found.origin.kind, found.origin.step) == ("weight", 1)
    assert "look at the optimizer" in found.origin.sentence
    assert "load or initialise" not in found.origin.next
    assert "between the two steps" in found.origin.next
    assert len(starting_with(answer(found), "used at")) == 1


def test_an_argument_of_a_library_is_looked_for_where_the_module_is_made(tmp_path: Path) -> None:
    """LayerNorm passes its eps itself; an argument in a line of the script is looked for there."""
    dumps = [recorded(tmp_path / f"eps{eps}", nn.LayerNorm(8, eps=eps), steps=1) for eps in (1e-2, 1e-5)]
    (said,) = starting_with(answer(compare(*dumps)), "next")
    assert "look where the module is made" in said
    acts: list[Act] = [lambda x: F.gelu(x, approximate="tanh"), lambda x: F.gelu(x, approximate="none")]
    dumps = [recorded(tmp_path / f"gelu{place}", act, steps=1) for place, act in enumerate(acts)]
    (said,) = starting_with(answer(compare(*dumps)), "next")
    assert "find where the two runs get this argument from" in said


def test_the_counts_say_in_words_why_rows_were_not_compared(tmp_path: Path) -> None:
    dumps = [recorded(tmp_path / name, steps=1) for name in ("target", "golden")]
    found = replace(compare(*dumps), reasons=Counter({"rounding": 3, "unmatched": 1}))
    (said,) = (line for line in answer(found) if line.startswith("Rows: "))
    assert said.endswith("(3 gradients that are only rounding, 1 unmatched)")


class Scaled(nn.Module):
    def __init__(self, eps: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4, eps=eps)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.norm(x)
        return result


def dumped(root: Path, model: nn.Module) -> Path:
    debugger = PrecisionDebugger(dump_path=str(root), task="statistics", level="mix", step=[0])
    debugger.start(model)
    model(torch.arange(8.0).reshape(2, 4)).square().sum().backward()
    debugger.stop()
    debugger.step()
    return root


def test_the_line_that_makes_the_module_is_said_if_a_library_makes_the_call(tmp_path: Path) -> None:
    found = compare(dumped(tmp_path / "target", Scaled(1e-2)), dumped(tmp_path / "golden", Scaled(1e-5)))
    assert found.origin is not None
    (line,) = starting_with(answer(found), "made at")
    assert line == f"  made at {found.origin.made}"
    assert line.endswith(": self.norm = nn.LayerNorm(4, eps=eps)")
    own = Scaled(1e-5)
    with torch.no_grad():
        own.norm.weight.add_(0.5)
    found = compare(dumped(tmp_path / "weight", own), tmp_path / "golden")
    assert found.origin is not None
    assert found.origin.kind == "weight"
    assert str(found.origin.made).endswith("eps=eps)")
