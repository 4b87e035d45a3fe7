"""Off is off: msprobe changes nothing in torch when it is created, stopped, or outside of the wanted steps."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch._dynamo.eval_frame as eval_frame
import torch.distributed as dist
import torch.nn.functional as F
import torch.optim.optimizer as optimizers
from collecting import configured
from torch import nn
from torch.nn.modules import module as module_hooks

from msprobe.pytorch import PrecisionDebugger


def structure(model):
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return {
        "modes": torch._C._len_torch_function_stack(),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "module hooks": [len(getattr(m, name)) for m in model.modules() for name in hooks],
        "parameter hooks": [
            (dict(p._backward_hooks or {}), dict(p._post_accumulate_grad_hooks or {})) for p in model.parameters()
        ],
        "global hooks": [
            len(getattr(module_hooks, name))
            for name in vars(module_hooks)
            if name.startswith("_global") and isinstance(getattr(module_hooks, name), dict)
        ],
        "Tensor": dict(vars(torch.Tensor)),
        "Module": dict(vars(nn.Module)),
        "distributed": dict(vars(dist)),
        "c10d": dict(vars(dist.distributed_c10d)),
        "Work": dict(vars(dist.Work)),
        "functional": dict(vars(F)),
        "torch": {k: v for k, v in vars(torch).items() if callable(v)},
        "dynamo": eval_frame._maybe_set_eval_frame,
        "scripting": torch.jit._recursive.create_script_module,
        "optimizer": [dict(hooks) for name, hooks in vars(optimizers).items() if name.startswith("_global_optimizer")],
        "loader": torch.utils.data.dataloader._BaseDataLoaderIter.__next__,
    }


@pytest.mark.parametrize("level", ["L0", "L1", "mix", "debug"])
def test_nothing_is_left_installed_while_off(tmp_path, level):
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.ReLU(inplace=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    untouched = structure(model)

    def train():
        optimizer.zero_grad()
        model(torch.randn(4, 2)).sum().backward()
        optimizer.step()

    debugger = PrecisionDebugger(configured(tmp_path, level=level, step=[1]))
    assert structure(model) == untouched  # constructed
    debugger.start(model)
    train()
    assert structure(model) == untouched  # not a wanted step
    debugger.stop()
    debugger.step()
    debugger.start(model)
    if level != "debug":
        assert structure(model) != untouched
    train()
    if level == "debug":
        debugger.save(model[0].weight, "weight")
    debugger.stop()
    if level != "debug":
        assert structure(model) == untouched  # stopped, the step still open
    train()
    debugger.step()
    assert structure(model) == untouched
    debugger.start(model)
    train()
    assert structure(model) == untouched  # after the last wanted step
    debugger.stop()
    debugger.step()


def test_a_rank_that_is_not_wanted_installs_nothing(tmp_path):
    model = nn.Sequential(nn.Linear(2, 2))
    untouched = structure(model)
    debugger = PrecisionDebugger(configured(tmp_path, level="mix", rank=[5]))
    debugger.start(model)
    assert structure(model) == untouched


def test_importing_changes_nothing():
    script = (
        "import torch, random; import torch.nn.functional as F;"
        "before = dict(vars(torch.Tensor)), dict(vars(F)), random.getstate(), torch.get_rng_state().tolist();"
        "import msprobe.pytorch;"
        "after = dict(vars(torch.Tensor)), dict(vars(F)), random.getstate(), torch.get_rng_state().tolist();"
        "assert before == after"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
