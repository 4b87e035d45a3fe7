"""The data flow in a dump: which tensors hold the same value, and which share memory."""

from __future__ import annotations

import gc
import json

import pytest
import torch
from collecting import Dump, collecting, configured
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint

from msprobe.dump.reader import items, open_dump
from msprobe.pytorch import PrecisionDebugger
from msprobe.pytorch.tensors.tensor_text import _HEADS as HEADS
from msprobe.pytorch.tensors.tensor_text import EXCHANGE
from msprobe.stats import CRC, STATS

KERNELS = ["_kernel", "tensor_cache"]


def numbers(item):
    return item.get("value_id"), item.get("memory")


def make_cache(kind, remembers=True, checks=True):
    module = pytest.importorskip(f"msprobe.stats.{kind}", reason="the C kernel is not built")
    return module.TensorCache(EXCHANGE, HEADS, torch.strided, STATS | CRC, remembers, checks, numbers=True)


@pytest.mark.parametrize("kind", KERNELS)
def test_what_gets_which_number(kind):
    cache = make_cache(kind)

    def found(tensor):
        return numbers(json.loads(cache.text(tensor)))

    x = torch.arange(6.0)
    assert found(x) == (0, 0)
    assert found(x) == (0, 0)
    assert found(x.view(2, 3)) == (1, 0)
    assert found(torch.ones(2)) == (2, 1)
    assert found(x.requires_grad_()) == (0, 0)  # the same value
    with torch.no_grad():
        x.add_(1)
    assert found(x) == (3, 0)
    cache.mark_written(x)
    assert found(x) == (4, 0)
    cache.clear()
    assert found(x) == (5, 0)
    cache.expose(x)
    assert found(x) == (5, 0)  # known from before
    cache.clear()
    assert found(x) == (None, 0)
    assert found(torch.ones(3).share_memory_())[0] is None
    assert cache.memory(x) == 0
    assert cache.memory(torch.ones(3).to_sparse()) is None
    y = torch.ones(2)
    assert json.loads(cache.add(y, "{}", 1).text.replace("{,", "{")) == {"value_id": 6, "memory": 3}
    assert (
        json.loads(make_cache(kind, remembers=False).text(y)).items() >= {"memory": 0, "requires_grad": False}.items()
    )


def test_the_two_kernels_write_the_same_text():
    one, other = (make_cache(kind) for kind in KERNELS)
    kept = []
    for number in range(50):
        x = torch.full((number % 7,), float(number))
        if number % 3:
            kept.append(x)
        for tensor in (x, x[: number % 5], x, *kept[-2:]):
            assert one.text(tensor) == other.text(tensor)
        x.mul_(2)
        assert one.text(x) == other.text(x)


@pytest.mark.parametrize("kind", KERNELS)
def test_a_freed_storage_never_gives_its_number_to_another(kind):
    cache = make_cache(kind)
    texts = [cache.text(torch.full((3,), float(number))) for number in range(1000)]
    assert len({json.loads(text)["memory"] for text in texts}) == 1000


@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("ends", ["release", "__del__"])
def test_the_memory_is_freed_at_once_and_the_storage_at_the_end(kind, ends):
    cache = make_cache(kind)
    x = torch.ones(1 << 20)
    storage = StorageWeakRef(x.untyped_storage())
    cache.text(x)
    assert not storage.expired()
    del x
    assert storage.expired()
    if ends == "release":
        cache.release()
        assert json.loads(cache.text(torch.ones(2)))["memory"] == 0
    else:
        del cache
        gc.collect()


class Reuser(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        x = self.first(x)
        x.relu_()
        return self.second(x.view(-1, 4))


def trained(path, level, **config):
    torch.manual_seed(0)
    model = Reuser()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, foreach=False)
    with collecting(path, model, level=level, **config) as dump:
        model(torch.randn(3, 4)).sum().backward()
        optimizer.step()
    return dump


@pytest.mark.parametrize("config", [{}, {"section": {"summary_mode": "md5"}}, {"task": "tensor"}], ids=str)
@pytest.mark.parametrize("level", ["L1", "mix"])
def test_values_and_memory_are_followed_through_a_step(tmp_path, level, config):
    dump = trained(tmp_path, level, **config)
    assert dump._json("dump.json")["flow"] == 1
    data = dump.data
    made = data["Functional.linear.0.forward"]["output"][0]
    relu = data["Tensor.relu_.0.forward"]
    assert numbers(relu["input_args"][0]) == numbers(made)
    assert relu["output"][0]["memory"] == made["memory"]
    assert relu["output"][0]["value_id"] != made["value_id"]
    second = data["Functional.linear.1.forward"]
    assert second["input_args"][0]["memory"] == made["memory"]  # a view
    assert second["input_args"][0]["value_id"] != relu["output"][0]["value_id"]
    assert numbers(data["Tensor.sum.0.forward"]["input_args"][0]) == numbers(second["output"][0])
    gradient = data["Functional.linear.1.backward"]["output"][1]
    weight = second["input_args"][1]
    updates = [record for name, record in data.items() if name.startswith("Tensor.add_.")]
    written = [one for one in updates if one["input_args"][0]["memory"] == weight["memory"]]
    assert len(written) == 1
    assert written[0]["input_args"][0]["value_id"] == weight["value_id"]
    assert written[0]["input_args"][1]["memory"] == gradient["memory"]
    assert written[0]["output"][0]["value_id"] != weight["value_id"]
    if level == "mix":
        module = data["Module.second.Linear.forward.0"]
        assert numbers(module["parameters"]["weight"]) == numbers(weight)
        assert numbers(module["output"][0]) == numbers(second["output"][0])
        assert numbers(data["Module.second.Linear.parameters_grad"]["weight"][0]) == numbers(gradient)


def test_equal_numbers_are_equal_texts(tmp_path):
    dump = trained(tmp_path, "mix", section={"summary_mode": "md5"})
    texts: dict[int, set[str]] = {}
    for record in dump.data.values():
        for _, item in items(record):
            if item and "value_id" in item:
                kept = {key: value for key, value in item.items() if key != "requires_grad"}
                texts.setdefault(item["value_id"], set()).add(json.dumps(kept, sort_keys=True))
    assert len(texts) > 10
    assert all(len(found) == 1 for found in texts.values())


def test_at_l0_only_the_memory_is_known(tmp_path):
    dump = trained(tmp_path, "L0")
    assert "flow" not in dump._json("dump.json")
    found = dump["Module.first.Linear.forward.0"]
    assert "value_id" not in found["output"][0]
    assert dump["Module.second.Linear.forward.0"]["input_args"][0]["memory"] == found["output"][0]["memory"]


def test_the_numbers_begin_again_in_each_step_and_nothing_is_kept(tmp_path):
    debugger = PrecisionDebugger(configured(tmp_path, level="L1"))
    for _ in range(2):
        debugger.start()
        x = torch.relu(torch.ones(3))
        storage = StorageWeakRef(x.untyped_storage())
        debugger.stop()
        debugger.step()
        del x
        assert storage.expired()
    for step in range(2):
        record = Dump(tmp_path / "dump", step)["Torch.relu.0.forward"]
        assert [numbers(record[key][0]) for key in ("input_args", "output")] == [(0, 0), (1, 1)]


def test_a_journal_says_whether_it_has_numbers(tmp_path):
    dump = trained(tmp_path, "L1")
    (dump.directory / "dump.json").unlink()
    rank = open_dump(tmp_path / "dump").ranks[0]
    assert rank.unfinished
    assert rank.head["flow"] == 1
    assert numbers(rank.records["Functional.linear.0.forward"]["input_args"][0]) == (0, 0)


def test_memory_without_a_number_of_its_value(tmp_path):
    """Exposed memory may change at any time; an inference tensor counts no versions; a sparse one has no storage."""
    with collecting(tmp_path, level="L1") as dump:
        x = torch.ones(3)
        x.numpy()
        torch.relu(x)
        torch.relu(x)
        with torch.inference_mode():
            torch.tanh(torch.ones(3))
        torch.sigmoid(torch.view_as_complex(torch.ones(3, 2)).conj())
        torch.sqrt(torch.ones(3).to_sparse())
    first, second = (dump[f"Torch.relu.{number}.forward"]["input_args"][0] for number in range(2))
    assert numbers(first) == numbers(second) == (None, first["memory"])
    assert dump["Torch.tanh.0.forward"]["input_args"][0]["memory"] != first["memory"]
    assert "value_id" not in dump["Torch.tanh.0.forward"]["output"][0]
    assert numbers(dump["Torch.sigmoid.0.forward"]["input_args"][0])[0] is None
    assert numbers(dump["Torch.sqrt.0.forward"]["input_args"][0]) == (None, None)


def phases_of(path):
    """(phase, micro-batch) of every record, by name; the reader gives the same for the journal alone."""
    rank = open_dump(path / "dump").ranks[0]
    found = rank.phases
    assert list(found) == list(rank.records)
    (rank.path / "dump.json").rename(rank.path / "away")
    assert open_dump(path / "dump").ranks[0].phases == found
    (rank.path / "away").rename(rank.path / "dump.json")
    return found


def order(found):
    """The phases in the order of the records, each once."""
    changes = []
    for phase in found.values():
        if not changes or changes[-1] != phase:
            changes.append(phase)
    return changes


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_micro_batches_clipping_and_the_optimizer_are_phases(tmp_path, level):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with collecting(tmp_path, model, level=level):
        optimizer.zero_grad(set_to_none=False)
        for _ in range(2):
            loss = model(torch.randn(3, 4)).mean()
            loss.backward()
            loss.detach().mul(2.0)  # for the log
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    found = phases_of(tmp_path)
    first = [("forward", 0), ("backward", 0)]
    second = [("forward", 1), ("backward", 1)]
    if level == "L0":
        gradients = [name for name in found if name.endswith("parameters_grad")]
        assert {found[name] for name in gradients} == {("backward", 1)}  # the last pass has written them
        assert order(found) == [*first, *second]
        return
    assert order(found) == [*first, ("other", 0), *second, ("other", 1), ("clipping", 1), ("optimizer", 1)]
    assert found["Tensor.mul.0.forward"] == ("other", 0)
    assert found["Functional.linear.2.forward"] == ("forward", 1)
    if level == "L1":
        assert found["Tensor.mean.1.forward"] == ("forward", 1)


def test_at_l1_without_a_model_the_first_call_of_a_micro_batch_is_a_forward(tmp_path):
    weight = torch.randn(4, 4, requires_grad=True)
    with collecting(tmp_path, level="L1"):
        for _ in range(2):
            torch.mm(weight, weight).sum().backward()
    found = phases_of(tmp_path)
    assert [found[f"Torch.mm.{number}.forward"] for number in range(2)] == [("forward", 0), ("forward", 1)]


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_is_recomputed_inside_the_backward(tmp_path, reentrant):
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    with collecting(tmp_path, model, level="mix") as dump:
        x = torch.randn(3, 4, requires_grad=True)
        checkpoint(model, x, use_reentrant=reentrant).sum().backward()
    found = phases_of(tmp_path)
    for name, record in dump.data.items():
        assert (found[name][0] == "recomputation") == ("is_recompute" in record)
    assert {phase for phase, _ in found.values()} == {"forward", "recomputation", "backward"}
    assert {number for _, number in found.values()} == {0}


def test_an_evaluation_inside_the_step(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout())
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)

    def evaluate():
        model.eval()
        with torch.no_grad():
            model(torch.randn(3, 4)).square()
        model.train()

    with collecting(tmp_path, model, level="mix"):
        evaluate()
        model(torch.randn(3, 4)).sum().backward()
        evaluate()
        optimizer.step()
        evaluate()
        with torch.no_grad():
            torch.ones(2).mul_(3.0)
    found = phases_of(tmp_path)
    assert {found[f"Tensor.square.{number}.forward"] for number in range(3)} == {("evaluation", 0)}
    assert [phase for phase, _ in order(found)] == [
        *("evaluation", "forward", "backward", "evaluation", "optimizer", "evaluation", "other")
    ]


def test_a_closure_is_a_forward_and_a_backward_inside_the_optimizer(tmp_path):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(3, 4)).square().mean()
        loss.backward()
        return loss

    with collecting(tmp_path, nn.Sequential(model), level="mix"):
        optimizer.step(closure)
    found = phases_of(tmp_path)
    squares = [found[name] for name in found if name.startswith("Tensor.square.") and name.endswith("forward")]
    assert squares == [("forward", number) for number in range(len(squares))]
    assert ("optimizer", 0) in found.values()


def test_a_gradient_inside_the_forward_does_not_end_a_micro_batch(tmp_path):
    weight = torch.randn(4, requires_grad=True)
    with collecting(tmp_path, level="L1"):
        (slope,) = torch.autograd.grad(weight.square().sum(), weight, create_graph=True)
        slope.square().sum().backward()
    assert {number for _, number in phases_of(tmp_path).values()} == {0}


def test_clipping_that_raises_leaves_no_phase_open(tmp_path):
    model = nn.Linear(2, 1)
    with collecting(tmp_path, nn.Sequential(model), level="L1"):
        (model(torch.ones(1, 2)) * float("inf")).sum().backward()
        with pytest.raises(RuntimeError):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        model(torch.ones(1, 2)).sum().backward()
        model(torch.ones(1, 2)).sum().backward()
    assert phases_of(tmp_path)["Functional.linear.2.forward"] == ("forward", 2)
