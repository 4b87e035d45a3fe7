"""The composite action and the pre-commit hook of docs/ci.md do what they say."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import yaml

from .project import edit, make_project, msprobe, trains

GUIDE = Path(__file__).parents[2] / "docs" / "ci.md"


def blocks() -> list[Any]:
    return [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", GUIDE.read_text(), re.DOTALL)]


def shell(place: Path, words: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    paths = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "PATH": paths, **variables}
    return subprocess.run(words, cwd=place, env=environment, capture_output=True, text=True, timeout=300, check=False)


def test_the_action_and_the_hook_find_a_change(tmp_path: Path) -> None:
    action, hooks = blocks()
    (step,) = action["runs"]["steps"]
    assert (action["runs"]["using"], step["shell"]) == ("composite", "bash")
    given = {"name": "tiny", "command": "python train.py"}
    assert set(action["inputs"]) == set(given)
    variables = {
        name: re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda found: given[found[1]], text)
        for name, text in step["env"].items()
    }
    (hook,) = hooks[0]["hooks"]
    assert (hooks[0]["repo"], hook["language"], hook["pass_filenames"]) == ("local", "system", False)
    place = make_project(tmp_path / "project")
    assert msprobe(place, "baseline", "save", "tiny", "--quick", *trains()).returncode == 0
    assert shell(place, ["bash", "-c", step["run"]], **variables, GITHUB_ACTIONS="true").returncode == 0
    assert ElementTree.parse(place / "numerics.xml").getroot().get("failures") == "0"
    edit(place, "eps=1e-5", "eps=1e-3")
    done = shell(place, ["bash", "-c", step["run"]], **variables, GITHUB_ACTIONS="true")
    assert done.returncode == 1
    assert "\n::error file=net.py,line=14,title=msprobe check tiny::Differs: Functional.layer_norm.0" in done.stdout
    assert ElementTree.parse(place / "numerics.xml").getroot().get("failures") == "1"
    done = shell(place, shlex.split(hook["entry"]))
    assert done.returncode == 1
    assert done.stdout.startswith("Differs: Functional.layer_norm.0.forward in Module.blocks.0.norm")
