"""free_benchmark around a block of a test, or around one call of a registered function."""

from __future__ import annotations

import csv
import types
from contextlib import contextmanager

import mindspore as ms
import numpy as np
from mindspore import Tensor
from mscollecting import configured

from msprobe.mindspore import PrecisionDebugger

RAMP = np.linspace(0.5, 3, 64, dtype=np.float32)
MODES = ["improve_precision", "add_noise", "bit_noise", "no_change", "change_value", "to_cpu"]


class Rows:
    def __init__(self, tmp_path):
        self.path = tmp_path / "dump" / "free_benchmark.csv"

    def __iter__(self):
        if not self.path.exists():
            return iter(())
        return iter(list(csv.DictReader(self.path.open())))

    @property
    def names(self):
        return [row["api_name"] for row in self]


def section_of(mode, **section):
    return {"pert_mode": mode, "fuzz_device": "cpu" if mode == "to_cpu" else "npu", **section}


def debugger_of(tmp_path, mode, **section):
    return PrecisionDebugger(configured(tmp_path, task="free_benchmark", section=section_of(mode, **section)))


def assert_no_fault(tmp_path):
    assert not list(tmp_path.rglob("dump_error_info.log")), next(tmp_path.rglob("dump_error_info.log")).read_text()
    assert not list((tmp_path / "dump").glob("step*"))


@contextmanager
def checking(tmp_path, mode, model=None, **section):
    debugger = debugger_of(tmp_path, mode, **section)
    debugger.start(model)
    try:
        yield Rows(tmp_path)
    finally:
        debugger.stop()
        debugger.step()
    assert_no_fault(tmp_path)


def run_registered(tmp_path, function, mode, *args, **section):
    """Registers `function` as an API of its own and calls it once."""
    home = types.ModuleType("home")
    home.function = function
    debugger = debugger_of(tmp_path, mode, **section)
    debugger.register_custom_api(home, "function")
    debugger.start()
    if section.get("fuzz_stage") == "backward":
        ms.grad(lambda *given: home.function(*given).sum())(*args)
    else:
        home.function(*args)
    debugger.stop()
    debugger.step()
    assert_no_fault(tmp_path)
    return Rows(tmp_path).names


def halves(array):
    return Tensor(np.asarray(array, np.float16))


def singles(array):
    return Tensor(np.asarray(array, np.float32))
