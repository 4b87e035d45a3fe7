"""`msprobe doctor` and `msprobe completion`."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from msprobe.cli import VERBS, doctor, main


def found(capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, tuple[str, str]]]:
    code = main(["doctor", "--json"])
    listed = json.loads(capsys.readouterr().out)["findings"]
    return code, {one["what"]: (one["state"], one["text"]) for one in listed}


def test_it_names_versions_parts_and_places(capsys: pytest.CaptureFixture[str]) -> None:
    import numpy
    import torch

    _, seen = found(capsys)
    assert seen["PyTorch"] == ("ok", torch.__version__)
    assert seen["numpy"] == ("ok", numpy.__version__)
    assert "all 6 are built" in seen["C parts"][1]
    assert str(Path.cwd()) in seen["here"][1]
    assert seen["mindstudio-probe"] == ("ok", "not in this environment")


def test_it_fits_on_one_screen_and_the_first_line_counts_the_problems(capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("msprobe doctor: ")
    assert len(lines) <= 22


def test_a_place_that_cannot_be_written_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    code, seen = found(capsys)
    assert code == 1
    assert seen["here"][0] == "problem"
    assert "give a dump_path elsewhere" in seen["here"][1]


def test_c_parts_that_are_not_built_are_a_problem_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "PARTS", (*doctor.PARTS, "stats._nothing"))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    code, seen = found(capsys)
    assert code == 1
    assert seen["C parts"][0] == "problem"
    assert "stats._nothing not built" in seen["C parts"][1]
    assert "install a C compiler" in seen["C parts"][1]
    assert seen["browser"][0] == "note"


def test_amx_that_does_not_run_is_named_with_the_setting_that_avoids_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "_has_amx", lambda: True)
    monkeypatch.setattr(doctor, "_MULTIPLY", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    code, seen = found(capsys)
    assert (code, seen["AMX"][0]) == (1, "problem")
    assert "ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16" in seen["AMX"][1]
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert found(capsys)[1]["AMX"] == ("ok", "does not work here, and ONEDNN_MAX_CPU_ISA=AVX2 avoids it")
    monkeypatch.setattr(doctor, "_MULTIPLY", "pass")
    assert found(capsys)[1]["AMX"] == ("ok", "works")


def completed(script: Path, *words: str) -> list[str]:
    """What bash offers for the last word."""
    line = " ".join(f"'{word}'" for word in ("msprobe", *words))
    code = f"source {script}; COMP_WORDS=({line}); COMP_CWORD={len(words)}; _msprobe; echo ${{COMPREPLY[@]}}"
    return subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True).stdout.split()


def test_bash_completes_verbs_and_their_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    script = tmp_path / "msprobe.bash"
    script.write_text(capsys.readouterr().out)
    assert completed(script, "comp") == ["compare", "compiled", "completion"]
    assert completed(script, "completion", "f") == ["fish"]
    assert set(completed(script, "")) >= {verb for verb, _ in VERBS}
    assert completed(script, "compare", "a", "--ht") == ["--html"]
    assert "--follow" in completed(script, "watch", "--")
    assert completed(script, "compare", "tar") == []  # bash itself completes files


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_know_every_verb(shell: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    for verb, _ in VERBS:
        assert verb in text
    assert "html" in text
    if shutil.which(shell):
        (tmp_path / "script").write_text(text)
        subprocess.run([shell, "-n", str(tmp_path / "script")], check=True)


def test_the_version_names_the_distribution() -> None:
    done = subprocess.run([sys.executable, "-m", "msprobe", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("(msprobe-precision)\n")


def test_doctor_knows_every_extension_of_the_package() -> None:
    setup = (Path(__file__).parents[2] / "setup.py").read_text(encoding="utf-8")
    assert set(re.findall(r'"msprobe\.([\w.]+)"', setup)) == set(doctor.PARTS)
