"""The pytest plugin, used by real tests in real pytest processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from msprobe.testing.names import baseline_name

BLOCK = """import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8, eps=1e-5)
        self.up = nn.Linear(8, 16)

    def forward(self, x):
        return torch.tanh(self.up(self.norm(x)))
"""
TESTS = """import pytest
import torch
from block import Block


def test_block(numerics):
    torch.manual_seed(0)
    model, x = Block(), torch.randn(4, 8)
    with numerics("block"):
        model(x).sum().backward()


@pytest.mark.numerics(tolerance="bitwise")
@pytest.mark.parametrize("rows", [1, 3])
def test_rows(numerics, rows):
    torch.manual_seed(0)
    model = Block()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with numerics():
        for _ in range(2):
            model(torch.randn(rows, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
"""
PARALLEL = """import torch
from block import Block


def test_one(numerics):
    torch.manual_seed(0)
    model, x = Block(), torch.randn(4, 8)
    with numerics("one device"):
        model(x).mean().backward()


def test_parts(numerics):
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(Block())
    x = torch.randn(4, 8).chunk(2)[torch.distributed.get_rank()]
    with numerics(layout="dp2", golden="one device"):
        model(x).mean().backward()
    torch.distributed.destroy_process_group()
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "block.py").write_text(BLOCK)
    (tmp_path / "test_block.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers -q\npythonpath = .\n")
    return tmp_path


def run(project: Path, *words: str, start: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    return subprocess.run(
        [sys.executable, "-m", *start, "pytest", *words],
        cwd=project,
        env={**environment, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_failure_is_the_origin_in_ten_lines(project: Path) -> None:
    done = run(project)
    assert done.returncode == 1
    assert done.stdout.count("Run pytest --numerics-update") >= 3
    done = run(project, "--numerics-update")
    assert done.returncode == 0, done.stdout
    assert run(project).returncode == 0
    (project / "block.py").write_text(BLOCK.replace("eps=1e-5", "eps=1e-3"))
    done = run(project, "-k", "test_block")
    assert done.returncode == 1
    message = re.search(r"^numerics 'block': .*?--numerics-update$", done.stdout, re.M | re.S)
    assert message is not None, done.stdout
    lines = message[0].splitlines()
    assert "Functional.layer_norm.0.forward in Module.norm.LayerNorm" in lines[0]
    assert "eps is 0.001, not 1e-05" in lines[0]
    assert f"  source  {project}/block.py:12 in forward" in lines
    assert len(lines) <= 10
    assert "Traceback" not in done.stdout
    (project / "block.py").write_text(BLOCK.replace("self.norm(x)))", "self.norm(x)) * 1.0000001)"))
    done = run(project)
    assert "2 failed, 1 passed" in done.stdout  # test_rows is bitwise, test_block is not


def test_nothing_stays_installed_after_a_block(project: Path) -> None:
    (project / "test_block.py").write_text(
        TESTS + "    before = torch.nn.Module.__call__\n"
        '    with numerics("second"):\n        Block()(torch.randn(2, 8))\n'
        "    assert torch.nn.Module.__call__ is before\n"
        "    from msprobe.pytorch import PrecisionDebugger\n    assert PrecisionDebugger._current is None\n"
        '    with pytest.raises(pytest.UsageError, match="used twice"), numerics("second"):\n        pass\n'
        '    with pytest.raises(ValueError), numerics("third"):\n        raise ValueError\n'
    )
    done = run(project, "--numerics-update", "-k", "test_rows")
    assert done.returncode == 0, done.stdout
    assert not any("third" in one.name for one in (project / "baselines").iterdir())


def test_a_block_without_a_model_fails(project: Path) -> None:
    (project / "test_block.py").write_text("def test_none(numerics):\n    with numerics():\n        pass\n")
    done = run(project)
    assert done.returncode == 1
    assert "nothing was collected" in done.stdout


def test_a_layout_is_checked_against_one_device(project: Path) -> None:
    (project / "test_parts.py").write_text(PARALLEL)
    done = run(project, "--numerics-update", "-k", "test_one")
    assert done.returncode == 0, done.stdout
    torchrun = ("torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m")
    done = run(project, "test_parts.py::test_parts", start=torchrun)
    assert done.returncode == 0, done.stdout + done.stderr
    done = run(project, "test_parts.py::test_one", start=torchrun)
    assert "needs torch.distributed.init_process_group before the block" in done.stdout
    text = PARALLEL.replace("Parallel(Block())", "Parallel(Block())\n    model.module.norm.eps = 1e-3")
    (project / "test_parts.py").write_text(text)
    done = run(project, "test_parts.py::test_parts", start=torchrun)
    assert done.returncode == 1
    assert done.stdout.count("numerics 'dp2': Differs: ") >= 2
    assert "layer_norm" in done.stdout


def test_names_are_safe_and_different() -> None:
    names = ["block", "a b", "a_b", "a/b", "é", "", "x" * 300, "x" * 301, "..", "rows[1]", "rows[3]"]
    found = [baseline_name("test_model", name) for name in names]
    assert len(set(found)) == len(names)
    from msprobe.baseline.store import check_name

    for name in found:
        check_name(name)
    assert found[0] == "test_model.block"
