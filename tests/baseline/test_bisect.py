"""`git bisect run msprobe check`: a repository of 30 commits, one of which changes an epsilon."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from .project import commit, edit, git, make_project, msprobe, trains

BAD = 17
BROKEN = (21, 22, 23)
"""Here the script fails to import for a different reason; git must skip these."""


def test_bisect_ends_at_the_commit_and_names_the_line(tmp_path: Path) -> None:
    project, store = make_project(tmp_path / "project"), tmp_path / "baselines"
    first = git(project, "rev-parse", "HEAD").strip()
    assert msprobe(project, "baseline", "save", "net", "--in", str(store), *trains()).returncode == 0
    guilty = ""
    for number in range(2, 31):
        if number == BAD:
            edit(project, "eps=1e-5", "eps=1e-3")
        elif number == BROKEN[0]:
            edit(
                project,
                "import torch\nfrom torch import nn",
                "import torch\nimport nothing_like_it\nfrom torch import nn",
            )
        elif number == BROKEN[-1] + 1:
            edit(project, "import nothing_like_it\n", "")
        else:
            (project / "net.py").write_text((project / "net.py").read_text() + f"# note {number}\n")
        commit(project, f"Commit {number}")
        guilty = git(project, "rev-parse", "HEAD").strip() if number == BAD else guilty
    git(project, "bisect", "start", "HEAD", first)
    checks = [sys.executable, "-m", "msprobe", "check", "net", "--skip-broken", "--in", str(store), *trains()]
    done = subprocess.run(
        ["git", "bisect", "run", *checks],
        cwd=project,
        env={**os.environ, "OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{guilty} is the first bad commit" in done.stdout
    answer = done.stdout[done.stdout.rindex("Differs: ") :].splitlines()
    assert "eps is 0.001, not 1e-05" in answer[0]
    assert any(line.startswith("  changed net.py:9 (") and line.endswith(f"Commit {BAD})") for line in answer)
    assert "          + self.norm = nn.LayerNorm(width, eps=1e-3)" in answer
