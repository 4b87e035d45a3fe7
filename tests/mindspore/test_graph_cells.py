"""Level L0 in graph mode: the records of a dynamic run, and the results of a run without msprobe."""

from __future__ import annotations

import json
import math
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from graphmodels import NETWORKS, Shared, WithLoss, rows, trained
from mindspore import Tensor, nn, ops
from mscollecting import Dump, assert_same, configured
from msmodels import made, tensor

from msprobe.collect.records.recorder import Recorder
from msprobe.collect.records.selection import Selection
from msprobe.collect.records.values import Values
from msprobe.collect.run.lifecycle import UsageError
from msprobe.dump.writing.writer import Head, RankWriter, Worker
from msprobe.mindspore import PrecisionDebugger
from msprobe.mindspore.graph.cell_records import GraphCells
from msprobe.mindspore.graph.taps import TAPS
from msprobe.mindspore.graph.tensor_dump_taps import replay
from msprobe.mindspore.tensors.tensor_text import TensorTexts
from msprobe.stats import STATS


@pytest.fixture
def graph_mode():
    ms.set_context(mode=ms.GRAPH_MODE)


def assert_close(found: Any, expected: Any, where: str) -> None:
    """The same JSON, with numbers to float tolerance: the graph's operators may be fused or ordered otherwise."""
    if isinstance(expected, dict):
        assert list(found) == list(expected), where
        for key in expected:
            assert_close(found[key], expected[key], f"{where} {key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for number, (one, other) in enumerate(zip(found, expected)):
            assert_close(one, other, f"{where} {number}")
    elif isinstance(expected, float):
        assert math.isclose(found, expected, rel_tol=1e-3, abs_tol=1e-6), (where, found, expected)
    else:
        assert found == expected, where


@pytest.mark.parametrize("kind", NETWORKS)
def test_three_steps_are_those_of_the_dynamic_run(tmp_path, kind):
    trained(kind, PrecisionDebugger(configured(tmp_path / "dynamic", "L0", "tensor")))
    ms.set_context(mode=ms.GRAPH_MODE)
    bare = trained(kind)
    assert trained(kind, PrecisionDebugger(configured(tmp_path / "graph", "L0", "tensor"))) == bare
    for step in range(3):
        expected = Dump(tmp_path / "dynamic" / "dump", step)
        found = Dump(tmp_path / "graph" / "dump", step)
        assert not found.errors
        assert sorted(found.names) == sorted(expected.names)
        assert found.construct == expected.construct
        for name in expected.names:
            assert_close(found[name], expected[name], f"step {step} {name}")
        for name in sorted((expected.directory / "dump_tensor_data").iterdir()):
            values = np.load(found.directory / "dump_tensor_data" / name.name)
            np.testing.assert_allclose(values, np.load(name), rtol=1e-3, atol=1e-5, err_msg=name.name)
        assert found.json("run.json")["first_batch"] == expected.json("run.json")["first_batch"]


def run(path: Any, net: Any, *args: Any, gradients: bool = True, **config: Any) -> Dump:
    """One step of a network under a debugger: its forward, or its gradients by inputs and weights."""
    debugger = PrecisionDebugger(configured(path, "L0", **config))
    debugger.start(net)
    if gradients:
        ms.value_and_grad(net, 0, net.trainable_params())(*args)
    else:
        net(*args)
    debugger.step()
    dump = Dump(path / "dump")
    assert not dump.errors
    return dump


class Around(nn.Cell):
    """A model with one Cell to look at."""

    def __init__(self, cell: Any) -> None:
        super().__init__()
        self.it = cell

    def construct(self, x: Any) -> Any:
        return self.it(x)


def test_a_step_that_is_one_graph(tmp_path, graph_mode):
    bare = trained("shared", whole=True)
    debugger = PrecisionDebugger(configured(tmp_path, "L0", step=[1]))
    assert trained("shared", debugger, whole=True) == bare
    assert [path.name for path in (tmp_path / "dump").glob("step*")] == ["step1"]
    dump = Dump(tmp_path / "dump", 1)
    before = dump["Cell.head.Dense.forward.0"]["parameters"]["weight"]
    assert before["Norm"] > 0  # as the forward used it, not as the optimizer left it
    assert len([name for name in dump.names if name.endswith("parameters_grad")]) == 3
    assert_calls_are_apart(dump)


def assert_calls_are_apart(dump: Dump) -> None:
    first, second = dump["Cell.first.Dense.forward.0"], dump["Cell.first.Dense.forward.1"]
    assert second["input_args"][0] == first["output"][0]
    assert dump["Cell.first.Dense.backward.0"]["input"] == dump["Cell.first.Dense.backward.1"]["output"]
    assert dump.construct["Cell.act.Tanh.forward.1"] == "Cell.pair.SequentialCell.forward.0"
    assert dump.construct["Cell.act.Tanh.forward.3"] is None


class Kinds(nn.Cell):
    """Arguments of every kind, and a nested result."""

    def construct(
        self, x: Any, nothing: Any, number: Any, pair: Any, word: str = "a", table: Any = None, half: Any = None
    ) -> Any:
        x = x * number + pair[0] + pair[1][0] + table["k"] + half.astype(ms.float32)
        return x, {"twice": x * 2, "none": None, "word": word}, [x.sum(), pair[2] > 1]


class Caller(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.kinds = Kinds()
        self.last = nn.ReLU()

    def construct(self, x: Any, whole: Any, half: Any) -> Any:
        out, more, rest = self.kinds(x, None, 2.5, (x * 3, [x], whole), word="b", table={"k": x * 4}, half=half)
        return self.last(out + more["twice"] + rest[0])


def test_arguments_and_results_of_every_kind(tmp_path, graph_mode):
    x, whole = tensor(2, 3), Tensor([1, 2, 3], ms.int64)
    half = Tensor(np.full((2, 3), 0.5), ms.bfloat16)
    net = Caller()
    dump = run(tmp_path, net, x, whole, half, task="tensor")
    record = dump["Cell.kinds.Kinds.forward.0"]
    given = record["input_args"]
    assert_same(given[0], x)
    assert given[1] is None
    assert given[2] == {"type": "float", "value": 2.5}
    assert_same(given[3][0], x.asnumpy() * 3)
    assert given[3][1][0]["data_name"] == "Cell.kinds.Kinds.forward.0.input.3.1.0.npy"
    assert (given[3][2]["dtype"], given[3][2]["Max"]) == ("Int64", 3)
    assert record["input_kwargs"]["word"] == {"type": "str", "value": "b"}
    assert record["input_kwargs"]["half"]["dtype"] == "BFloat16"
    assert dump.tensor(record["input_kwargs"]["half"]).dtype.name == "bfloat16"
    assert dump.tensor(record["input_kwargs"]["table"]["k"]).tolist() == (x.asnumpy() * 4).tolist()
    out, table, rest = record["output"]
    assert_same(table["twice"], dump.tensor(out) * 2)
    assert table["none"] is None
    assert rest[0]["shape"] == []
    assert_same(rest[0], dump.tensor(out).sum())
    assert (rest[1]["dtype"], rest[1]["Mean"]) == ("Bool", pytest.approx(2 / 3))
    assert_same(dump["Cell.last.ReLU.backward.0"]["input"][0], np.ones((2, 3)))


def test_empty_and_scalar_tensors(tmp_path, graph_mode):
    dump = run(tmp_path / "empty", Around(nn.ReLU()), Tensor(np.ones((0, 3), np.float32)), gradients=False)
    assert dump["Cell.it.ReLU.forward.0"]["output"][0]["shape"] == [0, 3]
    assert dump["Cell.it.ReLU.forward.0"]["output"][0]["Max"] is None
    dump = run(tmp_path / "scalar", Around(nn.Tanh()), Tensor(0.5, ms.float32))
    assert_same(dump["Cell.it.Tanh.forward.0"]["output"][0], np.tanh(0.5))
    assert_same(dump["Cell.it.Tanh.backward.0"]["output"][0], 1 - np.tanh(0.5) ** 2)


def test_a_shape_that_is_known_only_at_run_time_has_no_numbers(tmp_path, graph_mode):
    net = Around(nn.Tanh())
    net.set_inputs(Tensor(shape=(None, 3), dtype=ms.float32))
    dump = run(tmp_path, net, tensor(2, 3), gradients=False)
    output = dump["Cell.it.Tanh.forward.0"]["output"][0]
    assert (output["shape"], output["Max"]) == ([None, 3], None)


class Looping(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Dense(3, 3)
        self.up = nn.ReLU()
        self.down = nn.Tanh()

    def construct(self, x: Any, times: Any) -> Any:
        done = 0
        while done < times:
            x = self.step(x)
            done = done + 1
        if x.sum() > 1e6:
            return self.up(x)
        return self.down(x)


def test_loops_and_branches_are_recorded_as_they_run(tmp_path, graph_mode):
    dump = run(tmp_path, made(Looping), tensor(2, 3), Tensor(3, ms.int32))
    steps = [f"Cell.step.Dense.forward.{number}" for number in range(3)]
    assert dump.names[:4] == [*steps, "Cell.down.Tanh.forward.0"]
    for earlier, later in zip(steps, steps[1:]):
        assert dump[later]["input_args"] == dump[earlier]["output"]
    for number in range(2):
        later = dump[f"Cell.step.Dense.backward.{number + 1}"]
        assert later["output"] == dump[f"Cell.step.Dense.backward.{number}"]["input"]


def test_filters(tmp_path, graph_mode, logged):
    net = made(Shared)
    forward = ms.value_and_grad(WithLoss(net), None, net.trainable_params())

    def names(name: str, section: Any) -> list[str]:
        debugger = PrecisionDebugger(configured(tmp_path / name, "L0", section=section))
        debugger.start(net)
        forward(*rows(0))
        debugger.step()
        return Dump(tmp_path / name / "dump").names

    assert names("list", {"list": ["head", "Cell.first.Dense.backward.1"]}) == [
        "Cell.head.Dense.forward.0",
        "Cell.head.Dense.backward.0",
        "Cell.first.Dense.backward.1",
        "Cell.head.Dense.parameters_grad",
    ]
    in_scope = names("scope", {"scope": ["Cell.act.Tanh.forward.3", "Cell.act.Tanh.backward.3"]})
    assert [name for name in in_scope if "parameters" not in name] == [
        "Cell.act.Tanh.forward.3",
        "Cell.head.Dense.forward.0",
        "Cell.head.Dense.backward.0",
        "Cell.act.Tanh.backward.3",
    ]
    assert not [name for name in names("mode", {"data_mode": ["backward", "output"]}) if "forward" in name]
    assert list(Dump(tmp_path / "mode" / "dump")["Cell.head.Dense.backward.0"]) == ["output"]
    names("nothing", {"list": ["no_such_cell"]})
    PrecisionDebugger._current._lifecycle.close()
    assert logged("'no_such_cell' in scope/list matched no call")


def test_digests_and_structure(tmp_path, graph_mode):
    net, x = Around(nn.Tanh()), tensor(2, 3)
    dump = run(tmp_path / "md5", net, x, section={"summary_mode": "md5"})
    assert len(dump["Cell.it.Tanh.forward.0"]["output"][0]["md5"]) == 8
    dump = run(tmp_path / "structure", net, x, task="structure")
    assert dump["Cell.it.Tanh.forward.0"] == {}
    assert dump.names == ["Cell.it.Tanh.forward.0", "Cell.it.Tanh.backward.0"]


def test_a_second_debugger_uses_the_taps_that_are_there(tmp_path, graph_mode, logged):
    net, x = Around(nn.Tanh()), tensor(2, 3)
    for name in ("first", "second"):
        dump = run(tmp_path / name, net, x, gradients=False)
        assert dump.names == ["Cell.it.Tanh.forward.0"]
    assert not logged("too late")


def test_only_what_runs_between_start_and_stop_is_recorded(tmp_path, graph_mode):
    net = Around(nn.Tanh())
    debugger = PrecisionDebugger(configured(tmp_path, "L0"))
    for number in range(2):
        debugger.start(net)
        net(tensor(2, 3, seed=number))
        debugger.stop()
        net(tensor(2, 3, seed=9))
        debugger.step()
        net(tensor(2, 3, seed=9))
    for number in range(2):
        dump = Dump(tmp_path / "dump", number)
        assert dump.names == ["Cell.it.Tanh.forward.0"]
        assert_same(dump["Cell.it.Tanh.forward.0"]["input_args"][0], tensor(2, 3, seed=number))


def test_a_late_start_is_logged(tmp_path, graph_mode, logged):
    net = Around(nn.Tanh())
    net(tensor(2, 3))
    debugger = PrecisionDebugger(configured(tmp_path, "L0"))
    debugger.start(net)
    net(tensor(2, 3))
    debugger.step()
    assert logged("start(model) came too late: the graphs were compiled already")


def test_several_models_have_their_places_in_the_names(tmp_path, graph_mode):
    nets = [Around(nn.Tanh()), Around(nn.ReLU())]
    debugger = PrecisionDebugger(configured(tmp_path, "L0"))
    debugger.start(nets)
    for net in nets:
        net(tensor(2, 3))
    debugger.step()
    assert Dump(tmp_path / "dump").names == ["Cell.0.it.Tanh.forward.0", "Cell.1.it.ReLU.forward.0"]


class Unused(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Dense(3, 3)
        self.unused = nn.Dense(3, 3)

    def construct(self, x: Any) -> Any:
        self.unused(x)
        return self.used(x)


def test_a_model_that_mindspore_cannot_compile_with_hooks_is_logged_and_runs(tmp_path, graph_mode, logged):
    x = tensor(2, 3)
    expected = ms.grad(made(Unused))(x)
    net = made(Unused)
    debugger = PrecisionDebugger(configured(tmp_path, "L0"))
    debugger.start(net)
    gradient, _ = ms.value_and_grad(net, 0, net.trainable_params())(x)[1]
    debugger.step()
    np.testing.assert_array_equal(gradient.asnumpy(), expected.asnumpy())
    assert logged("cannot compile this model with hooks on its parameters")
    names = Dump(tmp_path / "dump").names
    assert "Cell.unused.Dense.forward.0" in names
    assert "Cell.used.Dense.backward.0" in names


def test_an_error_of_the_script_stays_the_scripts(tmp_path, graph_mode):
    class Wrong(nn.Cell):
        def construct(self, x: Any) -> Any:
            return ops.matmul(x, x)

    net = Around(Wrong())
    with pytest.raises(Exception) as bare:
        Around(Wrong())(tensor(2, 3))
    debugger = PrecisionDebugger(configured(tmp_path, "L0"))
    debugger.start(net)
    with pytest.raises(type(bare.value)) as found:
        net(tensor(2, 3))
    debugger.step()
    assert str(found.value).partition("\n")[0] == str(bare.value).partition("\n")[0]


def test_after_an_error_of_the_script_the_next_graph_is_recorded(tmp_path, graph_mode):
    net = Around(nn.Dense(3, 3))
    debugger = PrecisionDebugger(configured(tmp_path, "L0"))
    debugger.start(net)
    with pytest.raises(ValueError, match="MatMul"):
        net(tensor(2, 5))
    _, gradients = ms.value_and_grad(net, None, net.trainable_params())(tensor(2, 3))
    debugger.step()
    dump = Dump(tmp_path / "dump")
    assert len(gradients) == 2
    assert any(name.endswith("Dense.forward.0") for name in dump.names)
    assert any(name.endswith("Dense.parameters_grad") for name in dump.names)


def test_a_first_step_that_is_set_late_removes_only_this_ranks_empty_directory(tmp_path, graph_mode):
    debugger = PrecisionDebugger(configured(tmp_path, "L0"))
    debugger.start(Around(nn.Dense(3, 3)))
    other = tmp_path / "dump" / "step0" / "rank1"
    other.mkdir(parents=True)
    debugger.set_init_step(3)
    assert [path.name for path in (tmp_path / "dump" / "step0").iterdir()] == ["rank1"]


def test_a_list_of_statistics_is_refused_at_this_level(tmp_path, graph_mode):
    with pytest.raises(UsageError, match='"statistics", "md5" or "xor"'):
        PrecisionDebugger(configured(tmp_path, "L0", section={"summary_mode": ["max"]}))


def test_cells_inside_a_jit_function_of_a_dynamic_run_go_to_graph(tmp_path, logged):
    net = made(lambda: nn.SequentialCell(nn.Dense(3, 3), nn.ReLU()))
    optimizer = nn.SGD(net.trainable_params(), 0.1)

    def forward(x: Any) -> Any:
        return net(x).sum()

    differentiated = ms.value_and_grad(forward, None, optimizer.parameters)

    @ms.jit
    def step(x: Any) -> Any:
        loss, gradients = differentiated(x)
        optimizer(gradients)
        return loss

    debugger = PrecisionDebugger(configured(tmp_path, "L0"))
    for number in range(2):
        debugger.start(net)
        step(tensor(2, 3, seed=number))
        debugger.stop()
        debugger.step()
    PrecisionDebugger._current._lifecycle.close()
    for number in range(2):
        dump = Dump(tmp_path / "dump" / "graph", number)
        assert dump.names == [
            "Cell.0.Dense.forward.0",
            "Cell.1.ReLU.forward.0",
            "Cell.1.ReLU.backward.0",
            "Cell.0.Dense.backward.0",
        ]
        assert_same(dump["Cell.0.Dense.forward.0"]["input_args"][0], tensor(2, 3, seed=number))
        assert dump.json("run.json")["framework"] == "mindspore"
    assert not logged("no record in ")


def test_a_recomputed_cell_is_recorded_once(tmp_path, graph_mode):
    net = made(lambda: Around(nn.Dense(3, 3)))
    net.it.recompute()
    x = tensor(2, 3)
    dump = run(tmp_path, net, x)
    assert [name for name in dump.names if "Dense.forward" in name] == ["Cell.it.Dense.forward.0"]
    assert_same(dump["Cell.it.Dense.forward.0"]["input_args"][0], x)
    assert_same(dump["Cell.it.Dense.backward.0"]["input"][0], np.ones((2, 3)))


def test_the_debugger_keeps_no_model_and_leaves_no_trace_in_it(tmp_path, graph_mode):
    net = Around(nn.Tanh())
    run(tmp_path, net, tensor(2, 3), gradients=False)
    assert "construct" not in vars(net.it)
    PrecisionDebugger._current._lifecycle.close()
    assert not TAPS._constructs
    assert not TAPS._hooked
    fresh = Around(nn.Tanh())
    np.testing.assert_allclose(fresh(tensor(2, 3)).asnumpy(), np.tanh(tensor(2, 3).asnumpy()), rtol=1e-5)


def test_files_of_tensor_dump_become_the_same_records(tmp_path, graph_mode):
    """Ascend's way, its operators' files made by hand as their documentation says: called twice, gradients reversed."""
    net, x = made(lambda: Around(nn.Tanh())), tensor(2, 3)
    run(tmp_path / "taps", net, x)
    inputs, outputs = (
        next(s for s in reversed(TAPS.templates._made) if (s.title, s.side) == ("Cell.it.Tanh", side))
        for side in ("input", "output")
    )
    names = []
    for sheet, word, value in [
        (inputs, "value", 1),
        (outputs, "value", 2),
        (inputs, "value", 3),
        (outputs, "value", 4),
        (outputs, "gradient_out", 5),
        (inputs, "gradient_out", 6),
        (outputs, "gradient_out", 7),
        (inputs, "gradient_out", 8),
    ]:
        names.append(tmp_path / f"{sheet.number}-0-{word}_float32_{len(names)}.npy")
        np.save(names[-1], np.full((2, 3), value, np.float32))
    PrecisionDebugger(configured(tmp_path / "dumps", "L0"))
    worker = Worker(log=print)
    writer = RankWriter(tmp_path / "out", Head("statistics", "L0", "mindspore", None, True), worker)
    texts = TensorTexts(STATS, writer)
    recorder = Recorder(writer, Values(texts), Selection((), (), ("all",)), with_data=True, with_stacks=True)
    cells = GraphCells(recorder, texts, TAPS.templates)
    cells.open = True
    replay(names[::-1], TAPS, cells)
    cells.close()
    writer.finish()
    worker.close()
    data = json.loads((tmp_path / "out" / "dump.json").read_text())["data"]
    found = {
        name: [record[key][0]["Max"] for key in ("input_args", "input", "output") if key in record]
        for name, record in data.items()
    }
    assert found == {
        "Cell.it.Tanh.forward.0": [1, 2],
        "Cell.it.Tanh.forward.1": [3, 4],
        "Cell.it.Tanh.backward.1": [5, 6],
        "Cell.it.Tanh.backward.0": [7, 8],
    }
