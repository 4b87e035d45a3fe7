"""start, stop and step in any order: probes alternate, a step is closed once, nothing runs where it is not wanted."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from msprobe.collect import notices
from msprobe.collect.records.recorder import Recorder
from msprobe.collect.records.values import Values
from msprobe.collect.run.lifecycle import Lifecycle, UsageError
from msprobe.config import load
from msprobe.tasks import make_task


class Numbers:
    """A frontend whose framework is plain Python: a model is a list, a call is a number."""

    name = "pytorch"
    model_kind = "a list"
    numbers_values = False
    tensor_types = frozenset()

    def __init__(self, rank=None):
        self.log, self._rank = [], rank

    def rank(self):
        return self._rank

    def filter_rank(self):
        return self._rank or 0

    def listed_models(self, model):
        return [model] if isinstance(model, list) else None

    def mode_directory(self, models):
        return None

    def explain_unmatched(self, entry):
        return None

    def facts(self):
        return {}

    def parameter_bytes(self, models):
        return 0

    def tensor_text(self, tensor, path):
        raise AssertionError

    def other_text(self, value, path):
        return None

    def hooks(self, context):
        return NumbersHooks(self, context)


class NumbersHooks:
    gradients = variables = forward_hooks = None
    records_elsewhere = 0
    watchers = ()

    def __init__(self, frontend, context):
        self.frontend = frontend
        self.on = False
        self.recorder = Recorder(context.writer, Values(frontend), context.selection, with_data=True, with_stacks=False)

    def install(self, models):
        assert not self.on
        self.on = True
        self.frontend.log.append("in")

    def remove(self):
        assert self.on
        self.on = False
        self.frontend.log.append("out")

    def close(self):
        assert not self.on
        self.frontend.log.append("closed")
        return []

    def call(self, value):
        if self.on:
            name = f"Torch.number.{self.recorder.numbers.take('number')}.forward"
            self.recorder.leave(self.recorder.enter(name, None, (value,), {}), name, value)


def lifecycle(path, rank=None, **keys):
    notices.forget()
    file = path / "config.json"
    file.write_text(json.dumps({"task": "statistics", "level": "L1", "dump_path": str(path / "dump"), **keys}))
    return Lifecycle(make_task(load("pytorch", str(file))), Numbers(rank))


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.sampled_from(["start", "stop", "step", "call"]), max_size=14), st.sampled_from([None, [0], [1, 2]]))
def test_any_order_of_calls_collects_what_ran_between_start_and_stop(tmp_path_factory, actions, wanted):
    path = tmp_path_factory.mktemp("run")
    run = lifecycle(path, **({} if wanted is None else {"step": wanted}))
    expected: dict[int, list[int]] = {}
    step, on = 0, False
    for number, action in enumerate(actions):
        if action == "call":
            if on:
                expected[step].append(number)
            if run._probe is not None:
                run._probe.hooks.call(number)
        else:
            getattr(run, action)()
            if action == "start" and (wanted is None or step in wanted):
                on = True
                expected.setdefault(step, [])
            elif action != "start":
                on = False
            step += action == "step"
    run.close()
    log = run._frontend.log
    assert log.count("in") == log.count("out")
    assert log.count("closed") == len(expected)
    for number, values in expected.items():
        data = json.loads((path / "dump" / f"step{number}" / "rank" / "dump.json").read_text())["data"]
        assert [record["input_args"][0]["value"] for record in data.values()] == values
    steps = {entry.name for entry in (path / "dump").glob("step*")}
    assert steps == {f"step{number}" for number in expected}


def test_the_rank_names_the_directory_and_the_filter(tmp_path):
    run = lifecycle(tmp_path, rank=3)
    run.start()
    run._probe.hooks.call(1)
    run.step()
    assert (tmp_path / "dump" / "step0" / "rank3" / "dump.json").exists()
    run.close()


def test_an_error_of_a_probe_does_not_reach_the_script(tmp_path, monkeypatch):
    def broken(*args):
        raise RuntimeError("planted")

    whole = lifecycle(tmp_path)
    whole.start()
    whole.step()
    whole.close()
    assert (tmp_path / "dump" / "step0" / "rank" / "dump.json").exists()
    assert not list(tmp_path.rglob("dump_error_info.log"))
    for method in ("install", "remove", "close"):
        monkeypatch.setattr(NumbersHooks, method, broken)
        run = lifecycle(tmp_path)
        run.start()
        run.stop()
        run.step()
        run.close()
        log = tmp_path / "dump" / "step0" / "rank" / "dump_error_info.log"
        assert "planted" in log.read_text()
        monkeypatch.undo()


@pytest.mark.parametrize("wrong", [-1, 1.0, True, "1"])
def test_set_init_step_refuses_values_that_are_not_a_step(tmp_path, wrong):
    run = lifecycle(tmp_path)
    with pytest.raises(UsageError, match="whole number"):
        run.set_init_step(wrong)
    run.close()


def test_the_same_sentence_with_other_numbers_is_logged_once(caplog):
    notices.forget()
    with caplog.at_level("INFO", logger="msprobe"):
        notices.warn_once("3 calls of step 1 failed.")
        notices.warn_once("14 calls of step 2 failed.")
        notices.warn_once("another thing.")
    assert [record.getMessage() for record in caplog.records] == ["3 calls of step 1 failed.", "another thing."]
