"""Which calls are recorded, where they are met, and what they are called."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, mint, nn, ops
from mindspore.ops import relu as bound_relu
from mscollecting import Dump, assert_same, collecting, configured
from msmodels import Net, batch, made, tensor

import msprobe
from msprobe.collect.run.lifecycle import UsageError
from msprobe.frameworks.api_lists import ApiListError
from msprobe.frameworks.mindspore.api_table import CATEGORIES, PACKAGED, load_table
from msprobe.mindspore import PrecisionDebugger


def names(dump: Dump) -> list[str]:
    return [name for name in dump.names if name.endswith("forward") or ".forward." in name]


def test_prefixes_of_the_guide(tmp_path):
    x = tensor(2, 3)
    with collecting(tmp_path) as dump:
        mint.abs(x)
        mint.nn.functional.relu(x)
        ops.split(x, 1)
        x + x
        1 - x
        x @ x.T
        x.sum()
        x += 1
        x[0]
        x[0] = 5.0
        abs(-x)
    found = names(dump)
    assert found[0] == "Mint.abs.0.forward"
    assert found[1] == "MintFunctional.relu.0.forward"
    assert found[2] == "Functional.split.0.forward"
    for operator in ("add", "rsub", "matmul", "iadd", "getitem", "setitem", "neg"):
        assert f"Tensor.__{operator}__.0.forward" in found
    assert "Tensor.sum.0.forward" in found


def test_functions_bound_to_other_names_before_start_are_seen(tmp_path):
    class Keeps(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.act = ops.gelu

        def construct(self, x: Any) -> Any:
            return bound_relu(self.act(x))

    net = Keeps()
    before = net.act
    with collecting(tmp_path, net) as dump:
        net(tensor(2, 3))
    assert names(dump) == ["Functional.gelu.0.forward", "Functional.relu.0.forward"]
    assert net.act is before


def test_functions_kept_while_collecting_pass_calls_on_afterwards(tmp_path):
    with collecting(tmp_path) as dump:
        kept = ops.relu
    assert_same({**dict.fromkeys(("Max", "Min", "Mean", "Norm"), 1.0), "shape": [], "Norm": 1.0}, kept(Tensor(1.0)))
    assert names(dump) == []


def test_primitives_of_the_model_only_with_the_model(tmp_path):
    net = made(Net)
    x = batch(0)[0]
    with collecting(tmp_path / "without", level="L1") as dump:
        net(x)
    assert not [name for name in dump.names if name.startswith("Primitive")]
    with collecting(tmp_path / "with", net, level="L1") as dump:
        net(x)
    assert "Primitive.conv2d.Conv2D.0.forward" in dump.names
    assert "Primitive.tanh.Tanh.1.forward" in dump.names
    assert not [name for name in dump.names if "Shape" in name]
    assert dump.construct == {}


def test_mix_knows_what_ran_inside_what(tmp_path):
    net = made(Net)
    with collecting(tmp_path, net, level="mix") as dump:
        ms.grad(lambda x: net(x).sum())(batch(0)[0])
    construct = dump.construct
    assert construct["Cell.blocks.0.first.Dense.forward.1"] == "Cell.blocks.0.Block.forward.0"
    assert construct["Cell.blocks.0.Block.forward.0"] == "Cell.blocks.SequentialCell.forward.0"
    assert construct["Cell.blocks.SequentialCell.forward.0"] is None
    assert construct["Primitive.conv2d.Conv2D.0.forward"] == "Cell.conv.Conv2d.forward.0"
    assert construct["Primitive.conv2d.Conv2D.0.backward"] == "Cell.conv.Conv2d.backward.0"
    assert construct["Functional.relu.0.forward"] is None
    order = dump.names
    assert order.index("Primitive.conv2d.Conv2D.0.forward") < order.index("Cell.conv.Conv2d.forward.0")


def test_l0_values_and_parameters(tmp_path):
    net = made(Net)
    x = batch(0)[0]
    with collecting(tmp_path, net, level="L0") as dump:
        result = net(x)
    record = dump["Cell.conv.Conv2d.forward.0"]
    assert_same(record["input_args"][0], x)
    assert_same(record["parameters"]["weight"], net.conv.weight)
    assert_same(dump["Cell.head.Dense.forward.0"]["output"][0], result)
    assert not [name for name in dump.names if not name.startswith("Cell.")]


def test_lists_and_tuples_of_models_are_numbered(tmp_path):
    first, second = made(Net), made(Net)
    for number, models in enumerate(([first, second], (first,))):
        with collecting(tmp_path / str(number), models, level="L0") as dump:
            for model in models:
                model(batch(0)[0])
        heads = [name for name in dump.names if ".head." in name]
        assert heads == [f"Cell.{place}.head.Dense.forward.0" for place in range(len(models))]


def test_non_tensor_results(tmp_path):
    class Odd(nn.Cell):
        def construct(self, x: Any) -> Any:
            return 3, "text", None, [x, {"a": 1.5}]

    class Root(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.odd = Odd()

        def construct(self, x: Any) -> Any:
            return self.odd(x)

    net = Root()
    with collecting(tmp_path, net, level="L0") as dump:
        net(tensor(2))
    output = dump["Cell.odd.Odd.forward.0"]["output"]
    assert output[:3] == [{"type": "int", "value": 3}, {"type": "str", "value": "text"}, None]
    assert output[3][1] == {"a": {"type": "float", "value": 1.5}}


def test_caught_exceptions_leave_the_hierarchy_right(tmp_path):
    class Fails(nn.Cell):
        def construct(self, x: Any) -> Any:
            raise ValueError("on purpose")

    class Root(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.fails = Fails()
            self.fc = nn.Dense(3, 3)

        def construct(self, x: Any) -> Any:
            try:
                self.fails(x)
            except ValueError:
                pass
            return self.fc(x)

    net = made(Root)
    with collecting(tmp_path, net, level="mix") as dump:
        net(tensor(2, 3))
        with pytest.raises((TypeError, ValueError)):
            ops.reshape(tensor(2, 3), "x")
    assert dump["Cell.fails.Fails.forward.0"]["raised"] == "ValueError"
    assert dump.construct["Cell.fc.Dense.forward.0"] is None
    assert dump["Functional.reshape.0.forward"]["raised"] in ("TypeError", "ValueError")


def test_an_operator_that_fails_later_is_the_scripts_error_not_ours(tmp_path):
    """Operators are launched asynchronously: their errors come when their result is read."""
    x = Tensor(np.ones((2, 2)), ms.bfloat16)
    with collecting(tmp_path) as dump:
        y = ops.relu(x)  # has no CPU kernel for bf16
    assert "TypeError" in dump["Functional.relu.0.forward"]["output"][0]["unreadable"]
    with pytest.raises(TypeError):
        y.asnumpy()


@pytest.mark.parametrize("task", ["statistics", "tensor", "overflow_check"])
@pytest.mark.parametrize("level", ["L0", "L1", "mix", "L2", "before"])
def test_an_error_that_mindspore_reports_once_reaches_the_script(tmp_path, level, task):
    """Cholesky fails when it runs. Who waits first gets the error, and that is msprobe: without it the script would
    go on with zeros. `before`: the operator was launched before start(), and a later call of the script is recorded."""

    class Root(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.factor = Factor()

        def construct(self, x: Any) -> Any:
            return ops.relu(self.factor(x))

    class Factor(nn.Cell):
        def construct(self, x: Any) -> Any:
            return ops.cholesky(x)

    if (level, task) in (("L2", "overflow_check"),):
        pytest.skip("not a task of this level")
    net, wrong = Root(), Tensor(-np.eye(3), ms.float32)
    debugger = PrecisionDebugger(configured(tmp_path, "L1" if level == "before" else level, task))

    went_on: list[str] = []

    def run() -> Any:
        early = ops.cholesky(wrong) if level == "before" else None
        debugger.start(net)
        result = ops.relu(early) if level == "before" else net(wrong)
        went_on.append(level)
        debugger.stop()
        return result.asnumpy()

    with pytest.raises(RuntimeError, match="Cholesky expects symmetric positive definite"):
        run()
    assert went_on == []
    debugger.stop()
    debugger.step()
    assert ops.relu(tensor(2)).asnumpy().shape == (2,)
    if level == "L1" and task != "overflow_check":
        found = Dump(tmp_path / "dump")["Functional.cholesky.0.forward"]["output"][0]
        assert found["unreadable"] == "RuntimeError: Cholesky expects symmetric positive definite matrices as inputs."


def test_an_error_that_save_meets_comes_with_stop(tmp_path):
    debugger = PrecisionDebugger(configured(tmp_path, "debug"))
    debugger.start()
    debugger.save(ops.cholesky(Tensor(-np.eye(3), ms.float32)), "x")
    with pytest.raises(RuntimeError, match="Cholesky expects symmetric positive definite"):
        debugger.stop()
    debugger.step()
    assert "Cholesky expects" in Dump(tmp_path / "dump").debug["x.0.debug"]["unreadable"]


@pytest.mark.parametrize(("holder", "call"), [(ops, lambda x: ops.exp(x)), (Tensor, lambda x: x.exp())])
def test_a_custom_api_that_is_listed_has_the_prefix_of_the_registration(tmp_path, holder, call):
    """The example of seed 000, 6.1.7, registers a function that is collected anyway."""
    before = holder.exp
    debugger = PrecisionDebugger(configured(tmp_path))
    debugger.register_custom_api(holder, "exp", "Mine")
    for registered in (True, False):
        if not registered:
            debugger.restore_custom_api(holder, "exp")
        debugger.start()
        ms.grad(lambda x: call(x).sum())(tensor(2))
        debugger.stop()
        debugger.step()
    listed = "Functional" if holder is ops else "Tensor"
    assert [name for name in Dump(tmp_path / "dump").names if ".exp." in name] == [
        "Mine.exp.0.forward",
        "Mine.exp.0.backward",
    ]
    assert [name for name in Dump(tmp_path / "dump", 1).names if ".exp." in name] == [
        f"{listed}.exp.0.forward",
        f"{listed}.exp.0.backward",
    ]
    assert holder.exp is before


def test_custom_apis(tmp_path):
    class Own:
        @staticmethod
        def twice(x: Any) -> Any:
            return ops.relu(x) * 2

        @staticmethod
        def half(x: Any) -> Any:
            return x / 2

    original = Own.twice
    debugger = PrecisionDebugger(configured(tmp_path))
    debugger.register_custom_api(Own, "twice")
    debugger.register_custom_api(Own, "half", "Mine")
    debugger.register_custom_api(Own, "twice", "Again")
    with pytest.raises(UsageError, match="has no function 'thrice'"):
        debugger.register_custom_api(Own, "thrice")
    x = tensor(2)
    debugger.start()
    ms.grad(lambda x: Own.twice(x).sum())(x)
    debugger.stop()
    debugger.step()
    debugger.restore_custom_api(Own, "twice")
    assert Own.twice is original
    debugger.start()
    Own.twice(Own.half(x))
    debugger.stop()
    debugger.step()
    assert Dump(tmp_path / "dump", 1).names == [
        "Mine.half.0.forward",
        "Functional.relu.0.forward",
        "Tensor.__mul__.0.forward",
    ]
    dump = Dump(tmp_path / "dump")
    assert_same(dump["Own.twice.0.backward"]["output"][0], (x.asnumpy() > 0) * 2.0)
    assert "Functional.relu.0.forward" not in dump.names


def test_filters(tmp_path):
    x = tensor(2, 3)

    def run() -> None:
        ms.grad(lambda x: (ops.exp(ops.relu(x)) + ops.relu(x)).sum())(x)

    with collecting(tmp_path / "a", section={"list": ["relu"]}) as dump:
        run()
    assert sorted(dump.names) == sorted(f"Functional.relu.{n}.{way}" for n in (0, 1) for way in ("forward", "backward"))
    scope = ["Functional.relu.0.forward", "Functional.exp.0.forward"]
    with collecting(tmp_path / "b", section={"scope": scope}) as dump:
        run()
    assert dump.names == scope
    with collecting(tmp_path / "c", section={"data_mode": ["backward", "output"]}) as dump:
        run()
    assert all(name.endswith("backward") and list(record) == ["output"] for name, record in dump.data.items())
    with collecting(tmp_path / "d", section={"list": ["Functional.exp.0.forward"]}) as dump:
        run()
    assert dump.names == ["Functional.exp.0.forward"]
    section = {"tensor_list": ["exp"]}
    with collecting(tmp_path / "e", section=section) as dump:
        run()
    saved = {name.split(".")[1] for name, record in dump.data.items() if "data_name" in str(record)}
    assert saved == {"exp"}


def test_a_cell_in_the_list_takes_what_runs_inside_it(tmp_path):
    net = made(Net)
    with collecting(tmp_path, net, level="mix", section={"list": ["Cell.blocks.0.Block.forward.0"]}) as dump:
        net(batch(0)[0])
    assert set(dump.names) >= {"Cell.blocks.0.Block.forward.0", "Cell.blocks.0.first.Dense.forward.1"}
    assert not [name for name in dump.names if "conv" in name or "blocks.1" in name]


def test_structure_has_names_and_hierarchy_only(tmp_path):
    net = made(Net)
    with collecting(tmp_path, net, level="mix", task="structure") as dump:
        net(batch(0)[0])
    assert dump.construct["Primitive.conv2d.Conv2D.0.forward"] == "Cell.conv.Conv2d.forward.0"
    assert all(not record for record in dump.data.values())


@pytest.mark.parametrize(("first", "last"), [(1, 2), (3, 3)])
def test_token_range_counts_forwards_of_the_model(tmp_path, first, last):
    net = made(Net)
    with collecting(tmp_path, net, level="mix", token_range=[first, last]) as dump:
        results = [net(batch(number)[0]) for number in range(5)]
    heads = [name for name in dump.names if name.startswith("Cell.head")]
    assert heads == [f"Cell.head.Dense.forward.{number}" for number in range(last - first + 1)]
    for head, result in zip(heads, results[first:]):
        assert_same(dump[head]["output"][0], result)
    assert not net._forward_pre_hook


def test_the_packaged_list_is_complete_for_this_version():
    from msprobe.frameworks.api_lists import read_lists

    on, _ = read_lists(PACKAGED, CATEGORIES)
    listed = {(each.holder, each.name) for each in load_table()}
    assert len(listed) >= sum(map(len, on.values()))  # ops are met in two places
    assert {"__getitem__", "__setitem__", "__add__", "matmul"} <= set(on["tensor"])
    assert {"linalg.norm", "abs", "matmul"} <= set(on["mint.ops"])
    assert len(on["ops"]) > 550


def test_an_edited_list_is_used_and_a_wrong_one_is_explained(tmp_path, monkeypatch):
    edited = tmp_path / "list.yaml"
    edited.write_text("ops:\n  - relu\n  - no_such_function\n")
    assert {each.name for each in load_table(edited)} == {"relu"}
    assert Path(msprobe.__file__).parent / "mindspore/dump/hook_cell/support_wrap_ops.yaml" == PACKAGED
    assert inspect.signature(load_table).parameters["path"].default == PACKAGED
    with monkeypatch.context() as patched:
        patched.setattr(load_table, "__defaults__", (edited,))
        with collecting(tmp_path / "edited") as dump:
            ops.exp(ops.relu(tensor(2)))
    assert dump.names == ["Functional.relu.0.forward"]
    Path(edited).write_text("opps:\n  - relu\n")
    with pytest.raises(ApiListError, match="opps is not a category"):
        load_table(edited)


def test_stacks_point_into_the_script(tmp_path):
    with collecting(tmp_path) as dump:
        ops.relu(tensor(2))
    (stack,) = [frames for names, frames in dump.json("stack.json").values()]
    assert __file__ in stack[0]
    assert "ops.relu(tensor(2))" in stack[0]
    assert not [frame for frame in stack if "src/msprobe" in frame]


def test_functions_that_the_user_has_replaced_stay_replaced(tmp_path, monkeypatch):
    """Before start() or while collecting: what is called is the user's, and it is what stays."""
    with collecting(tmp_path / "first"):
        ops.relu(tensor(2))
    original = ops.exp
    monkeypatch.setattr(ops, "exp", lambda x: original(x) * 0)
    mine = ops.exp
    x = tensor(2)
    with collecting(tmp_path / "second") as dump:
        result = ops.exp(x)
        monkeypatch.setattr(ops, "sin", lambda x: x)
        ours = ops.sin
    assert not result.asnumpy().any()
    assert_same(dump["Functional.exp.0.forward"]["output"][0], np.zeros(2))
    assert ops.exp is mine
    assert ops.sin is ours


def test_a_scope_leaves_out_the_gradients_of_parameters_after_it(tmp_path):
    net = nn.SequentialCell(nn.Dense(3, 3), nn.Dense(3, 3))
    scope = ["Cell.0.Dense.forward.0", "Cell.1.Dense.forward.0"]
    with collecting(tmp_path, net, level="L0", task="tensor", section={"scope": scope}) as dump:
        ms.value_and_grad(lambda x: net(x).sum(), None, net.trainable_params())(tensor(2, 3))
    assert dump.names == scope
    files = [file.name for file in (dump.directory / "dump_tensor_data").iterdir()]
    assert files
    assert not [name for name in files if not name.startswith(tuple(scope))]


def test_inputs_alone_have_no_gradients_of_parameters(tmp_path):
    net = nn.Dense(3, 3)
    outer = nn.SequentialCell(net)
    with collecting(tmp_path, outer, level="L0", section={"data_mode": ["input"]}) as dump:
        ms.value_and_grad(lambda x: outer(x).sum(), None, net.trainable_params())(tensor(2, 3))
    assert dump.names == ["Cell.0.Dense.forward.0", "Cell.0.Dense.backward.0"]


def test_backward_records_are_in_the_order_of_the_backward(tmp_path):
    """A gradient that never comes (here of the integer labels) does not move the record to the end of the pass."""
    net, labels = nn.Dense(3, 3), Tensor(np.array([0, 2], np.int32))
    with collecting(tmp_path, net) as dump:
        forward = lambda x, y: ops.cross_entropy(ops.exp(net(x)), y)  # noqa: E731
        ms.value_and_grad(forward, None, net.trainable_params())(tensor(2, 3), labels)
    backward = [name.split(".")[-3] for name in dump.names if name.endswith("backward")]
    assert backward == ["cross_entropy", "exp", "BiasAdd", "MatMul"]
