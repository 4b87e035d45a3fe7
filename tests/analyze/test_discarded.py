"""An infinity that the run throws away is not named before one that spreads."""

from __future__ import annotations

import json
import math

import torch

from msprobe.cli import main
from msprobe.pytorch import PrecisionDebugger


class Buckets(torch.nn.Module):
    """T5's position buckets: log(0) in the branch that where() does not take."""

    def forward(self, distance):
        far = (torch.log(distance.float()) * 2).to(torch.long)
        return torch.where(distance < 4, distance, far)


class Guarded(torch.nn.Module):
    """The famous mistake: where() hides the infinity of the forward, and the backward makes NaN of it."""

    def forward(self, x):
        return torch.where(x > 0, torch.log(x), torch.zeros(()))


class Net(torch.nn.Module):
    def __init__(self, first: torch.nn.Module) -> None:
        super().__init__()
        self.first = first
        self.head = torch.nn.Linear(8, 8)

    def forward(self, x, root=False):
        y = self.head(self.first(x).float())
        return torch.sqrt(y * 0) + y if root else y


def recorded(tmp_path, first, x, root):
    torch.manual_seed(0)
    net = Net(first)
    config = tmp_path / "config.json"
    settings = {"task": "statistics", "level": "mix", "dump_path": str(tmp_path / "dump"), "statistics": {}}
    config.write_text(json.dumps(settings))
    debugger = PrecisionDebugger(config_path=str(config))
    debugger.start(net)
    net(x, root).sum().backward()
    debugger.stop()
    debugger.step()
    return str(tmp_path / "dump")


def producer(dump, capsys):
    assert main(["overflow", dump, "--json"]) == 1
    return json.loads(capsys.readouterr().out.splitlines()[-1])["producer"]["name"]


def test_a_root_at_zero_is_named_and_not_the_discarded_logarithm(tmp_path, capsys):
    dump = recorded(tmp_path, Buckets(), torch.arange(8), root=True)
    assert producer(dump, capsys) == "Torch.sqrt.0.backward"


def test_alone_it_is_named_and_called_discarded(tmp_path, capsys):
    dump = recorded(tmp_path, Buckets(), torch.arange(8), root=False)
    assert producer(dump, capsys) == "Torch.log.0.forward"
    main(["overflow", dump])
    assert "discarded: the outputs of Module.first.Buckets.forward.0 are finite" in capsys.readouterr().out


def test_an_infinity_that_returns_in_the_backward_is_not_discarded(tmp_path, capsys):
    x = torch.arange(8.0, requires_grad=True)
    dump = recorded(tmp_path, Guarded(), x, root=False)
    assert producer(dump, capsys) == "Torch.log.0.forward"
    main(["overflow", dump])
    assert "discarded:" not in capsys.readouterr().out


def test_what_leaves_the_module_by_another_way_is_not_discarded(tmp_path, capsys):
    def tensor(value):
        numbers = dict.fromkeys(("Max", "Min", "Mean", "Norm"), value)
        return {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], "requires_grad": False, **numbers}

    def call(given, returned):
        return {"input_args": [tensor(given)], "input_kwargs": {}, "output": [tensor(returned)]}

    records = {
        "Torch.log.0.forward": call(1, math.inf),
        "Module.a.A.forward.0": call(1, 1),
        "Torch.kept.0.forward": call(math.inf, math.inf),
        "Torch.sqrt.0.forward": call(-1, math.nan),
    }
    folder = tmp_path / "step0" / "rank0"
    folder.mkdir(parents=True)
    head = {"task": "statistics", "level": "mix", "framework": "pytorch", "dump_data_dir": None, "data": records}
    (folder / "dump.json").write_text(json.dumps(head))
    parents = {**dict.fromkeys(records), "Torch.log.0.forward": "Module.a.A.forward.0"}
    (folder / "construct.json").write_text(json.dumps(parents))
    assert producer(str(tmp_path), capsys) == "Torch.log.0.forward"
    records.pop("Torch.kept.0.forward")
    (folder / "dump.json").write_text(json.dumps({**head, "data": records}))
    assert producer(str(tmp_path), capsys) == "Torch.sqrt.0.forward"
