"""The first producer over ranks: before, inside and after communication; nested outputs; other tools' dumps."""

from __future__ import annotations

import json
import math

import pytest
import torch

from msprobe.cli import main
from msprobe.pytorch import PrecisionDebugger


def tensor(value=1.0):
    return {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], "Max": value, "Min": value,
            "Mean": value, "Norm": value, "requires_grad": False}  # fmt: skip


def call(given, returned, **more):
    return {"input_args": [tensor(given)], "input_kwargs": more, "output": [tensor(returned)]}


GROUP = {"group": {"type": "torch.ProcessGroup", "group_ranks": [0, 1]}}


def write(root, step, rank, records):
    directory = root / f"step{step}" / f"rank{rank}"
    directory.mkdir(parents=True)
    head = {"task": "statistics", "level": "L1", "framework": "pytorch", "dump_data_dir": None, "data": records}
    (directory / "dump.json").write_text(json.dumps(head))


def analysed(root, capsys):
    code = main(["overflow", str(root), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert code == (1 if found["overflows"] else 0)
    return found


def test_what_came_through_a_collective_is_followed_to_its_sender(tmp_path, capsys):
    clean = {"Torch.a.0.forward": call(1, 1), "Torch.b.0.forward": call(1, 1)}
    write(tmp_path, 0, 0, {**clean, "Distributed.all_reduce.0.forward": call(1, math.nan, **GROUP)})
    bad = {"Torch.a.0.forward": call(1, 1), "Torch.b.0.forward": call(1, math.nan)}
    write(tmp_path, 0, 1, {**bad, "Distributed.all_reduce.0.forward": call(math.nan, math.nan, **GROUP)})
    found = analysed(tmp_path, capsys)
    assert (found["producer"]["name"], found["producer"]["rank"]) == ("Torch.b.0.forward", 1)
    assert found["overflows"] == 3
    arguments = {"call": "Torch.b.0.forward", "place": "step0/rank1"}
    assert found["message"] == {"id": "overflow.producer", "arguments": arguments}


def test_a_collective_with_clean_inputs_everywhere_is_the_producer(tmp_path, capsys):
    for rank in range(2):
        records = {"Torch.a.0.forward": call(3e38, 3e38)}
        records["Distributed.all_reduce.0.forward"] = call(3e38, math.inf, **GROUP)
        write(tmp_path, 0, rank, {**records, "Torch.b.0.forward": call(math.inf, math.inf)})
    found = analysed(tmp_path, capsys)
    assert found["producer"]["name"] == "Distributed.all_reduce.0.forward"
    main(["overflow", str(tmp_path)])
    assert "inside communication" in capsys.readouterr().out


def test_a_producer_after_communication_is_found_on_its_rank(tmp_path, capsys):
    shared = {"Distributed.all_reduce.0.forward": call(1, 1, **GROUP)}
    write(tmp_path, 0, 0, {**shared, "Torch.a.0.forward": call(1, 1)})
    write(tmp_path, 0, 1, {**shared, "Torch.a.0.forward": call(1, math.inf)})
    assert analysed(tmp_path, capsys)["producer"]["rank"] == 1


def test_a_receive_is_followed_to_its_sender(tmp_path, capsys):
    to = {"dst": {"type": "int", "value": 1}}
    source = {"src": {"type": "int", "value": 0}}
    write(tmp_path, 0, 0, {
        "Torch.a.0.forward": call(1, math.nan),
        "Distributed.send.0.forward": call(math.nan, math.nan, **to),
    })  # fmt: skip
    write(tmp_path, 0, 1, {"Distributed.recv.0.forward": call(1, math.nan, **source)})
    found = analysed(tmp_path, capsys)
    assert (found["producer"]["name"], found["producer"]["rank"]) == ("Torch.a.0.forward", 0)


def test_the_earliest_step_wins(tmp_path, capsys):
    write(tmp_path, 2, 0, {"Torch.a.0.forward": call(1, math.nan)})
    write(tmp_path, 10, 0, {"Torch.b.0.forward": call(1, math.nan)})
    write(tmp_path, 0, 0, {"Torch.c.0.forward": call(1, 1)})
    found = analysed(tmp_path, capsys)
    assert (found["producer"]["name"], found["producer"]["step"], found["overflows"]) == ("Torch.a.0.forward", 2, 2)


def test_a_nested_output_counts_and_quoted_numbers_are_read(tmp_path, capsys):
    nested = {"input_args": [tensor()], "input_kwargs": {}, "output": [{"deep": [tensor(), {"x": tensor("NaN")}]}]}
    write(tmp_path, 0, 0, {"Module.a.Net.forward.0": nested})
    found = analysed(tmp_path, capsys)["producer"]
    assert found == {"name": "Module.a.Net.forward.0", "module": "Module.a.Net.forward.0", "direction": "forward",
                     "step": 0, "rank": 0, "source": None}  # fmt: skip


def test_figures_that_no_float_can_hold_are_passed_over(tmp_path, capsys):
    write(tmp_path, 0, 0, {"Torch.a.0.forward": call(1, 10**400), "Torch.b.0.forward": call(1, math.nan)})
    assert analysed(tmp_path, capsys)["producer"]["name"] == "Torch.b.0.forward"


def test_bad_data_has_no_producer(tmp_path, capsys):
    write(tmp_path, 0, 0, {"Torch.a.0.forward": call(math.nan, math.nan)})
    found = analysed(tmp_path, capsys)
    assert (found["producer"], found["overflows"]) == (None, 1)
    assert found["message"] == {"id": "overflow.no_producer", "arguments": {}}


def test_a_dump_without_numbers_is_refused(tmp_path, capsys):
    bare = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], "md5": "00000000"}
    write(tmp_path, 0, 0, {"Torch.a.0.forward": {"input_args": [bare], "input_kwargs": {}, "output": [bare]}})
    assert main(["overflow", str(tmp_path)]) == 2
    assert "has no statistics" in capsys.readouterr().err


def test_odd_arguments_are_refused(capsys):
    assert main(["overflow", "a", "b", "c"]) == 2
    assert "give one dump directory" in capsys.readouterr().err


def masked(api, factor_least, made_most):
    """A tensor with a mask's -inf and numbers up to 3e38, times a factor."""
    mask = {**tensor(-math.inf), "Max": 3e38}
    factor = {**tensor(10.0), "Min": factor_least}
    return {f"Tensor.{api}.0.forward": {"input_args": [mask, factor], "input_kwargs": {},
                                        "output": [{**tensor(-math.inf), "Max": made_most}]}}  # fmt: skip


@pytest.mark.parametrize("api", ["__mul__", "mul_", "matmul", "__truediv__"])
@pytest.mark.parametrize(
    ("least", "most", "found"), [(1.0, math.inf, True), (-1.0, math.inf, False), (1.0, 3e38, False)]
)
def test_a_product_of_a_mask_overflows_if_no_factor_is_negative(tmp_path, capsys, api, least, most, found):
    write(tmp_path, 0, 0, masked(api, least, most))
    producer = analysed(tmp_path, capsys)["producer"]
    assert (producer is not None and producer["name"] == f"Tensor.{api}.0.forward") == found


def test_a_factor_without_statistics_may_be_negative(tmp_path, capsys):
    records = masked("__mul__", 1.0, math.inf)
    records["Tensor.__mul__.0.forward"]["input_args"][1] = {
        "type": "torch.Tensor",
        "dtype": "torch.float32",
        "shape": [2],
    }
    write(tmp_path, 0, 0, records)
    assert analysed(tmp_path, capsys)["producer"] is None


def test_a_mask_times_a_tensor_is_found_from_statistics(tmp_path, capsys):
    debugger = PrecisionDebugger(dump_path=str(tmp_path), task="statistics", level="L1", step=[0])
    debugger.start()
    scores = torch.where(torch.tensor([True, False]), torch.tensor([3e38, 1.0]), -math.inf)
    scores * torch.tensor([10.0, 1.0])
    scores * -1
    debugger.stop()
    debugger.step()
    found = analysed(tmp_path, capsys)
    assert found["producer"]["name"] == "Tensor.__mul__.0.forward"
