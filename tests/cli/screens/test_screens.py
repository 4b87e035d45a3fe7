"""Real terminals (tmux) of 80x24 and 120x40: the answer is on the last screen, and no line is wider than it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tmux import Captured, capture

import gloo

HERE = Path(__file__).parent
SIZES = [(80, 24), (120, 40)]
ORIGINS = {
    "llama": ("Tensor.__add__.15.forward", "step 0, forward"),
    "lora": ("Tensor.__mul__.18.forward", "step 0, forward"),
    "ddp": ("Tensor.__mul__.1.forward", "step 0, rank 1, forward"),
}
VERBS = {
    "show llama": (["show", "llama/target"], 0, "Anomalies: none"),
    "show lora": (["show", "lora/target"], 0, "Anomalies: none"),
    "show ddp": (["show", "ddp/target"], 0, "Anomalies: none"),
    "show overflow": (["show", "overflow"], 0, "Functional.linear.19.forward"),
    "overflow": (["overflow", "overflow"], 1, "First producer: Functional.linear.19.forward"),
    "overflow llama": (["overflow", "llama/target"], 0, "no call produced NaN or infinity"),
    "overflow lora": (["overflow", "lora/target"], 0, "no call produced NaN or infinity"),
    "overflow ddp": (["overflow", "ddp/target"], 0, "no call produced NaN or infinity"),
    "overflow replay": (["overflow", "replay", "overflow"], 1, "reproduced"),
    "rows llama": (["rows", "llama/target", "llama/golden", "--where", "role=introduced"], 0, "__add__.15.forward"),
    "rows lora": (["rows", "lora/target", "lora/golden", "--where", "role=introduced"], 0, "__mul__.18.forward"),
    "rows ddp": (["rows", "ddp/target", "ddp/golden", "--where", "role=introduced"], 0, "__mul__.1.forward"),
    "precision": (["precision", "overflow", "--format", "nvfp4,mxfp8"], 0, "nvfp4: all 28 products meet the budget"),
    "weights": (["weights", "weights/golden", "weights/target"], 1, "30 of 30 tensors are not the same."),
    "rollout check": (
        ["rollout", "check", "samples.jsonl", "--model", "weights/golden"],
        1,
        "temperature 0.5, not at 1",
    ),
    "watch": (["watch", "watch"], 1, "First: step 9, rank 0, output/model.layers.1.mlp.down_proj"),
    "recover llama": (["recover", "llama/target"], 0, "nothing to recover"),
    "recover lora": (["recover", "lora/target"], 0, "nothing to recover"),
    "recover ddp": (["recover", "ddp/target"], 0, "nothing to recover"),
    "replay": (
        ["replay", "overflow/step0/rank/Functional.linear.19.forward"],
        0,
        "Functional.linear.19.forward: deterministic in 16 runs",
    ),
    "replay without a record": (["replay", "ddp/target"], 2, "give the rank directory and a name in its dump.json"),
    "precision without tensors": (["precision", "lora/target", "--format", "nvfp4"], 2, "has no saved tensors"),
    "view llama": (["view", "llama/target", "llama/golden", "--export", "llama.html"], 0, "Wrote llama.html"),
    "view lora": (["view", "lora/target", "lora/golden", "--export", "lora.html"], 0, "Wrote lora.html"),
    "view ddp": (["view", "ddp/target", "ddp/golden", "--export", "ddp.html"], 0, "Wrote ddp.html"),
    "watch compare": (["watch", "compare", "watch", "watch"], 0, "Both runs are the same"),
    "watch export": (["watch", "export", "watch", "--csv", "-o", "curves"], 0, "curves"),
    "graph": (["graph", "check", "llama/target"], 2, "is not a graph-mode dump"),
    "convert": (["convert", "-d", "llama/target", "-out", "converted"], 2, "2 files failed"),
    "the same dump twice": (["compare", "lora/target", "lora/target"], 2, "Both paths are one directory"),
    "run_ut": (["run_ut", "-api_info", "ddp/golden", "-f", "-o", "checked", "--jobs", "1"], None, " calls: "),
    "unknown verb": (["comapre", "llama/target"], 2, "did you mean compare?"),
    "doctor": (["doctor"], None, "msprobe "),
}

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed: apt-get install tmux")


SCRIPT = [str(HERE / "pairs.py"), "script"]
RUNNING = {
    "again": (["again", *SCRIPT, "blocks", "random"], 1, "First difference: Tensor.__mul__.1.forward"),
    "prove": (["prove", "--golden", "blocks", *SCRIPT, "blocks", "wrong"], 0, "Proved: with Tensor.__mul__.1.forward"),
    "check": (
        ["check", "blocks", "--", sys.executable, *SCRIPT, "blocks", "wrong"],
        1,
        "call Tensor.__mul__.1.forward",
    ),
}
"""Verbs that run a script; each takes seconds."""


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a golden dump and a baseline of the script, made once."""
    place = tmp_path_factory.mktemp("recorded")
    script = [*SCRIPT, "blocks", "right"]
    for words in (
        ["run", "-o", "blocks", "--task", "tensor", *script],
        ["baseline", "save", "blocks", "--quick", "--", sys.executable, *script],
    ):
        subprocess.run(
            [sys.executable, "-m", "msprobe", *words], check=True, capture_output=True, timeout=600, cwd=place
        )
    return place


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dumps of the two scripts, made once."""
    pytest.importorskip("peft")
    pytest.importorskip("transformers")
    out = tmp_path_factory.mktemp("pairs")
    subprocess.run([sys.executable, HERE / "pairs.py", "models", out], check=True, capture_output=True, timeout=600)
    assert gloo.ranks(HERE / "pairs.py", "ranks", out).returncode == 0
    return out


def check(captured: Captured, size: tuple[int, int]) -> str:
    """The last screen as one text without the breaks of lines."""
    columns, lines = size
    assert len(captured.last) <= lines
    assert max(map(len, captured.lines)) <= columns, "a line is wider than the terminal"
    assert len(captured.lines) <= lines - 1, "the output has scrolled"
    return " ".join(" ".join(captured.last).split())


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("pair", ORIGINS)
def test_compare_shows_the_origin_and_its_rows_on_the_last_screen(
    pairs: Path, tmp_path: Path, pair: str, size: tuple[int, int]
) -> None:
    name, place = ORIGINS[pair]
    captured = capture(["compare", f"{pair}/target", f"{pair}/golden"], size, tmp_path, pairs)
    shown = check(captured, size)
    assert captured.code == 1
    assert shown.startswith(f"Origin: {name} in ")
    assert f"call {name}" in shown
    assert f"where {place}" in shown
    assert "--all prints all" in shown
    rows = captured.last[next(n for n, line in enumerate(captured.last) if line.startswith("step/rank")) + 1 :]
    first = rows[0].split()
    assert name in rows[0], rows
    assert first[0] == ("step0/rank1" if pair == "ddp" else "step0")
    assert "introduced" in first


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_keeps_its_answer_on_the_last_screen(
    pairs: Path, tmp_path: Path, verb: str, size: tuple[int, int]
) -> None:
    words, code, answer = VERBS[verb]
    captured = capture(words, size, tmp_path, pairs)
    assert answer in check(captured, size)
    assert code is None or captured.code == code


@pytest.mark.parametrize("verb", RUNNING)
def test_a_verb_that_runs_a_script_keeps_its_answer_on_the_screen(recorded: Path, tmp_path: Path, verb: str) -> None:
    words, code, answer = RUNNING[verb]
    captured = capture(words, (80, 24), tmp_path, recorded)
    assert answer in check(captured, (80, 24))
    assert captured.code == code


def test_run_ends_with_what_was_written_and_the_next_command(tmp_path: Path) -> None:
    captured = capture(["run", "-o", "made", *SCRIPT, "blocks", "wrong"], (80, 24), tmp_path, tmp_path)
    assert captured.code == 0
    assert len(captured.last) <= 24
    assert f"2 steps written to {tmp_path / 'made'}. Next: msprobe show made" in captured.lines[-1]


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_the_list_of_verbs_is_not_wider_than_the_terminal(tmp_path: Path, size: tuple[int, int]) -> None:
    """It is a list, and may scroll; words are not broken."""
    captured = capture(["--help"], size, tmp_path, tmp_path)
    assert max(map(len, captured.lines)) <= size[0]
    assert any(line.startswith("  schema ") for line in captured.lines)


def test_rows_say_their_rank(pairs: Path, tmp_path: Path) -> None:
    words = ["rows", "ddp/target", "ddp/golden", "--where", "role=introduced", "--where", "rank=1"]
    captured = capture(words, (80, 24), tmp_path, pairs)
    check(captured, (80, 24))
    rows = captured.last[next(n for n, line in enumerate(captured.last) if line.startswith("step/rank")) + 1 :]
    assert "Tensor.__mul__.1.forward.input.1" in " ".join(rows)
    assert {row.split()[0] for row in rows} <= {"step0/rank1", "step1/rank1"}


def test_all_ends_with_the_origin(pairs: Path, tmp_path: Path) -> None:
    captured = capture(["compare", "lora/target", "lora/golden", "--all"], (120, 40), tmp_path, pairs)
    last = " ".join(" ".join(captured.last[-3:]).split())
    assert f"Origin: {ORIGINS['lora'][0]} in " in last
    assert len(captured.lines) > 400


def test_the_reports_that_compare_writes_have_their_lines(pairs: Path, tmp_path: Path) -> None:
    words = ["compare", "llama/target", "llama/golden", "--csv", "rows.csv"]
    captured = capture([*words, "--html", "page.html"], (80, 24), tmp_path, pairs)
    assert check(captured, (80, 24)).startswith("Origin: ")
    assert sum(line.startswith("Wrote ") for line in captured.last) == 2
