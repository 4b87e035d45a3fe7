"""The graph verbs on dumps that MindSpore wrote: expected output compared whole."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from msprobe.cli import graph, main
from msprobe.report.graph_output import sparkline

sys.path.insert(0, str(Path(__file__).parents[1] / "graphdump"))
import real_dumps

SOURCE = str(real_dumps.NETS / "faulty.py")
LINES = {text.split(" =")[0].strip(): n for n, text in enumerate(Path(SOURCE).read_text().splitlines(), 1)}


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    parser = argparse.ArgumentParser(prog="msprobe graph")
    graph.add_arguments(parser)
    code = graph.run(parser.parse_args([str(argument) for argument in arguments]))
    return code, capsys.readouterr().out


def steady(text: str) -> str:
    """Without what differs from run to run and from checkout to checkout."""
    text = re.sub(r"\.\d{16}\.", ".TIME.", text).replace(SOURCE, "faulty.py")
    return re.sub(r"faulty\.py:(\d+)", lambda match: f"faulty.py:{NAMES.get(int(match[1]), match[1])}", text)


NAMES = {number: name for name, number in LINES.items()}

FIND = """\
burst = self.burst(scaled, self.huge): 1 operator

Mul  Default/Mul-op1
  rank 0, graph 0
  faulty.py:burst  burst = self.burst(scaled, self.huge)

slot      host         device
input.0   Float32 (4)  Float32 DefaultFormat (4)
input.1   Float32 (4)  Float32 DefaultFormat (4)
output.0  Float32 (4)  Float32 DefaultFormat (4)

iteration  slot      dtype    shape          max          min         mean         norm  nan  inf  file
        1  input.0   Float32  (4)             10            2          5.5        12.49    0    0  \
rank_0/Faulty/0/1/Mul.Default_Mul-op1.0.0.TIME.input.0.DefaultFormat.Float32.npy
        1  input.1   Float32  (4)    1.70141e+38  1.70141e+38  1.70141e+38  3.40282e+38    0    0  \
rank_0/Faulty/0/1/Mul.Default_Mul-op1.0.0.TIME.input.1.DefaultFormat.Float32.npy
        1  output.0  Float32  (4)            inf          inf          inf          inf    0    4  \
rank_0/Faulty/0/1/Mul.Default_Mul-op1.0.0.TIME.output.0.DefaultFormat.Float32.npy
"""


def test_find_shows_the_operators_and_data_of_a_line(capsys):
    dump = real_dumps.faulty()
    code, text = run(capsys, "find", dump, "burst = self.burst(scaled, self.huge)", "--iteration", 1)
    assert (code, steady(text)) == (0, FIND)
    code, by_number = run(capsys, "find", dump, f"faulty.py:{LINES['burst']}", "--iteration", 1)
    assert code == 0
    assert by_number.splitlines()[1:] == text.splitlines()[1:]


OP = """\
TopK-op1: 1 operator

TopK  Default/TopK-op1
  rank 0, graph 0
  in file names: Default_TopK-op0
  faulty.py:values, indices  values, indices = self.top(x, 2)

slot      host         device
input.0   Float32 (4)  Float32 DefaultFormat (4)
input.1   Int32 ()     Int32 DefaultFormat ()
output.0  Float32 (2)  Float32 DefaultFormat (2)
output.1  Int32 (2)    Int32 DefaultFormat (2)
  input.0 from %x
  input.1 from Default/Cast-op1

iteration  slot      dtype    shape  max  min  mean     norm  nan  inf  file
        0  input.0   Float32  (4)      4    1   2.5  5.47723    0    0  FILE
        0  input.1   Int32    ()       2    2     2        2    0    0  FILE
        0  output.0  Float32  (2)      4    3   3.5        5    0    0  FILE
        0  output.1  Int32    (2)      3    2   2.5  3.60555    0    0  FILE
        1  input.0   Float32  (4)      5    1  2.75    6.245    0    0  FILE
        1  input.1   Int32    ()       2    2     2        2    0    0  FILE
        1  output.0  Float32  (2)      5    3     4  5.83095    0    0  FILE
        1  output.1  Int32    (2)      3    2   2.5  3.60555    0    0  FILE
        2  input.0   Float32  (4)      6    1     3  7.07107    0    0  FILE
        2  input.1   Int32    ()       2    2     2        2    0    0  FILE
        2  output.0  Float32  (2)      6    3   4.5   6.7082    0    0  FILE
        2  output.1  Int32    (2)      3    2   2.5  3.60555    0    0  FILE

input.0 over iterations 0 to 2
  max   ▁▅█  4 to 6
  min   ▁▁▁  1 to 1
  norm  ▁▄█  5.47723 to 7.07107

input.1 over iterations 0 to 2
  max   ▁▁▁  2 to 2
  min   ▁▁▁  2 to 2
  norm  ▁▁▁  2 to 2

output.0 over iterations 0 to 2
  max   ▁▅█  4 to 6
  min   ▁▁▁  3 to 3
  norm  ▁▄█  5 to 6.7082

output.1 over iterations 0 to 2
  max   ▁▁▁  3 to 3
  min   ▁▁▁  2 to 2
  norm  ▁▁▁  3.60555 to 3.60555
"""


def test_op_shows_neighbours_and_statistics_over_iterations(capsys):
    code, text = run(capsys, "op", real_dumps.faulty(), "TopK-op1")
    assert (code, re.sub(r"rank_0/\S+", "FILE", steady(text))) == (0, OP)


@pytest.mark.parametrize("name", ["Default/TopK-op1", "Default_TopK-op0", "topk", r"Top.-op\d+", "TopK"])
def test_op_takes_a_name_a_part_a_type_or_an_expression(capsys, name):
    code, text = run(capsys, "op", real_dumps.faulty(), name)
    assert code == 0
    assert text.splitlines()[0] == f"{name}: 1 operator"
    assert text.splitlines()[2] == "TopK  Default/TopK-op1"


def test_op_shows_who_uses_a_result(capsys):
    _, text = run(capsys, "op", real_dumps.faulty(), "Default/Mul-op0")
    assert "\n  used by Default/Mul-op1\n  used by Default/Sub-op0\n" in text


ORDER = """\
10 operators in execution order: 6 have anomalies, the first is Default/Sub-op0

   rank  graph  type    operator            line                       anomalies
0     0      0  Mul     Default/Mul-op0     faulty.py:scaled
1     0      0  Sub     Default/Sub-op0     faulty.py:nothing          \
all zero in iteration 0, 1, 2; unchanged in iteration 1, 2
2     0      0  Mul     Default/Mul-op1     faulty.py:burst            overflow producer in iteration 0, 1, 2
3     0      0  Square  Default/Square-op0  faulty.py:steady           unchanged in iteration 1, 2
4     0      0  Add     Default/Add-op0     faulty.py:later            overflow propagator in iteration 0, 1, 2
5     0      0  Mul     Default/Mul-op2     faulty.py:large            too large in iteration 0, 1, 2
6     0      0  Cast    Default/Cast-op1
7     0      0  TopK    Default/TopK-op1    faulty.py:values, indices
8     0      0  Mul     Default/Mul-op3     faulty.py:small            too small in iteration 0, 1, 2
9     0      0  Cast    Default/Cast-op2    faulty.py:half
"""


def squeezed(text: str) -> list[str]:
    """Line by line, with several spaces as one: names of lines are in place of numbers."""
    return [re.sub(r" +", " ", line).strip() for line in text.splitlines()]


def test_order_marks_anomalies(capsys):
    code, text = run(capsys, "order", real_dumps.faulty())
    assert (code, squeezed(steady(text))) == (0, squeezed(ORDER))


CHECK = """\
5 findings, the first: all zero in Default/Sub-op0; 11 of 30 tensors checked

kind       role        rank  graph  iteration  operator         slot      detail                       line
all zero                  0      0          1  Default/Sub-op0  output.0  4 of 4 are zero              faulty.py:nothing
overflow   producer       0      0          1  Default/Mul-op1  output.0  4 +inf of 4                  faulty.py:burst
overflow   propagator     0      0          1  Default/Add-op0  output.0  4 +inf of 4                  faulty.py:later
too large                 0      0          1  Default/Mul-op2  output.0  max |x| 8.38861e+07 > 1e+06  faulty.py:large
too small                 0      0          1  Default/Mul-op3  output.0  max |x| 4.54747e-12 < 1e-10  faulty.py:small
"""


def test_check_lists_every_finding_and_returns_1(capsys):
    code, text = run(capsys, "check", real_dumps.faulty(), "--iteration", 1)
    assert (code, steady(text)) == (1, CHECK)


def test_check_of_a_clean_run_returns_0(capsys):
    code, text = run(capsys, "check", real_dumps.alexnet())
    assert code == 0
    assert re.fullmatch(r"0 findings; \d+ of \d+ tensors checked\n", text)


def test_check_of_one_kind(capsys):
    code, text = run(capsys, "check", real_dumps.faulty(), "--only", "too-large", "--only", "too small", "--json")
    assert code == 1
    found = json.loads(text)["result"]
    assert [(row["kind"], row["operator"], row["iteration"]) for row in found] == [
        (kind, name, iteration)
        for iteration in (0, 1, 2)
        for kind, name in (("too large", "Default/Mul-op2"), ("too small", "Default/Mul-op3"))
    ]


def test_json_of_find_has_what_the_text_has(capsys):
    dump = real_dumps.faulty()
    code, text = run(capsys, "find", dump, "self.later(burst", "--iteration", 0, "--json")
    (operator,) = json.loads(text)["result"]
    assert code == 0
    assert {key: operator[key] for key in ("rank", "graph", "type", "name", "in_files", "line", "text")} == {
        "rank": 0,
        "graph": 0,
        "type": "Add",
        "name": "Default/Add-op0",
        "in_files": "Default_Add-op0",
        "line": LINES["later"],
        "text": "later = self.later(burst, x)",
    }
    assert operator["producers"] == [{"slot": "input.0", "name": "Default/Mul-op1"}, {"slot": "input.1", "name": "%x"}]
    output = operator["tensors"][-1]
    assert (output["slot"], output["max"], output["posinf"]) == ("output.0", "Infinity", 4)
    assert np.isinf(np.load(dump / output["file"])).all()


def test_ranks_are_kept_apart(tmp_path, capsys):
    shutil.copytree(real_dumps.faulty() / "rank_0", tmp_path / "rank_0")
    shutil.copytree(real_dumps.faulty() / "rank_0", tmp_path / "rank_1")
    _, text = run(capsys, "find", tmp_path, "self.later(burst", "--iteration", 0, "--json")
    found = json.loads(text)["result"]
    assert [(row["rank"], {tensor["file"].split("/")[0] for tensor in row["tensors"]}) for row in found] == [
        (0, {"rank_0"}),
        (1, {"rank_1"}),
    ]
    _, text = run(capsys, "check", tmp_path, "--rank", 1, "--only", "overflow", "--json")
    assert {row["rank"] for row in json.loads(text)["result"]} == {1}
    _, text = run(capsys, "order", tmp_path, "--json")
    assert [row["rank"] for row in json.loads(text)["result"]] == [0] * 10 + [1] * 10


def test_the_alexnet_sample_answers_the_documents_question_in_one_command(capsys):
    dump = real_dumps.alexnet()
    code, text = run(capsys, "find", dump, "x = self.conv3(x)", "--json")
    found = json.loads(text)["result"]
    assert code == 0
    assert [operator["type"] for operator in found] == ["Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter"]
    for operator in found:
        outputs = [tensor for tensor in operator["tensors"] if tensor["slot"] == "output.0"]
        assert [tensor["iteration"] for tensor in outputs] == [0, 1]
        for tensor in outputs:
            array = np.load(dump / tensor["file"]).astype(np.float64)
            assert (tensor["max"], tensor["min"], tensor["shape"]) == (array.max(), array.min(), list(array.shape))


def test_nothing_found_returns_1_and_says_what_there_is(capsys):
    dump = real_dumps.faulty()
    assert run(capsys, "op", dump, "Softmax") == (1, "Softmax: 0 operators\n")
    code, text = run(capsys, "find", dump, "faulty.py:1")
    assert code == 1
    assert text.startswith("faulty.py:1: 0 operators\nlines of faulty.py in the graphs: ")
    code, text = run(capsys, "find", dump, "other.py:1")
    assert (code, text) == (1, f"other.py:1: 0 operators\nsource files in the graphs: {SOURCE}\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["find", "{tmp}", "x"],
            "{tmp} is not a graph-mode dump: it has no tensor file, no statistic.csv and no graph",
        ),
        (["check", "{tmp}/none"], "{tmp}/none is not a directory; give the directory of a graph-mode dump."),
        (["check", "{dump}", "--only", "odd"], "unknown check 'odd'; choose from overflow, too large, too small"),
        (["check", "{dump}", "--range-of", "int8"], "--range-of int8 is not a floating-point type; write float16"),
        (["op", "{dump}", "(Softmax"], "no operator matches '(Softmax', and it is not a regular expression"),
    ],
)
def test_what_cannot_be_done_returns_2_and_says_why(tmp_path, capsys, arguments, message):
    places = {"tmp": tmp_path, "dump": real_dumps.faulty()}
    assert main(["graph", *(argument.format(**places) for argument in arguments)]) == 2
    assert capsys.readouterr().err.startswith("msprobe graph: " + message.format(**places))


def test_a_dump_without_graphs_says_so(tmp_path, capsys):
    place = tmp_path / "rank_0" / "Net" / "0" / "0"
    place.mkdir(parents=True)
    np.save(place / "Add.Default_Add-op0.0.0.100.output.0.DefaultFormat.Float32.npy", np.float32([1, 2]))
    code, text = run(capsys, "check", tmp_path)
    assert (code, text) == (
        0,
        "0 findings; 1 of 1 tensor checked\n"
        "Note: rank 0 has no graphs/ms_output_trace_code_graph_*.ir or .pb: its operators have only the names of "
        "their files, without source lines, shapes or neighbours\n",
    )


def small_dump(tmp_path: Path) -> Path:
    place = tmp_path / "rank_0" / "Net" / "0" / "0"
    place.mkdir(parents=True)
    np.save(place / "Add.Default_Add-op0.0.0.100.output.0.DefaultFormat.Float32.npy", np.float32([1, 2]))
    return place


def test_a_file_that_cannot_be_read_is_reported_and_the_rest_shown(tmp_path, capsys):
    place = small_dump(tmp_path)
    broken = place / "Sub.Default_Sub-op0.0.0.100.output.0.DefaultFormat.Float32.npy"
    broken.write_bytes(b"not an array")
    for arguments, code in ((["check", str(tmp_path)], 1), (["op", str(tmp_path), "Default"], 0)):
        assert main(["graph", *arguments]) == code
        captured = capsys.readouterr()
        assert captured.err == f"msprobe graph: {broken} is not an .npy file: its first bytes are wrong.\n"
    assert "Add  Default_Add-op0" in captured.out
    assert "Sub  Default_Sub-op0" in captured.out
    main(["graph", "check", str(tmp_path)])
    assert capsys.readouterr().out.startswith("0 findings; 1 of 2 tensors checked\n")


def test_op_shows_the_values_an_operator_was_made_with(tmp_path, capsys):
    (small_dump(tmp_path) / "Add.Default_Add-op0.json").write_text('{"transpose_a": "False"}')
    code, text = run(capsys, "op", tmp_path, "Add")
    assert code == 0
    assert "\n  transpose_a: False\n" in text


def test_op_takes_the_expressions_of_data_dump_json(capsys):
    code, text = run(capsys, "op", real_dumps.faulty(), r"name-regex(Default/(TopK|Square)-op\d)", "--json")
    assert code == 0
    assert [row["type"] for row in json.loads(text)["result"]] == ["Square", "TopK"]


@pytest.mark.parametrize(
    ("values", "bars"),
    [
        ([1, 2, 3], "▁▅█"),
        ([5, 5], "▁▁"),
        ([1, None, float("inf"), 8], "▁ !█"),
        ([float("nan")], "!"),
        ([-1e308, 1e308], "▁█"),
        ([], ""),
    ],
)
def test_sparklines(values, bars):
    assert sparkline(values) == bars
