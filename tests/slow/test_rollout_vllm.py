"""Real vLLM, in a venv of its own: one clean pair, one fault, and the same tokens with and without the plugin."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("MSPROBE_VLLM_PYTHON") or ROOT / ".venv-vllm/bin/python")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason="needs vLLM: `make test-slow`, or MSPROBE_VLLM_PYTHON"),
]


@pytest.mark.parametrize(
    "scenario", ["clean batch, qwen3", "clean prefix cache", "fault theta, Llama", "fault stale tensor"]
)
def test_a_scenario_with_real_vllm(scenario, tmp_path):
    command = [str(PYTHON), "-m", "benchmarks.rollout.run", "--only", scenario, "--dtype", "float32"]
    result = subprocess.run([*command, "--keep", str(tmp_path / "k")], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    assert "1 of 1 right" in result.stdout


def test_tokens_and_log_probs_are_identical_with_the_plugin(tmp_path):
    script = (
        "import sys; from pathlib import Path; from functools import partial\n"
        "from benchmarks.rollout import engine, models\n"
        "root = Path(sys.argv[1]); engine.prepare(); model = models.make('qwen3', root / 'm')\n"
        "for name, dump in (('off', None), ('on', root / 'dump')):\n"
        "    run = partial(engine.generate, model, dump, root / f'{name}.jsonl', sampling={'seed': 3})\n"
        "    assert engine.in_fork(run, root / f'{name}.log'), (root / f'{name}.log').read_text()[-3000:]\n"
    )
    subprocess.run([str(PYTHON), "-c", script, str(tmp_path)], cwd=ROOT, check=True)
    assert (tmp_path / "dump/step0/rank0/tokens.json").is_file()
    assert (tmp_path / "on.jsonl").read_text() == (tmp_path / "off.jsonl").read_text()
