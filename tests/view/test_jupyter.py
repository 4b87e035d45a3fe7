"""A real Jupyter kernel, without a browser: cells are named by their number, and `msprobe.view` is shown inline."""

from __future__ import annotations

import html
import json
import sys
from pathlib import Path

import pytest

from msprobe.compare import compare

CELLS = [
    """import torch, msprobe
from torch import nn
from msprobe.pytorch import PrecisionDebugger
class Net(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.norm = nn.LayerNorm(8, eps=eps)
    def forward(self, x):
        return self.norm(x)
""",
    """def train(path, eps):
    torch.manual_seed(0)
    net = Net(eps)
    debugger = PrecisionDebugger(dump_path=path, level="mix", step=[0])
    debugger.start(net)
    net(torch.randn(4, 8)).square().mean().backward()
    debugger.stop()
    debugger.step()
train("golden", 1e-5)
train("target", 1e-1)
""",
    'msprobe.view("target", "golden")',
]


@pytest.mark.slow
def test_cells_have_their_numbers_and_the_page_is_in_the_output(tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient")
    manager = pytest.importorskip("jupyter_client").KernelManager
    pytest.importorskip("ipykernel")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in CELLS])
    kernel = manager()
    kernel.kernel_spec.argv[0] = sys.executable  # not what an installed kernel of the user says
    client.NotebookClient(notebook, km=kernel, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    (shown,) = [one["data"] for one in notebook.cells[-1].outputs if "data" in one]
    assert "eps is 0.1, not 1e-05" in shown["text/plain"]
    page = html.unescape(shown["text/html"])
    assert page.startswith('<iframe sandbox="allow-scripts"')
    assert "<!DOCTYPE html>" in page
    origin = compare(tmp_path / "target", tmp_path / "golden").origin
    assert origin is not None
    assert origin.source == "Cell In[1]:9 in forward"
    rank = tmp_path / "golden" / "step0" / "rank"
    lines = json.loads((rank / "source.json").read_text())
    assert sorted(lines) == ["Cell In[1]", "Cell In[2]"]
    assert lines["Cell In[1]"]["9"] == "        return self.norm(x)"
    assert "File Cell In[1], line 9, in forward, \\n return self.norm(x)" in (rank / "stack.json").read_text()
