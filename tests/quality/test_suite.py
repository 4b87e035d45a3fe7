"""The suite is as large as it claims, and its representative part finds what it should."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

TRANSFORMERS, OTHERS = 12, 8


def test_there_are_enough_faults_pairs_and_models_of_every_kind() -> None:
    from architectures import OTHERS as others
    from architectures import TRANSFORMERS as transformers
    from cases import KINDS
    from run import load

    cases = load()
    assert len({case.id for case in cases}) == len(cases)
    faults = [case for case in cases if case.kind != "clean"]
    assert len(faults) >= 150
    assert len(cases) - len(faults) >= 100
    assert len(transformers) >= TRANSFORMERS
    assert len(others) >= OTHERS
    assert {case.kind for case in faults} == set(KINDS)
    assert {case.model for case in faults} >= {model.name for model in [*transformers, *others]}
    part = [case for case in cases if case.representative]
    assert {case.kind for case in part} == {*KINDS, "clean"}
    assert len({case.model for case in part}) >= 10


def test_the_unseen_cases_are_of_other_models() -> None:
    from run import load

    tuned, unseen = load(), load("unseen")
    assert not {case.model for case in tuned} & {case.model for case in unseen}
    assert len([case for case in unseen if case.kind != "clean"]) >= 80
    assert len([case for case in unseen if case.kind == "clean"]) >= 40
    assert len({case.id for case in unseen}) == len(unseen)


def test_the_representative_part_has_no_miss_but_the_known_ones(suite: Path, tmp_path: Path) -> None:
    written = tmp_path / "judgements.json"
    command = [sys.executable, str(suite / "run.py"), "--part", "representative", "--json", str(written)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert written.exists(), done.stderr
    known = json.loads((suite / "known_misses.json").read_text())
    judgements = json.loads(written.read_text())
    assert len(judgements) >= 40
    misses = {one["case"]: (one["why"], one["said"]) for one in judgements if one["verdict"] not in ("right", "same")}
    assert not {case: miss for case, miss in misses.items() if case not in known}
