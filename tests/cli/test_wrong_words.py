"""What the command says to a wrong verb or a wrong directory."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from msprobe.cli import main
from msprobe.watch.store import Store
from msprobe.watch.targets import Target


@pytest.mark.parametrize(("word", "meant"), [("comapre", "compare"), ("shw", "show"), ("overfow", "overflow")])
def test_a_verb_with_a_typing_error_gets_a_suggestion(
    word: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([word])
    assert f"unknown verb {word!r}; did you mean {meant}?" in capsys.readouterr().err


def test_a_verb_like_no_other_gets_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["zzz"])
    assert "choose from run, " in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["show", "overflow", "recover"])
def test_a_watched_run_is_named_with_its_verb(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store(tmp_path / "watch.sqlite", {"framework": "pytorch", "rank": None}, 1 << 30, None)
    store.add([(Target("grad", "w", 0), ("norm",))])
    store.write(0, np.ones(1), [])
    store.close()
    assert main([verb, str(tmp_path)]) == 2
    assert f"{tmp_path} is a watched run, not a dump. Use: msprobe watch {tmp_path}" in capsys.readouterr().err
    assert main(["watch", str(tmp_path)]) == 0


@pytest.mark.parametrize(("place", "as_file"), [(".", False), (".", True), ("step0/rank0", False)])
def test_results_of_run_ut_are_named_with_their_verb(
    place: str, as_file: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / place / "accuracy_checking_result_20260101120000.csv"
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="") as stream:
        csv.writer(stream).writerow(["API Name"])
    assert main(["show", str(file if as_file else tmp_path)]) == 2
    assert f"the results of run_ut, not a dump. Use: msprobe view {tmp_path}" in " ".join(
        capsys.readouterr().err.split()
    )


def test_watch_of_a_dump_names_the_right_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rank = tmp_path / "step0" / "rank"
    rank.mkdir(parents=True)
    (rank / "dump.json").write_text('{"task": "statistics", "level": "L1", "framework": "pytorch", "data": {}}')
    assert main(["watch", str(tmp_path)]) == 2
    assert f"{tmp_path} is a dump, not a watched run. Use: msprobe show {tmp_path}" in capsys.readouterr().err
