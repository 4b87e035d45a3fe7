"""What the collector records of values that no recorded call produces."""

from __future__ import annotations

import gc
import json
import weakref
from pathlib import Path
from typing import Any

import torch
from torch import nn

from msprobe.dump.made_values import MOST_LINKS, MadeValues
from msprobe.dump.reader import open_dump
from msprobe.pytorch import PrecisionDebugger


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.register_buffer("table", torch.arange(8.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k = self.body(x).split(4, dim=-1)
        part = self.get_buffer("table")[None, :4]
        return (torch.tanh(q.transpose(0, 1)) * 2 + part[:, :3, None][0, 0]).sum() + k.sin().sum()


def collected(root: Path, **section: Any) -> Path:
    torch.manual_seed(0)
    model = Model()
    config = root.with_name("config.json")
    settings = {"task": "statistics", "level": "mix", "step": [0], "dump_path": str(root), "statistics": section}
    config.write_text(json.dumps(settings))
    debugger = PrecisionDebugger(config_path=str(config))
    debugger.start(model)
    model(torch.ones(3, 4)).backward()
    debugger.stop()
    debugger.step()
    return root


def made_of(path: Path) -> MadeValues:
    found = open_dump(path).ranks[0].made_values
    assert found is not None
    return found


def chain(found: MadeValues, slot: str) -> list[str]:
    source = found.slots[slot]
    links = []
    while source is not None and source.value is not None:
        value = found.values[source.value]
        links.append(f"{value.link.api}({value.link.args})" + (f"[{source.part}]" if source.part >= 0 else ""))
        source = value.sources[0] if value.sources else None  # type: ignore[assignment]
    return links[::-1]


def test_views_and_creations_before_a_recorded_call_have_their_arguments_and_lines(tmp_path: Path) -> None:
    found = made_of(collected(tmp_path / "all"))
    assert chain(found, "Torch.tanh.0.forward.input.0")[-1] == "Tensor.transpose(0, 1)"
    assert chain(found, "Torch.tanh.0.forward.input.0")[-2].endswith("[0]")
    assert chain(found, "Tensor.__add__.0.forward.input.1") == [
        "Tensor.__getitem__((None, :4))",
        "Tensor.__getitem__((:, :3, None))",
        "Tensor.__getitem__((0, 0))",
    ]
    frame = found.values[found.slots["Tensor.__add__.0.forward.input.1"].value or 0].link.frame
    assert frame.file == __file__
    assert "part[:, :3, None][0, 0]" in frame.text
    held = next(one for one in found.held.values() if one.name == "table")
    assert held.kind == "buffer"
    assert held.made is not None
    assert "register_buffer" in held.made.text


def test_a_dump_of_some_calls_has_none(tmp_path: Path) -> None:
    """An unrecorded value may then come from a call that was not selected."""
    path = collected(tmp_path / "some", list=["tanh"])
    assert open_dump(path).ranks[0].made_values is None


def test_no_tensor_is_kept(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Model()
    debugger = PrecisionDebugger(dump_path=str(tmp_path), task="statistics", level="mix", step=[0])
    debugger.start(model)
    big = torch.zeros(1000)
    known = weakref.ref(big)
    storage = big.untyped_storage()
    part = torch.stack([big[:5], big[5:10]])[[True, False]]
    inner = weakref.ref(part)
    del big, part
    gc.collect()
    assert known() is None
    assert inner() is None
    del storage
    debugger.stop()
    debugger.step()


def test_a_loop_of_views_stays_small(tmp_path: Path) -> None:
    model = Model()
    debugger = PrecisionDebugger(dump_path=str(tmp_path), task="statistics", level="mix", step=[0])
    debugger.start(model)
    x = torch.zeros(4, 4)
    for _ in range(5000):
        x = x.t()
    torch.tanh(x)
    debugger.stop()
    debugger.step()
    found = made_of(tmp_path)
    assert len(chain(found, "Torch.tanh.0.forward.input.0")) <= MOST_LINKS
    assert len(found.values) <= MOST_LINKS


def test_arguments_that_cannot_be_rendered_stay_with_the_script(tmp_path: Path) -> None:
    class Odd(int):
        def __repr__(self) -> str:
            raise ValueError("no")

    debugger = PrecisionDebugger(dump_path=str(tmp_path), task="statistics", level="mix", step=[0])
    debugger.start(Model())
    torch.tanh(torch.zeros(Odd(3), 10**3)[Odd(1) :, None, ..., [0] * 30])
    debugger.stop()
    debugger.step()
    (link, *_) = (value.link for value in made_of(tmp_path).values.values())
    assert link.args == "Odd, 1000"
    flow = json.loads((tmp_path / "step0" / "rank" / "flow.json").read_text())
    texts = [one["args"] for one in flow["made"] if "link" in one and "args" in one]
    assert "(Odd:, None, ..., [0, 0, 0, 0, 0, 0, 0, 0, …])" in texts
    assert not (tmp_path / "step0" / "rank" / "dump_error_info.log").exists()
