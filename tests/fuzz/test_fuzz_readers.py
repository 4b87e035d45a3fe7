"""A short part of `make fuzz`: the same seeds each time."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import fuzz_readers

ROUNDS = 25


@pytest.mark.filterwarnings("ignore")
def test_no_damaged_file_makes_a_reader_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    targets = fuzz_readers.make_targets(tmp_path)
    for target in targets:
        target.accept()  # its file as it is
        target.tidy()
    held = [target.attack(seed) for target in targets for seed in range(max(2, int(ROUNDS / target.weight)))]
    assert all(held), capsys.readouterr().out
