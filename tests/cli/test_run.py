"""`msprobe run`: real scripts in real processes, each compared with what plain Python does with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gloo

TRAIN = """
import os, sys
assert "torch" not in sys.modules and "numpy" not in sys.modules
os.environ["OMP_NUM_THREADS"] = "1"
import torch
from torch import nn
import beside

assert torch.get_num_threads() == 1
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    loss = model(torch.randn(5, 4)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item().hex())
print(__name__, __file__, __spec__ and __spec__.name, sys.argv, sys.path[0], beside.__name__)
print(sorted(vars(sys.modules["__main__"])) == sorted(globals()), sorted({*globals()} - {"__annotations__"}))
if "--fail" in sys.argv:
    raise ValueError("on purpose")
sys.exit(int(sys.argv[-1]))
"""
INFERENCE = """
import torch
with torch.no_grad():
    layer = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True).eval()
    torch.manual_seed(3)
    for parameter in layer.parameters():
        parameter.normal_()
    print([value.hex() for value in layer(torch.randn(2, 3, 8)).flatten().tolist()])
"""

NEVER_IMPORTED = "[msprobe] WARNING: nothing was collected: the script never imported torch.\n"


def python(*command: str, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "2", **more}
    for name in ("RANK", "WORLD_SIZE"):
        environment.pop(name, None)
    return subprocess.run(
        [sys.executable, *command], cwd=cwd, env=environment, capture_output=True, text=True, timeout=180, check=False
    )


def run(*command: str, cwd: Path, config: Any = None, **more: str) -> subprocess.CompletedProcess[str]:
    options: tuple[str, ...] = ()
    if config is not None:
        (cwd / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
        options = ("--config", "config.json")
    return python("-m", "msprobe", "run", *options, *command, cwd=cwd, **more)


def steps(dump: Path) -> list[str]:
    return sorted(path.name for path in dump.glob("step*"))


def names(dump: Path, step: int = 0, rank: str = "rank") -> list[str]:
    return list(json.loads((dump / f"step{step}" / rank / "dump.json").read_text())["data"])


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "beside.py").write_text("")
    path = tmp_path / "scripts" / "train.py"
    path.write_text(TRAIN)
    return path


def test_a_script_runs_as_python_runs_it_and_each_optimizer_step_is_a_step(script: Path, tmp_path: Path) -> None:
    bare = python("scripts/train.py", "--lr", "-m", "3", cwd=tmp_path)
    ours = run("scripts/train.py", "--lr", "-m", "3", cwd=tmp_path, config={"dump_path": "./dump", "level": "mix"})
    assert (ours.returncode, ours.stdout) == (3, bare.stdout), ours.stderr
    assert bare.returncode == 3
    assert "collecting the modules of Sequential (49 parameters)" in ours.stderr
    assert steps(tmp_path / "dump") == ["step0", "step1", "step2"]
    for step in range(3):
        found = names(tmp_path / "dump", step)
        for name in ("Module.0.Linear.forward.0", "Module.2.Linear.backward.0", "Module.0.Linear.parameters_grad",
                     "Functional.linear.1.forward", "Functional.relu.0.backward"):  # fmt: skip
            assert name in found, (step, name)


def test_a_module_runs_as_python_runs_it_and_without_a_config_two_steps_of_mix_are_collected(script: Path) -> None:
    bare = python("-m", "train", "0", cwd=script.parent)
    ours = run("-m", "train", "0", cwd=script.parent)
    assert (ours.returncode, ours.stdout) == (0, bare.stdout), ours.stderr
    assert steps(script.parent / "dump_path") == ["step0", "step1"]
    assert {"Module.0.Linear.forward.0", "Functional.linear.1.forward"} <= set(names(script.parent / "dump_path"))
    last = ours.stderr.splitlines()[-1]
    assert "2 steps written to" in last
    assert "Next: msprobe show dump_path. With" in last
    assert "msprobe compare TARGET GOLDEN" in last


def test_options_say_what_is_collected_and_override_the_file(script: Path, tmp_path: Path) -> None:
    options = ("-o", "golden", "--step", "0,2", "--level", "mix", "--task", "tensor", "--only", "2.*")
    config = {"dump_path": "./elsewhere", "level": "L0", "step": [1], "tensor": {"scope": ["a", "b"]}}
    ours = run(*options, "scripts/train.py", "--step", "0", cwd=tmp_path, config=config)
    assert ours.returncode == 0, ours.stderr
    assert "--step" in ours.stdout  # the words after the script are the script's
    assert not (tmp_path / "elsewhere").exists()
    assert steps(tmp_path / "golden") == ["step0", "step2"]
    found = names(tmp_path / "golden")
    assert {"Module.2.Linear.forward.0", "Functional.linear.1.forward"} <= set(found)
    assert not [name for name in found if name.startswith(("Module.0.", "Module.1.", "Functional.relu"))]
    assert list((tmp_path / "golden" / "step0" / "rank" / "dump_tensor_data").glob("*.pt"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--level", "L9"), 'argument level: found "L9"'),
        (("--step", "x"), "argument step"),
        (("--task", "nothing"), 'argument task: found "nothing"'),
        (("-o", "train.txt/dump"), "dump_path: "),
        (("--watch", "-o", "golden"), "-o has no effect with --watch"),
    ],
)
def test_a_wrong_option_is_one_error_and_the_script_does_not_start(
    options: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    from msprobe.cli import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.txt").write_text("")
    (tmp_path / "train.py").write_text("print('started')")
    assert main(["run", *options, "train.py"]) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert "started" not in said.out


SPAWN = """
import torch
def work(rank):
    torch.nn.Linear(2, 2)(torch.ones(1, 2))
if __name__ == "__main__":
    torch.multiprocessing.spawn(work, nprocs=1)
"""


def test_processes_that_a_script_starts_are_named_as_the_reason(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SPAWN)
    ours = run("train.py", cwd=tmp_path)
    assert ours.returncode == 0, ours.stderr
    assert "does not follow processes that it starts: use torchrun" in ours.stderr
    assert "compiled" not in ours.stderr


def test_an_exception_of_the_script_looks_as_without_us(script: Path, tmp_path: Path) -> None:
    bare = python("scripts/train.py", "--fail", cwd=tmp_path)
    ours = run("scripts/train.py", "--fail", cwd=tmp_path, config={"dump_path": "./dump", "step": [2]})
    assert ours.returncode == bare.returncode == 1
    assert bare.stderr in ours.stderr
    assert "run.py" not in ours.stderr
    assert steps(tmp_path / "dump") == ["step2"]
    assert len(names(tmp_path / "dump", 2)) > 5


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ('{"dump_path": "./dump", "levle": "L1"}', 'did you mean "level"'),
        ('{"dump_path": ./dump}', "line 1"),
        ({"dump_path": "./dump", "level": "debug"}, "needs calls of save()"),
        ({"dump_path": "./dump", "task": "run_ut"}, "use msprobe run_ut"),
        (
            {
                "dump_path": "./dump",
                "task": "tensor",
                "level": "L2",
                "tensor": {"backward_input": "x", "list": ["relu"]},
            },
            "name exactly one backward call",
        ),
    ],
)
def test_a_wrong_configuration_is_one_error_and_the_script_is_not_started(
    config: Any, message: str, script: Path, tmp_path: Path
) -> None:
    ours = run("scripts/train.py", "0", cwd=tmp_path, config=config)
    assert (ours.returncode, ours.stdout) == (2, "")
    assert message in ours.stderr
    assert "Traceback" not in ours.stderr
    assert not (tmp_path / "dump").exists()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ((), "give a SCRIPT"),
        (("-m",), "give a SCRIPT"),
        (("nothing.py",), "cannot read nothing.py: No such file"),
        (("scripts",), "cannot read scripts: Is a directory"),
    ],
)
def test_a_wrong_command_gives_a_message(command: tuple[str, ...], message: str, script: Path, tmp_path: Path) -> None:
    ours = run(*command, cwd=tmp_path)
    assert ours.returncode == 2
    assert message in ours.stderr


def test_a_gradient_that_cannot_be_read_is_one_error_where_torch_is_imported(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text("import torch\nprint('started')")
    section = {"backward_input": "nothing.pt", "list": ["Torch.relu.0.backward"]}
    ours = run(
        "late.py", cwd=tmp_path, config={"dump_path": "./dump", "task": "tensor", "level": "L2", "tensor": section}
    )
    assert (ours.returncode, ours.stdout) == (2, "")
    assert "nothing.pt cannot be read" in ours.stderr
    assert "Traceback" not in ours.stderr


@pytest.mark.parametrize(
    ("words", "bare"),
    [
        (("--config=config.json", "--", "odd.py", "--x", "--"), ("odd.py", "--x", "--")),
        (("--config", "config.json", "odd.py", "--", "-mpack"), ("odd.py", "--", "-mpack")),
        (("-mpack.part", "a", "--config", "b"), ("-m", "pack.part", "a", "--config", "b")),
        (("--config", "config.json", "-mpack.part", "--x"), ("-m", "pack.part", "--x")),
        (("-m", "pack"), ("-m", "pack")),
        (("-m", "pack.nothing"), ("-m", "pack.nothing")),
        (("-m", "nothing.part"), ("-m", "nothing.part")),
    ],
)
def test_the_command_line_is_read_as_python_reads_it(words: tuple[str, ...], bare: Any, tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    for name in ("odd.py", "pack/__init__.py", "pack/part.py"):
        (tmp_path / name).write_text("import sys\nif __name__ == '__main__':\n    print(sys.argv)\n    sys.exit(7)")
    wanted = python(*bare, cwd=tmp_path)
    (tmp_path / "config.json").write_text('{"dump_path": "./dump"}')
    ours = run(*words, cwd=tmp_path)
    assert (ours.returncode, ours.stdout) == (wanted.returncode, wanted.stdout), ours.stderr
    assert ours.stderr.replace(NEVER_IMPORTED, "") == wanted.stderr


def test_a_syntax_error_is_shown_as_python_shows_it(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("print('no'\n")
    bare, ours = python("broken.py", cwd=tmp_path), run("broken.py", cwd=tmp_path)
    assert ours.returncode == bare.returncode == 1
    assert bare.stderr in ours.stderr


def test_a_mindspore_script_gets_a_warning_to_edit_it(script: Path, tmp_path: Path) -> None:
    ours = python("-m", "msprobe", "-f", "mindspore", "run", "scripts/train.py", "0", cwd=tmp_path)
    assert (ours.returncode, ours.stdout) == (2, "")
    assert "only for PyTorch scripts" in ours.stderr
    (tmp_path / "both.py").write_text("import mindspore\nprint(mindspore.__name__)")
    ours = run("both.py", cwd=tmp_path)
    assert (ours.returncode, ours.stdout) == (0, "mindspore\n")
    assert "the script imports mindspore" in ours.stderr
    assert "nothing was collected" not in ours.stderr  # a debugger of its own may have


def test_inference_is_one_step_and_a_fused_model_keeps_its_result(tmp_path: Path) -> None:
    (tmp_path / "infer.py").write_text(INFERENCE)
    bare = python("infer.py", cwd=tmp_path)
    ours = run("infer.py", cwd=tmp_path, config={"dump_path": "./dump", "level": "L1"})
    assert (ours.returncode, ours.stdout) == (0, bare.stdout), ours.stderr
    assert steps(tmp_path / "dump") == ["step0"]
    assert names(tmp_path / "dump") == ["Torch._fused_TransformerEncoderLayer.0.forward"]


def test_a_debugger_of_the_script_wins(script: Path, tmp_path: Path) -> None:
    own = TRAIN.replace(
        "for _ in", 'debugger = PrecisionDebugger(dump_path="./own", level="L1", task="statistics")\nfor _ in'
    )
    own = own.replace("    loss = model", "    debugger.start()\n    loss = model")
    own = own.replace("    optimizer.step()", "    optimizer.step()\n    debugger.stop()\n    debugger.step()")
    script.write_text(own.replace("import beside", "import beside\nfrom msprobe.pytorch import PrecisionDebugger"))
    ours = run("scripts/train.py", "0", cwd=tmp_path, config={"dump_path": "./dump", "level": "mix"})
    assert ours.returncode == 0, ours.stderr
    assert ours.stderr.count("creates its own PrecisionDebugger") == 1
    assert "nothing was collected" not in ours.stderr
    assert steps(tmp_path / "own") == ["step0", "step1", "step2"]
    assert not (tmp_path / "dump").exists()


def test_optimizers_models_and_workers_of_every_kind(tmp_path: Path) -> None:
    """Two optimizers in a row and one that wraps another count once; after the last wanted step nothing is left."""
    (tmp_path / "many.py").write_text(
        """
import torch
from torch import nn
from torch.nn.modules import module as hooks
from torch.optim import optimizer as optimizer_hooks
from torch.utils.data import DataLoader, TensorDataset

class Wrapping(torch.optim.Optimizer):
    def __init__(self, inner):
        super().__init__(inner.param_groups, {})
        self.inner = inner
    def step(self, closure=None):
        self.inner.step()

def collate(rows):
    return nn.Linear(4, 4)(torch.stack([row[0] for row in rows])).detach()

if __name__ == "__main__":
    encoder, head = nn.Sequential(nn.Linear(4, 4)), nn.Sequential(nn.Linear(4, 1))
    one = Wrapping(torch.optim.SGD(encoder.parameters(), lr=0.1))
    two = torch.optim.SGD(head.parameters(), lr=0.1)
    for batch in DataLoader(TensorDataset(torch.randn(8, 4)), batch_size=2, num_workers=1, collate_fn=collate):
        head(encoder(batch)).sum().backward()
        one.step()
        two.step()
    assert nn.Module.__call__ is nn.Module._wrapped_call_impl
    print(len(hooks._global_forward_pre_hooks), len(hooks._global_forward_hooks),
          len(optimizer_hooks._global_optimizer_pre_hooks), len(optimizer_hooks._global_optimizer_post_hooks))
"""
    )
    ours = run("many.py", cwd=tmp_path, config={"dump_path": "./dump", "level": "L0", "step": ["1-2"]})
    assert (ours.returncode, ours.stdout) == (0, "0 0 0 0\n"), ours.stderr
    assert steps(tmp_path / "dump") == ["step1", "step2"]
    assert names(tmp_path / "dump", 1)[0] == "Module.0.Linear.forward.0"
    assert "its modules are not collected" in ours.stderr


def test_a_step_that_raised_and_was_caught_is_not_waited_for(tmp_path: Path) -> None:
    """The step itself, its closure or a hook of the script may raise. A new optimizer continues."""
    (tmp_path / "retry.py").write_text(
        """
import torch
from torch import nn

class Failing(torch.optim.SGD):
    fails = 1
    def step(self, closure=None):
        if self.fails:
            Failing.fails -= 1
            raise RuntimeError("out of memory")
        return super().step(closure)

class Wrapping(torch.optim.SGD):
    def step(self, closure=None):
        try:
            Failing.fails = 1
            Failing(model.parameters(), lr=0.1).step()
        except RuntimeError:
            inner = torch.optim.SGD(model.parameters(), lr=0.1)
            inner.step()
            model(x)
            inner.step()

def closure():
    model(x)
    raise RuntimeError("out of memory")

def guard(optimizer, args, kwargs):
    raise RuntimeError("not finite")

model, x = nn.Sequential(nn.Linear(4, 1)), torch.ones(2, 4)
hooked = torch.optim.SGD(model.parameters(), lr=0.1)
hooked.register_step_pre_hook(guard)
for failing in (Failing(model.parameters(), lr=0.1).step,
                lambda: torch.optim.SGD(model.parameters(), lr=0.1).step(closure), hooked.step):
    model(x).sum().backward()
    try:
        failing()
    except RuntimeError:
        pass
    model(x).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
model(x).sum().backward()
Wrapping(model.parameters(), lr=0.1).step()
"""
    )
    ours = run("retry.py", cwd=tmp_path, config={"dump_path": "./dump", "level": "L0"})
    assert ours.returncode == 0, ours.stderr
    forwards = [sum(".forward." in name for name in names(tmp_path / "dump", step)) for step in range(4)]
    assert forwards == [2, 3, 2, 2]
    assert steps(tmp_path / "dump") == ["step0", "step1", "step2", "step3"]


def test_a_patch_of_the_script_over_module_call_stays(tmp_path: Path) -> None:
    (tmp_path / "patching.py").write_text(
        """
import torch
from torch import nn
model, x, calls = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)), torch.randn(8, 4), []
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
before = nn.Module.__call__
def patch(self, *args, **kwargs):
    calls.append(self)
    return before(self, *args, **kwargs)
def train():
    for _ in range(2):
        model(x).sum().backward()
        optimizer.step()
nn.Module.__call__ = patch
train()
print(len(calls), nn.Module.__call__ is patch)
nn.Module.__call__ = before
train()
"""
    )
    ours = run("patching.py", cwd=tmp_path, config={"dump_path": "./dump", "level": "mix"})
    assert (ours.returncode, ours.stdout) == (0, "6 True\n"), ours.stderr
    assert steps(tmp_path / "dump") == [f"step{step}" for step in range(4)]
    for step in range(4):
        assert "Module.1.Linear.backward.0" in names(tmp_path / "dump", step)


def test_a_model_whose_parameters_have_no_shape_yet(tmp_path: Path) -> None:
    (tmp_path / "lazy.py").write_text(
        """
import torch
from torch import nn
model, optimizer = nn.Sequential(nn.Linear(4, 4), nn.LazyLinear(1)), None
for _ in range(2):
    loss = model(torch.ones(2, 4)).sum()
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    loss.backward()
    optimizer.step()
"""
    )
    ours = run("lazy.py", cwd=tmp_path, config={"dump_path": "./dump", "level": "mix"})
    assert ours.returncode == 0, ours.stderr
    assert "Sequential (20 parameters, and 2 without a shape yet)" in ours.stderr
    assert "Traceback" not in ours.stderr
    assert "Module.1.Linear.backward.0" in names(tmp_path / "dump", 1)


def test_what_a_thread_does_after_the_script_is_collected_and_nothing_else_is_said(tmp_path: Path) -> None:
    (tmp_path / "threaded.py").write_text(
        """
import threading, time, torch
from torch import nn
def train():
    time.sleep(0.2)
    model = nn.Linear(4, 1)
    model(torch.ones(2, 4)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
threading.Thread(target=train).start()
"""
    )
    ours = run("threaded.py", cwd=tmp_path, config={"dump_path": "./dump", "level": "mix"})
    assert ours.returncode == 0, ours.stderr
    assert "nothing was collected" not in ours.stderr
    assert steps(tmp_path / "dump") == ["step0"]


def test_a_script_without_modules_is_collected_after_its_first_step_and_this_is_logged(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(
        """
import torch
weight = torch.ones(3, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(2):
    torch.relu(weight).sum().backward()
    optimizer.step()
"""
    )
    ours = run("plain.py", cwd=tmp_path, config={"dump_path": "./dump", "step": [0, 1]})
    assert ours.returncode == 0
    assert "step 0 has no records" in ours.stderr
    assert steps(tmp_path / "dump") == ["step1"]
    assert "Torch.relu.0.backward" in names(tmp_path / "dump", 1)


@pytest.mark.parametrize(("compiled", "level"), [("function", "L1"), ("model", "mix")])
def test_compiled_code_keeps_its_result(compiled: str, level: str, tmp_path: Path) -> None:
    (tmp_path / "compiled.py").write_text(
        """
import sys, torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
if sys.argv[1] == "function":
    forward = torch.compile(lambda batch: model(batch), backend="eager")
else:
    forward = torch.compile(model, backend="eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    loss = forward(torch.randn(5, 4)).square().mean()
    loss.backward()
    optimizer.step()
    print(loss.item().hex())
"""
    )
    bare = python("compiled.py", compiled, cwd=tmp_path)
    ours = run("compiled.py", compiled, cwd=tmp_path, config={"dump_path": "./dump", "level": level})
    assert (ours.returncode, ours.stdout) == (0, bare.stdout), ours.stderr
    opaque = "Compiled.<lambda>.0.forward" if compiled == "function" else "Module.Sequential.forward.0"
    assert opaque in names(tmp_path / "dump", 1)
    assert ("step 0 has no records" in ours.stderr) == (compiled == "function")


def test_a_script_that_calls_nothing_gets_a_warning(tmp_path: Path) -> None:
    (tmp_path / "idle.py").write_text("import torch\nprint(torch.relu(torch.ones(1)).item())")
    ours = run("idle.py", cwd=tmp_path)
    assert (ours.returncode, ours.stdout) == (0, "1.0\n")
    assert "called no torch.nn.Module with parameters" in ours.stderr
    assert not (tmp_path / "dump_path").exists()


def test_torchrun_runs_each_rank_into_its_directory(tmp_path: Path) -> None:
    (tmp_path / "ddp.py").write_text(
        """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
dist.destroy_process_group()
"""
    )
    (tmp_path / "config.json").write_text(json.dumps({"dump_path": "./dump", "level": "mix"}))
    command = ("-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", "29631", "-m", "msprobe")
    options = ("run", "--config", "config.json", "ddp.py")
    ours = gloo.repeated(lambda: python(*command, *options, cwd=tmp_path, OMP_NUM_THREADS="1"))
    assert ours.returncode == 0, ours.stderr
    assert steps(tmp_path / "dump") == ["step0", "step1"]
    for step in range(2):
        both = [names(tmp_path / "dump", step, f"rank{rank}") for rank in range(2)]
        assert sorted(both[0]) == sorted(both[1])
        assert "Module.module.0.Linear.backward.0" in both[0]


def test_an_optimizer_inside_of_the_backward_pass_ends_the_step_after_it(tmp_path: Path) -> None:
    """Torch's own pattern to save memory: each parameter is stepped as soon as its gradient is there."""
    train = tmp_path / "train.py"
    train.write_text(
        """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 1))
optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}
def hook(p):
    optimizers[p].step()
    optimizers[p].zero_grad()
for p in model.parameters():
    p.register_post_accumulate_grad_hook(hook)
for _ in range(3):
    model(torch.ones(5, 4)).square().mean().backward()
print("modes", torch._C._len_torch_function_stack())
"""
    )
    config = {"task": "statistics", "level": "mix", "dump_path": str(tmp_path / "dump"), "step": [0, 1]}
    done = run("train.py", cwd=tmp_path, config=config)
    assert done.returncode == 0, done.stderr
    assert "modes 0" in done.stdout
    assert steps(tmp_path / "dump") == ["step0", "step1"]
    for step in (0, 1):
        found = names(tmp_path / "dump", step)
        assert {"Module.0.Linear.parameters_grad", "Module.2.Linear.parameters_grad"} <= set(found)
        assert "Module.0.Linear.backward.0" in found
