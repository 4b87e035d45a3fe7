"""start, stop, step and what else the debugger is asked to do, in every order that scripts use."""

from __future__ import annotations

import weakref

import pytest
import torch
from collecting import Dump, assert_same, collecting, configured
from torch import nn

from msprobe.collect.run.lifecycle import UsageError
from msprobe.pytorch import PrecisionDebugger


def relu(n):
    return f"Torch.relu.{n}.forward"


def test_segments_of_one_step_are_one_dump(tmp_path):
    debugger = PrecisionDebugger(configured(tmp_path))
    for _ in range(2):
        for value in (1.0, 2.0):
            debugger.start()
            torch.relu(torch.tensor(value))
            debugger.stop()
            torch.relu(torch.tensor(99.0))
        debugger.step()
    for step in (0, 1):
        dump = Dump(tmp_path / "dump", step)
        assert dump.names == [relu(0), relu(1)]
        assert [dump[relu(n)]["output"][0]["Max"] for n in (0, 1)] == [1, 2]


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_backward_after_stop_is_still_recorded(tmp_path, level):
    model, x = nn.Sequential(nn.Linear(3, 3), nn.Tanh()), torch.randn(2, 3)
    debugger = PrecisionDebugger(configured(tmp_path, level=level))
    debugger.start(model)
    loss = model(x).sum()
    debugger.stop()
    other = model(x).sum()
    loss.backward()
    expected = model[0].weight.grad.clone()
    debugger.step()
    other.backward()
    dump = Dump(tmp_path / "dump")
    if level != "L0":
        assert_same(dump["Functional.linear.0.backward"]["output"][1], expected)
        assert "Functional.linear.1.forward" not in dump.names
    if level != "L1":
        assert "Module.0.Linear.backward.0" in dump.names
        assert "Module.0.Linear.forward.1" not in dump.names
        assert_same(dump["Module.0.Linear.parameters_grad"]["weight"][0], expected)


def test_backward_after_step_belongs_to_no_step(tmp_path):
    x = torch.ones(2, requires_grad=True)
    debugger = PrecisionDebugger(configured(tmp_path))
    debugger.start()
    y = torch.exp(x).sum()
    debugger.step()
    debugger.start()
    y.backward()
    debugger.step()
    assert not any("backward" in name for step in (0, 1) for name in Dump(tmp_path / "dump", step).names)


def test_start_twice_is_start_once_and_step_without_stop_ends_the_step(tmp_path):
    model = nn.Sequential(nn.Tanh())
    debugger = PrecisionDebugger(configured(tmp_path, level="mix"))
    for _ in range(2):
        debugger.start(model)
        debugger.start(model)
        model(torch.ones(1))
        debugger.step()
    debugger.stop()
    for step in (0, 1):
        assert Dump(tmp_path / "dump", step).names == ["Torch.tanh.0.forward", "Module.0.Tanh.forward.0"]


def test_the_model_is_remembered(tmp_path):
    model = nn.Sequential(nn.Tanh())
    debugger = PrecisionDebugger(configured(tmp_path, level="L0"))
    debugger.start(model)
    debugger.step()
    debugger.start()
    model(torch.ones(1))
    debugger.step()
    assert Dump(tmp_path / "dump", 1).names == ["Module.0.Tanh.forward.0"]


def test_the_class_acts_as_the_one_debugger(tmp_path):
    with pytest.raises(UsageError, match="no debugger yet"):
        PrecisionDebugger.start()
    PrecisionDebugger(configured(tmp_path))
    PrecisionDebugger.start()
    torch.relu(torch.ones(1))
    PrecisionDebugger.forward_backward_dump_end()
    torch.relu(torch.ones(1))
    PrecisionDebugger.step()
    assert Dump(tmp_path / "dump").names == [relu(0)]


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_without_a_model_modules_cannot_be_collected_and_it_is_said(tmp_path, level):
    debugger = PrecisionDebugger(configured(tmp_path, level=level))
    with pytest.raises(UsageError, match=r"needs the model: call start\(model="):
        debugger.start()
    with pytest.raises(UsageError, match=r"takes a torch.nn.Module or a list of them, not dict"):
        debugger.start({})


def test_only_the_wanted_steps_are_collected(tmp_path, logged):
    debugger = PrecisionDebugger(configured(tmp_path, step=[1, "3-4"]))
    for _ in range(6):
        debugger.start()
        torch.relu(torch.ones(1))
        debugger.stop()
        debugger.step()
    assert sorted(path.name for path in (tmp_path / "dump").glob("step*")) == ["step1", "step3", "step4"]
    assert len(logged("all wanted steps are collected")) == 1


def test_steps_that_never_ran_are_logged_at_the_end(tmp_path, logged):
    debugger = PrecisionDebugger(configured(tmp_path, step=[0, 7]))
    debugger.start()
    torch.relu(torch.ones(1))
    debugger.step()
    debugger._lifecycle.close()
    assert len(logged("step 7 was wanted and never ran")) == 1


def test_set_init_step_sets_the_first_number(tmp_path, logged):
    debugger = PrecisionDebugger(configured(tmp_path, step=[100]))
    debugger.set_init_step(100)
    debugger.start()
    torch.relu(torch.ones(1))
    debugger.step()
    assert Dump(tmp_path / "dump", 100).names == [relu(0)]
    debugger.set_init_step(3)
    assert logged("set_init_step() was ignored: call it before the training loop")
    with pytest.raises(UsageError):
        debugger.set_init_step(-1)


def test_a_rank_that_never_matches_is_logged_once(tmp_path, logged):
    debugger = PrecisionDebugger(configured(tmp_path, rank=[3]))
    for _ in range(3):
        debugger.start()
        torch.relu(torch.ones(1))
        debugger.stop()
        debugger.step()
    debugger._lifecycle.close()
    assert len(logged("nothing was collected: this process is rank 0")) == 1
    assert not (tmp_path / "dump").exists()


def test_a_second_debugger_continues_or_takes_over(tmp_path, logged):
    first = PrecisionDebugger(configured(tmp_path / "a"))
    assert PrecisionDebugger(configured(tmp_path / "a")) is first
    assert logged("created again with the same settings")
    first.start()
    torch.relu(torch.ones(1))
    second = PrecisionDebugger(configured(tmp_path / "b"))
    assert second is not first
    assert Dump(tmp_path / "a" / "dump").names == [relu(0)]
    assert torch._C._len_torch_function_stack() == 0
    second.start()
    torch.tanh(torch.ones(1))
    second.step()
    assert Dump(tmp_path / "b" / "dump").names == ["Torch.tanh.0.forward"]


# token_range


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_token_range_takes_forwards_of_the_model_both_ends_included(tmp_path, level):
    model = nn.Sequential(nn.Tanh())
    with collecting(tmp_path, model, level=level, token_range=[1, 2]) as dump:
        for value in range(5):
            model(torch.tensor(float(value)))
    name = "Torch.tanh.{}.forward" if level == "L1" else "Module.0.Tanh.forward.{}"
    assert [dump[name.format(n)]["input_args"][0]["Max"] for n in (0, 1)] == [1, 2]
    assert name.format(2) not in dump.names


def test_token_range_counts_anew_each_step_and_on_across_segments(tmp_path):
    model = nn.Sequential(nn.Tanh())
    debugger = PrecisionDebugger(configured(tmp_path, level="L0"))
    for _ in range(2):
        for value in (0.0, 1.0, 2.0):
            debugger.start(model, [1, 1])
            model(torch.tensor(value))
            debugger.stop()
        debugger.step()
    for step in (0, 1):
        dump = Dump(tmp_path / "dump", step)
        assert dump.names == ["Module.0.Tanh.forward.0"]
        assert dump["Module.0.Tanh.forward.0"]["input_args"][0]["Max"] == 1


@pytest.mark.parametrize("wrong", [[1], [2, 1], [-1, 2], [0, True], "ab", [0.0, 1.0]])
def test_a_wrong_token_range_is_refused(tmp_path, wrong):
    debugger = PrecisionDebugger(configured(tmp_path))
    with pytest.raises(UsageError, match="token_range takes"):
        debugger.start(nn.Sequential(), wrong)


def test_token_range_needs_the_model(tmp_path):
    with pytest.raises(UsageError, match="needs it"):
        PrecisionDebugger(configured(tmp_path)).start(None, [0, 1])


# save


def test_save_keeps_values_and_gradients_of_nested_containers(tmp_path):
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    with collecting(tmp_path, level="debug") as dump:
        debugger = PrecisionDebugger._current
        y, z = x * 2, x * 3
        debugger.save({"a": y, "list": [z, 5, "text", None]}, "pair")
        debugger.save(y, "pair")
        debugger.save(y.detach(), "alone", save_backward=False)
        (y.sum() + 10 * z.sum()).backward()
    found = dump.debug
    assert_same(found["pair.0.debug"]["a"], y)
    assert_same(found["pair.0.debug"]["list"][0], z)
    assert found["pair.0.debug"]["list"][1:3] == [{"type": "int", "value": 5}, {"type": "str", "value": "text"}]
    assert_same(found["pair.1.debug"], y)
    assert_same(found["alone.0.debug"], y)
    grads = [value for name, value in found.items() if name.startswith("pair_grad")]
    assert len(grads) == 3
    assert {grad["Max"] for grad in grads} == {1, 10}


def test_save_writes_tensor_files_at_task_tensor(tmp_path):
    x = torch.randn(3)
    with collecting(tmp_path, level="debug", task="tensor") as dump:
        PrecisionDebugger._current.save([x, {"k": x + 1}], "name")
    found = dump.debug["name.0.debug"]
    loaded = torch.load(dump.directory / "dump_tensor_data" / found[1]["k"]["data_name"], weights_only=True)
    assert torch.equal(loaded, x + 1)


def train(debugger, model, steps, with_step=True):
    for _ in range(steps):
        debugger.start(model)
        model(torch.randn(2, 3)).sum().backward()
        debugger.stop()
        if with_step:
            debugger.step()


def test_a_second_debugger_takes_over_and_the_first_has_no_effect(tmp_path, logged):
    model = nn.Linear(3, 3)
    first = PrecisionDebugger(configured(tmp_path, level="L1"))
    second = PrecisionDebugger(configured(tmp_path, level="mix"))
    assert logged(f"takes over from the first, in {tmp_path}")
    train(first, model, 3)
    assert logged("this call has no effect: this debugger was replaced by a newer PrecisionDebugger")
    train(second, model, 2)
    train(first, model, 1)
    assert sorted(path.name for path in (tmp_path / "dump").glob("step*")) == ["step0", "step1"]
    assert "Module.Linear.parameters_grad" in Dump(tmp_path / "dump", 1).names  # of level mix
    assert not logged("never called")


def test_a_later_debugger_on_the_same_path_does_not_mix_with_the_earlier_dump(tmp_path, logged):
    model = nn.Linear(3, 3)
    train(PrecisionDebugger(configured(tmp_path, level="L1")), model, 3)
    train(PrecisionDebugger(configured(tmp_path, level="mix")), model, 2)
    assert sorted(path.name for path in (tmp_path / "dump").glob("step*")) == ["step0", "step1"]
    (older,) = tmp_path.glob("dump.old-*")
    assert sorted(path.name for path in older.glob("step*")) == ["step0", "step1", "step2"]
    assert logged("an earlier dump was in")


def test_a_script_that_forgets_step_is_warned(tmp_path, logged):
    debugger = PrecisionDebugger(configured(tmp_path, level="L1"))
    train(debugger, nn.Linear(3, 3), 3, with_step=False)
    debugger._lifecycle.close()
    assert logged("start() was called 3 times without step(): all records are in step 0.")


def test_collecting_in_parts_is_not_a_forgotten_step(tmp_path, logged):
    debugger = PrecisionDebugger(configured(tmp_path, level="L1"))
    train(debugger, nn.Linear(3, 3), 2, with_step=False)
    debugger.step()
    debugger._lifecycle.close()
    assert not logged("Call step() at the end")


def test_save_without_start_saves_step_by_step(tmp_path, logged):
    """Seed 000, 6.1.5: save() alone, at level debug."""
    debugger = PrecisionDebugger(configured(tmp_path, level="debug", step=[0, 2]))
    for number in range(3):
        x = torch.full((2,), float(number), requires_grad=True)
        debugger.save(x, "x")
        (x * 3).sum().backward()
        debugger.step()
    for step in (0, 2):
        debug = Dump(tmp_path / "dump", step).debug
        assert debug["x.0.debug"]["Max"] == step
        assert debug["x_grad.0.debug"]["Max"] == 3
    assert not (tmp_path / "dump" / "step1").exists()
    PrecisionDebugger._current._lifecycle.close()
    assert not logged("never called")


def test_start_ends_saving_without_start(tmp_path, logged):
    """A save() before the loop must not let save() collect after stop()."""
    debugger = PrecisionDebugger(configured(tmp_path, level="debug"))
    debugger.save(torch.ones(1), "before")
    debugger.start()
    debugger.save(torch.ones(1), "inside")
    debugger.stop()
    debugger.save(torch.ones(1), "after")
    debugger.step()
    assert set(Dump(tmp_path / "dump").debug) == {"before.0.debug", "inside.0.debug"}
    assert logged("between start() and stop()")


def test_a_debugger_for_another_directory_says_which_dump_is_finished(tmp_path, logged):
    for name in ("good", "bad"):
        train(PrecisionDebugger(configured(tmp_path / name, level="L1")), nn.Linear(3, 3), 1)
    good, bad = (tmp_path / name / "dump" for name in ("good", "bad"))
    assert logged(f"the dump in {good} is finished; the new PrecisionDebugger writes to {bad}.")


def test_a_debugger_that_wrote_nothing_has_no_finished_dump(tmp_path, logged):
    for name in ("one", "two"):
        PrecisionDebugger(configured(tmp_path / name, level="L1"))
    assert logged(f"the earlier PrecisionDebugger ends here, with nothing in {tmp_path / 'one' / 'dump'}; the new one")
    assert not logged("is finished")


def test_save_elsewhere_warns_and_raises_nothing(tmp_path, logged):
    debugger = PrecisionDebugger(configured(tmp_path / "a", level="L1"))
    debugger.start()
    debugger.save(torch.ones(1), "x")
    debugger.save(torch.ones(1), "x")
    assert len(logged('save() works at level "debug" only')) == 1
    debugger = PrecisionDebugger(configured(tmp_path / "b", level="debug"))
    debugger.start()
    debugger.stop()
    debugger.save(torch.ones(1), "x")
    assert logged("between start() and stop()")
    debugger.start()
    debugger.save(torch.ones(1), 5)
    assert logged("needs a name")


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_model_is_let_go_after_the_last_wanted_step(tmp_path, level):
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    alive = weakref.ref(model)
    debugger = PrecisionDebugger(configured(tmp_path, level=level, step=[0]))
    for _ in range(3):
        debugger.start(model)
        model(torch.ones(2, 3)).sum().backward()
        debugger.stop()
        debugger.step()
    del model
    assert alive() is None


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("ends", ["stop", "step"])
def test_a_step_may_end_inside_of_a_backward_pass(tmp_path, level, ends):
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    debugger = PrecisionDebugger(configured(tmp_path, level=level))
    debugger.start(model)
    output = model(torch.ones(2, 4))
    output.register_hook(lambda gradient: getattr(debugger, ends)())
    output.sum().backward()
    if ends == "stop":
        debugger.step()
        assert torch._C._len_torch_function_stack() == 0
    debugger.start(model)
    model(torch.ones(2, 4)).sum().backward()
    debugger.stop()
    debugger.step()
    assert torch._C._len_torch_function_stack() == 0
    assert not Dump(tmp_path / "dump").errors
    assert any(".backward" in name for name in Dump(tmp_path / "dump", 1).names)


@pytest.mark.parametrize("level", ["L0", "mix"])
@pytest.mark.parametrize("kind", ["register_forward_hook", "register_forward_pre_hook"])
def test_stop_in_a_hook_of_the_users(tmp_path, level, kind):
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    debugger = PrecisionDebugger(configured(tmp_path, level=level))
    getattr(model[0], kind)(lambda *given: debugger.stop())
    debugger.start(model)
    model(torch.ones(2, 4))
    debugger.step()
    assert not Dump(tmp_path / "dump").errors


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_parameters_that_are_frozen_at_start_and_not_later_have_their_gradients(tmp_path, level):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)).requires_grad_(False)
    with collecting(tmp_path, model, level=level) as dump:
        model(torch.ones(2, 4))
        model.requires_grad_(True)
        model(torch.ones(2, 4)).sum().backward()
    for place in (0, 1):
        for name, parameter in model[place].named_parameters():
            assert_same(dump[f"Module.{place}.Linear.parameters_grad"][name][0], parameter.grad)


def test_an_interrupt_leaves_no_module_open_for_the_next_start(tmp_path):
    class Interrupted(nn.Module):
        def forward(self, x):
            raise KeyboardInterrupt

    model = nn.Sequential(nn.ReLU(), Interrupted())
    debugger = PrecisionDebugger(configured(tmp_path, level="L0"))
    debugger.start(model)
    with pytest.raises(KeyboardInterrupt):
        model(torch.ones(2))
    debugger.stop()
    debugger.start(model)
    model[0](torch.ones(2))
    debugger.stop()
    debugger.step()
    assert Dump(tmp_path / "dump").construct["Module.0.ReLU.forward.1"] is None


def test_a_run_that_begins_after_the_last_wanted_step_says_so(tmp_path, logged):
    debugger = PrecisionDebugger(configured(tmp_path, step=[0]))
    debugger.set_init_step(1000)
    debugger.start()
    debugger.stop()
    debugger.step()
    debugger._lifecycle.close()
    assert logged("step 0 was wanted and never ran")
    assert not logged("never called")
