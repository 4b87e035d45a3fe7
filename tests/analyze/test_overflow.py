"""The first producer over ranks: before, inside and after communication; nested outputs; other tools' dumps."""

from __future__ import annotations

import json
import math

from msprobe.cli import main


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
    assert analysed(tmp_path, capsys) == {"producer": None, "overflows": 1}


def test_a_dump_without_numbers_is_refused(tmp_path, capsys):
    bare = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], "md5": "00000000"}
    write(tmp_path, 0, 0, {"Torch.a.0.forward": {"input_args": [bare], "input_kwargs": {}, "output": [bare]}})
    assert main(["overflow", str(tmp_path)]) == 2
    assert "has no statistics" in capsys.readouterr().err


def test_odd_arguments_are_refused(capsys):
    assert main(["overflow", "a", "b", "c"]) == 2
    assert "give one dump directory" in capsys.readouterr().err
