"""overflow_check on PyTorch: twenty planted overflows, each with its producer; clean runs without one."""

from __future__ import annotations

import json
import math
import sys
import warnings

import pytest
import torch
import torch.nn.functional as F
from collecting import Dump, collecting, configured

from msprobe.cli import main
from msprobe.pytorch import PrecisionDebugger
from msprobe.tasks.overflow_check.recorder import OverflowStop

NEVER = {"overflow_nums": -1}


def fp16_exp():
    torch.exp(torch.tensor([1.0, 20.0]).half())


def log_of_zero():
    torch.log(torch.tensor([1.0, 0.0])).sum()


def zero_by_zero():
    torch.zeros(2) / torch.zeros(2)


def a_row_of_minus_infinity():
    mask = torch.tensor([[0.0, -math.inf], [-math.inf, -math.inf]])
    F.softmax(torch.randn(2, 2) + mask, dim=-1)


def masked_rows_filled():
    scores = torch.randn(2, 2).masked_fill(torch.ones(2, 2, dtype=torch.bool), -math.inf)
    F.softmax(scores, dim=-1)


def a_gradient_that_blows_up():
    x = torch.tensor([0.0, 4.0], requires_grad=True)
    torch.sqrt(x).sum().backward()


def a_gradient_of_fp16():
    x = torch.tensor([1.0], requires_grad=True, dtype=torch.float16)
    ((x * 0.5) * torch.tensor([4.0]).half()).backward(torch.tensor([60000.0]).half())


def inside_a_list():
    torch.split(torch.tensor([1e30, 1.0, 1e20, 2.0]) * torch.tensor([1e30, 1.0, 1.0, 1.0]), 2)


def of_several_outputs():
    torch.frexp(torch.ones(2))
    torch.std_mean(torch.tensor([1.0]))


def in_place():
    x = torch.tensor([1.0, 2.0])
    x.div_(torch.tensor([1.0, 0.0]))


def in_place_by_argument():
    F.relu(torch.tensor([70000.0, 1.0]).mul_(1e38).mul_(10), inplace=True)


def in_the_optimizer():
    weight = torch.nn.Parameter(torch.ones(2) * 3e38)
    weight.grad = torch.ones(2) * -3e38
    torch.optim.SGD([weight], lr=10.0).step()


def in_recomputation():
    from torch.utils.checkpoint import checkpoint

    x = torch.tensor([100.0], requires_grad=True)
    checkpoint(lambda value: torch.exp(value), x, use_reentrant=False).sum().backward()


def in_batch_norm():
    F.batch_norm(torch.full((2, 2), 3e38), torch.zeros(2), torch.ones(2), training=True)


def in_a_matmul():
    torch.matmul(torch.full((2, 2), 300.0).half(), torch.full((2, 2), 300.0).half())


def in_a_norm():
    torch.full((4,), 1e30).pow(2)


def of_an_embedding_then_cast():
    torch.tensor([1e5]).to(torch.float16)


def with_out():
    torch.div(torch.ones(1), torch.zeros(1), out=torch.full((1,), math.nan))


def of_complex_numbers():
    torch.mul(torch.tensor([1e38 + 0j]), torch.tensor([1e38 + 0j]))


def of_a_strided_tensor():
    torch.exp(torch.full((4, 4), 100.0).t()[::2])


def beside_a_mask():
    mask = torch.full((2, 2), -math.inf).triu(1)
    torch.full((2, 2), 3e38).add(mask).add(torch.full((2, 2), 3e38))


def in_baddbmm_beside_a_mask():
    mask = torch.full((1, 2, 2), -math.inf).triu(1)
    torch.baddbmm(mask, torch.full((1, 2, 2), 1e20), torch.full((1, 2, 2), 1e20))


def in_where_beside_a_mask():
    torch.where(torch.tensor([True, False]), torch.tensor([-math.inf, 0.0]).half(), 1e5)


def in_a_sum_beside_a_mask():
    torch.tensor([[0.0, -math.inf], [3e38, 3e38]]).sum(1)


def in_a_cast_beside_a_mask():
    torch.tensor([-math.inf, 1e5]).to(torch.float16)


PLANTED = [
    (beside_a_mask, "Tensor.add.1.forward"),
    (in_baddbmm_beside_a_mask, "Torch.baddbmm.0.forward"),
    (in_where_beside_a_mask, "Torch.where.0.forward"),
    (in_a_sum_beside_a_mask, "Tensor.sum.0.forward"),
    (in_a_cast_beside_a_mask, "Tensor.to.0.forward"),
    (fp16_exp, "Torch.exp.0.forward"),
    (log_of_zero, "Torch.log.0.forward"),
    (zero_by_zero, "Tensor.__truediv__.0.forward"),
    (a_row_of_minus_infinity, "Functional.softmax.0.forward"),
    (masked_rows_filled, "Functional.softmax.0.forward"),
    (a_gradient_that_blows_up, "Torch.sqrt.0.backward"),
    (a_gradient_of_fp16, "Tensor.__mul__.1.backward"),
    (inside_a_list, "Tensor.__mul__.0.forward"),
    (of_several_outputs, "Torch.std_mean.0.forward"),
    (in_place, "Tensor.div_.0.forward"),
    (in_place_by_argument, "Tensor.mul_.0.forward"),
    (in_the_optimizer, "Tensor.add_.0.forward"),
    (in_recomputation, "Torch.exp.0.forward"),
    (in_batch_norm, "Functional.batch_norm.0.forward"),
    (in_a_matmul, "Torch.matmul.0.forward"),
    (in_a_norm, "Tensor.pow.0.forward"),
    (of_an_embedding_then_cast, "Tensor.to.0.forward"),
    (with_out, "Torch.div.0.forward"),
    (of_complex_numbers, "Torch.mul.0.forward"),
    (of_a_strided_tensor, "Torch.exp.0.forward"),
]


def producers(dump: Dump) -> list[str]:
    return [name for name, record in dump.data.items() if record["overflow"] == "producer"]


@pytest.mark.parametrize(("plant", "producer"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
def test_a_planted_overflow_has_its_producer(tmp_path, plant, producer, capsys):
    with collecting(tmp_path, task="overflow_check", section=NEVER) as dump:
        plant()
    assert producers(dump)[0] == producer
    assert main(["overflow", str(tmp_path / "dump"), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    masked = any(word in plant.__name__ for word in ("mask", "minus_infinity"))
    assert found["message"]["id"] == ("overflow.producer_infinite" if masked else "overflow.producer")
    assert found["producer"]["name"] == producer
    assert found["producer"]["step"] == 0
    assert found["producer"]["rank"] is None
    assert "test_overflow.py" in found["producer"]["source"]
    assert found["producer"]["direction"] == producer.rpartition(".")[2]


@pytest.mark.parametrize(("plant", "producer"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
def test_a_planted_overflow_is_found_in_a_statistics_dump(tmp_path, plant, producer, capsys):
    with collecting(tmp_path):
        plant()
    for name in ("stack.json", "construct.json"):
        (tmp_path / "dump" / "step0" / "rank" / name).unlink()
    assert main(["overflow", str(tmp_path / "dump"), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["producer"]["name"] == producer
    assert found["producer"]["source"] is None


@pytest.mark.parametrize(("plant", "producer"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
def test_a_producer_can_be_replayed(tmp_path, plant, producer, capsys):
    with collecting(tmp_path, task="overflow_check", section=NEVER):
        plant()
    assert main(["overflow", "replay", str(tmp_path / "dump" / "step0" / "rank" / producer)]) == 1
    assert "reproduced" in capsys.readouterr().out


def test_a_replay_without_torch_is_one_sentence(tmp_path, capsys, monkeypatch):
    plant, producer = PLANTED[0]
    with collecting(tmp_path, task="overflow_check", section=NEVER):
        plant()
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["overflow", "replay", str(tmp_path / "dump" / "step0" / "rank" / producer)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    remedy = 'needs PyTorch, which is not installed here: pip install "msprobe-precision[pytorch]".'
    assert line == f"msprobe overflow: replaying {producer} {remedy}"


WITHOUT_GRADIENTS = [one for one in PLANTED if one[1].endswith(".forward") and one[0] is not in_recomputation]


@pytest.mark.parametrize(
    ("plant", "producer"), WITHOUT_GRADIENTS, ids=[plant.__name__ for plant, _ in WITHOUT_GRADIENTS]
)
def test_it_is_the_same_without_gradients(tmp_path, plant, producer, capsys):
    """Calls of an optimizer, or of inference, are looked at by a shorter way."""
    with collecting(tmp_path, task="overflow_check", section=NEVER) as dump, torch.no_grad():
        plant()
    assert producers(dump)[0] == producer
    assert main(["overflow", str(tmp_path / "dump"), "--json"]) == 1
    assert "test_overflow.py" in json.loads(capsys.readouterr().out)["producer"]["source"]
    assert main(["overflow", "replay", str(tmp_path / "dump" / "step0" / "rank" / producer)]) == 1
    assert "reproduced" in capsys.readouterr().out


def test_what_is_written_without_gradients_is_replayed_from_before(tmp_path, capsys):
    """Also where it was looked at before, changed behind our back, or is its own second argument."""
    x, y, z = (torch.tensor([1e20, 2.0]) for _ in range(3))
    alias, large = z.data, torch.full((40_000,), 1e30)
    with collecting(tmp_path, task="overflow_check", section=NEVER) as dump, torch.no_grad():
        x.mul_(2.0)
        x.add_(1.0)
        x.mul_(x)
        y.mul_(2.0)
        y.data.fill_(math.inf)
        y.add_(1.0)
        z.data.mul_(1.0)
        z.mul_(2.0)
        alias.fill_(math.inf)
        z.add_(1.0)
        large.mul_(1e30)
    roles = {name: record["overflow"] for name, record in dump.data.items()}
    assert roles == {
        "Tensor.mul_.1.forward": "producer",
        "Tensor.fill_.0.forward": "propagator",  # of the infinity that it is given
        "Tensor.add_.1.forward": "propagator",
        "Tensor.fill_.1.forward": "propagator",
        "Tensor.add_.2.forward": "propagator",
        "Tensor.mul_.5.forward": "producer",
    }
    first, *_ = dump.data["Tensor.mul_.1.forward"]["input_args"]
    assert (first["Max"], first["Min"]) == (pytest.approx(2e20), 5.0)
    assert "inputs_may_be_changed" in dump.data["Tensor.mul_.5.forward"]
    assert main(["overflow", "replay", str(tmp_path / "dump" / "step0" / "rank" / "Tensor.mul_.1.forward")]) == 1
    assert "reproduced" in capsys.readouterr().out


def test_tensors_may_change_between_stop_and_start(tmp_path):
    x = torch.tensor([1.0, 2.0])
    debugger = PrecisionDebugger(config_path=configured(tmp_path, task="overflow_check", section=NEVER))
    for _ in range(2):
        debugger.start()
        with torch.no_grad():
            x.mul_(2.0)
        debugger.stop()
        x.data.fill_(math.nan)
    debugger.step()
    debugger.start()
    with torch.no_grad():
        x.mul_(2.0)
    debugger.stop()
    debugger.step()
    for step, name in (("step0", "Tensor.mul_.1.forward"), ("step1", "Tensor.mul_.0.forward")):
        data = json.loads((tmp_path / "dump" / step / "rank" / "dump.json").read_text())["data"]
        assert {key: record["overflow"] for key, record in data.items()} == {name: "propagator"}


def test_tensors_that_a_fused_optimizer_wrote_are_inspected_again(tmp_path):
    """It moves no version counter: what its parameter was before it says nothing."""
    weight = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weight], lr=1e38, fused=True)
    with collecting(tmp_path, task="overflow_check", section=NEVER) as dump:
        with torch.no_grad():
            weight.add_(1.0)
        weight.grad = torch.full((4,), 1e38)
        optimizer.step()
        with torch.no_grad():
            weight.mul_(2.0)
    roles = {name: record["overflow"] for name, record in dump.data.items()}
    assert roles == {"Torch._fused_sgd_.0.forward": "producer", "Tensor.mul_.0.forward": "propagator"}


def test_tensors_shared_with_numpy_are_inspected_again(tmp_path):
    x = torch.ones(4)
    with collecting(tmp_path, task="overflow_check", section=NEVER) as dump, torch.no_grad():
        x.add_(1.0)
        x.numpy()[:] = math.nan  # no call of torch writes it
        x.mul_(2.0)
    assert {name: record["overflow"] for name, record in dump.data.items()} == {"Tensor.mul_.0.forward": "propagator"}


@pytest.mark.parametrize("task", ["statistics", "overflow_check"])
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_memory_that_was_freed_is_not_read(tmp_path, task, level):
    """As FSDP does it: the address of a view into it is its offset."""

    class Size(torch.nn.Module):
        def forward(self, x):
            x.to(torch.float32)
            return len(x)

    model, whole = torch.nn.Sequential(Size()), torch.ones(1_000_000)
    view = whole[500_000:]
    whole.untyped_storage().resize_(0)
    with collecting(tmp_path, model, task=task, level=level) as dump, torch.no_grad():
        assert model(view) == 500_000
    if task == "statistics":
        first, *_ = next(iter(dump.data.values()))["input_args"]
        assert (first["shape"], first["Max"], first["unreadable"]) == ([500_000], None, "its memory was freed")


def test_tensors_that_represent_other_tensors_are_not_inspected(tmp_path, recwarn):
    """A FakeTensor has no memory, and asking it for its address warns the script; a wrapper's address is its offset."""
    from torch._subclasses import FakeTensorMode
    from torch.testing._internal.two_tensor import TwoTensor

    warnings.simplefilter("error", UserWarning)
    base = torch.ones(8)
    with collecting(tmp_path, task="overflow_check", section=NEVER, faults=True) as dump, torch.no_grad():
        with FakeTensorMode():
            torch.ones(10)[2:].mul(2).add_(1)
        TwoTensor(base[2:], base[2:]).mul_(2)
        torch.ones(3).to_sparse().mul_(2)
    assert dump.data == {}
    assert dump.errors == ""


def test_an_overflow_inside_vmap_has_its_producer(tmp_path):
    with collecting(tmp_path, task="overflow_check", section=NEVER) as dump, torch.no_grad():
        torch.func.vmap(lambda row: torch.exp(row))(torch.tensor([[1.0], [200.0]]))
    assert producers(dump)[0] == "Torch.exp.0.forward"


def clean_masks():
    mask = torch.full((4, 4), -math.inf).triu(1)
    scores = torch.randn(4, 4, requires_grad=True) + mask
    F.softmax(scores, dim=-1).sum().backward()
    F.scaled_dot_product_attention(torch.randn(1, 4, 8), torch.randn(1, 4, 8), torch.randn(1, 4, 8), attn_mask=mask)


def clean_fill():
    scores = torch.randn(4, 4).masked_fill(torch.ones(4, 4).triu(1).bool(), -math.inf)
    F.softmax(scores, dim=-1)


def clean_moves():
    mask = torch.full((4, 4), -math.inf).triu(1)
    for moved in (mask.t(), mask.flip(0), mask[[0, 0, 0, 0]], torch.cat([mask, mask]), mask.expand(2, 4, 4), -mask):
        torch.add(moved, 1.0)
    (1 - torch.ones(4, 4).tril()).masked_fill(mask != 0, -math.inf).abs().sub(1.0).mul(-1.0).sum(0)


def clean_minimum():
    torch.minimum(torch.tensor([math.inf, 1.0]), torch.tensor([2.0, 3.0]))


def clean_training():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU(inplace=True))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("run", [clean_masks, clean_fill, clean_moves, clean_minimum, clean_training])
def test_a_clean_run_has_none(tmp_path, run, logged, capsys):
    with collecting(tmp_path, task="overflow_check") as dump:
        run()
    assert dump.data == {}
    assert main(["overflow", str(tmp_path / "dump"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["producer"], found["overflows"], found["message"]["id"]) == (None, 0, "overflow.none")
    PrecisionDebugger._current._lifecycle.close()
    assert logged("no call produced NaN or infinity")


@pytest.mark.parametrize("run", [clean_masks, clean_fill, clean_moves, clean_minimum, clean_training])
def test_a_clean_statistics_dump_has_none(tmp_path, run, capsys):
    with collecting(tmp_path):
        run()
    assert main(["overflow", str(tmp_path / "dump")]) == 0
    assert "no call produced NaN or infinity" in capsys.readouterr().out


def test_the_nth_overflow_stops_with_everything_on_disk(tmp_path):
    debugger = PrecisionDebugger(configured(tmp_path, task="overflow_check", section={"overflow_nums": 2}))
    debugger.start()
    first = torch.exp(torch.tensor([100.0]))
    with pytest.raises(OverflowStop) as stopped:
        first + 1
    message = str(stopped.value)
    directory = tmp_path / "dump" / "step0" / "rank"
    for part in ("Tensor.__add__.0.forward", "step 0", "test_overflow.py", "first + 1", str(directory), "2"):
        assert part in message
    data = json.loads((directory / "dump.json").read_text())["data"]  # before stop(): it is there
    assert [(name, record["overflow"]) for name, record in data.items()] == [
        ("Torch.exp.0.forward", "producer"),
        ("Tensor.__add__.0.forward", "propagator"),
    ]
    for record in data.values():
        assert (directory / "dump_tensor_data" / record["output"][0]["data_name"]).exists()


def test_the_stop_leaves_a_backward_pass_too(tmp_path):
    debugger = PrecisionDebugger(configured(tmp_path, task="overflow_check"))
    debugger.start()
    x = torch.zeros(2, requires_grad=True)
    with pytest.raises(OverflowStop, match=r"Torch\.sqrt\.0\.backward"):
        torch.sqrt(x).sum().backward()
    debugger.stop()
    torch.exp(torch.tensor([100.0]))


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_module_is_the_place_of_an_overflow(tmp_path, level, capsys):
    class Blows(torch.nn.Module):
        def forward(self, x):
            return torch.exp(x * 1000)

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), Blows(), torch.nn.Identity())
    torch.nn.init.ones_(model[0].weight)
    with collecting(tmp_path, model, level=level, task="overflow_check", section=NEVER) as dump:
        model(torch.ones(2, 4))
    expected = "Module.1.Blows.forward.0" if level == "L0" else "Torch.exp.0.forward"
    assert producers(dump) == [expected]
    assert dump["Module.2.Identity.forward.0"]["overflow"] == "propagator"
    main(["overflow", str(tmp_path / "dump"), "--json"])
    assert json.loads(capsys.readouterr().out)["producer"]["module"] == "Module.1.Blows.forward.0"


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_an_overflow_in_the_backward_of_a_module_alone(tmp_path, level):
    class Root(torch.nn.Module):
        def forward(self, x):
            return torch.sqrt(x)

    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Sequential(Root()), torch.nn.Softplus())
    torch.nn.init.zeros_(model[0].weight)
    torch.nn.init.zeros_(model[0].bias)
    with collecting(tmp_path, model, level=level, task="overflow_check", section=NEVER) as dump:
        model(torch.ones(2, 2)).sum().backward()
    assert producers(dump) == ["Module.1.0.Root.backward.0" if level == "L0" else "Torch.sqrt.0.backward"]
    assert dump["Module.0.Linear.parameters_grad"]["overflow"] == "propagator"


def test_the_parameters_of_a_module_that_overflows_are_saved_with_it(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    torch.nn.init.constant_(model[0].weight, 3e38)
    with collecting(tmp_path, model, level="L0", task="overflow_check", section=NEVER) as dump:
        model(torch.ones(1, 2))
    record = dump["Module.0.Linear.forward.0"]
    saved = [record["parameters"]["weight"], record["parameters"]["bias"], record["input_args"][0]]
    weight, bias, x = (torch.load(dump.directory / "dump_tensor_data" / one["data_name"]) for one in saved)
    assert F.linear(x, weight, bias).isinf().any()


def test_a_fused_optimizer_that_returns_nothing_is_looked_at(tmp_path):
    weight = torch.nn.Parameter(torch.full((2,), 3e38))
    weight.grad = torch.full((2,), -3e38)
    optimizer = torch.optim.SGD([weight], lr=10.0, fused=True)
    with collecting(tmp_path, task="overflow_check", section=NEVER) as dump:
        optimizer.step()
    assert producers(dump) == ["Torch._fused_sgd_.0.forward"]


def test_a_bad_weight_makes_its_module_a_propagator(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    with torch.no_grad():
        model[0].weight[0, 0] = math.nan
    with collecting(tmp_path, model, level="L0", task="overflow_check", section=NEVER) as dump:
        model(torch.ones(2, 4))
    assert dump["Module.0.Linear.forward.0"]["overflow"] == "propagator"
    assert producers(dump) == []


def test_gradients_of_a_scaled_loss_do_not_count(tmp_path, logged):
    model = torch.nn.Linear(2, 1)
    torch.nn.init.zeros_(model.weight)  # the loss is 0, scaled or not: only its gradients overflow
    torch.nn.init.zeros_(model.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1e37)
    debugger = PrecisionDebugger(configured(tmp_path, task="overflow_check"))
    before = torch.amp.GradScaler.scale
    for _ in range(2):
        debugger.start()
        loss = (model(torch.ones(4, 2)) * 1000).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        debugger.stop()
        debugger.step()
        optimizer.zero_grad()
    assert torch.amp.GradScaler.scale is before
    debugger._lifecycle.close()
    assert logged("2 optimizer steps were skipped")


def test_an_output_of_64_MB_with_one_bad_value_in_its_first_part_is_found(tmp_path):
    big = torch.ones(16 << 20)
    big[7] = 3e38
    with collecting(tmp_path, task="overflow_check", section=NEVER) as dump:
        big * 10
    assert producers(dump) == ["Tensor.__mul__.0.forward"]


def test_nested_outputs_count(tmp_path):
    class Nested(torch.nn.Module):
        def forward(self, x):
            return {"first": [x, (x, {"deep": x / 0})]}

    model = torch.nn.Sequential(Nested())
    with collecting(tmp_path, model, level="L0", task="overflow_check", section=NEVER) as dump:
        model(torch.ones(2))
    assert producers(dump) == ["Module.0.Nested.forward.0"]


def test_near_overflow_and_underflow_are_logged(tmp_path, logged):
    with collecting(tmp_path, task="overflow_check"):
        torch.tensor([200.0]).half() * torch.tensor([200.0]).half()
        torch.full((4,), 1e-3).half() * torch.tensor([1e-3, 1.0, 1.0, 1.0]).half()
    PrecisionDebugger._current._lifecycle.close()
    assert "Tensor.__mul__ forward (torch.float16): 1 output, largest 4e+04" in logged("near overflow")[0]
    assert "Tensor.__mul__ forward (torch.float16): 1 output, up to 25.00% of one" in logged("underflow")[0]


def test_training_is_bit_identical(tmp_path):
    def train() -> list[str]:
        torch.manual_seed(3)
        model = torch.nn.Sequential(
            torch.nn.Linear(8, 8), torch.nn.Dropout(0.3), torch.nn.BatchNorm1d(8), torch.nn.ReLU(inplace=True)
        )
        optimizer = torch.optim.AdamW(model.parameters())
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(torch.randn(4, 8)).square().sum()
            loss.backward()
            optimizer.step()
            losses.append(loss.item().hex())
        return [*losses, *(p.detach().double().sum().item().hex() for p in model.parameters())]

    bare = train()
    with collecting(tmp_path, task="overflow_check"):
        assert train() == bare


def test_a_path_that_is_not_a_dump_gives_a_message(tmp_path, capsys):
    assert main(["overflow", str(tmp_path)]) == 2
    assert "is not a dump" in capsys.readouterr().err


@pytest.mark.parametrize(("what", "sentence"), [(["replay"], "and a record"), (["replay", "x"], "nor a record")])
def test_a_replay_of_nothing_says_what_a_record_is(tmp_path, monkeypatch, capsys, what, sentence):
    monkeypatch.chdir(tmp_path)
    assert main(["overflow", *what]) == 2
    assert sentence in capsys.readouterr().err
