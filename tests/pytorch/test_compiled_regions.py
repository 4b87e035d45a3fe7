"""torch.compile while a step is collected: closed regions are untouched, open and eager ones have the eager names."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections import Counter
from functools import cache

import pytest
import torch
import torch._dynamo.compiled_autograd
import torch.nn.functional as F
from collecting import collecting
from torch import nn
from torch._dynamo.utils import counters
from torch.nn.modules import module as module_hooks

import framework_versions
from msprobe.pytorch.compiled.graph_breaks import graph_breaks

LEVELS = ["L0", "L1", "L2", "mix"]
TASKS = [
    *((level, task) for task in ("statistics", "tensor", "structure") for level in LEVELS),
    *((level, "overflow_check") for level in ("L0", "L1", "mix")),
    ("L1", "free_benchmark"),
]
OPENED = ["whole", "in place", "per block", "function", "dynamic", "graph break"]
AUTOGRAD = ["compiled autograd", "training step"]
WAYS = [*OPENED, *AUTOGRAD, "compiled optimizer"]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, breaks=False, blocks=2):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.head, self.breaks = nn.Linear(8, 3), breaks

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        if self.breaks:
            torch._dynamo.graph_break()
        return torch.softmax(self.head(x), -1)


def compiling(backend):
    """The arguments of torch.compile. `inductor max-autotune` is Inductor with a mode."""
    name, _, mode = backend.partition(" ")
    return {"mode": mode} if mode else {"backend": name}


def build(way, backend="eager"):
    """A model, and what to call for it. `way` None: not compiled."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Net(breaks=way == "graph break", blocks=0 if way in AUTOGRAD else 2)  # they compile for long
    if way in ("whole", "dynamic", "graph break", "compiled autograd", "compiled optimizer"):
        compiled = torch.compile(model, dynamic=True if way == "dynamic" else None, **compiling(backend))
        return compiled, compiled
    if way == "in place":
        model.compile(**compiling(backend))
    elif way == "per block":
        for block in model.blocks:
            block.compile(**compiling(backend))
    elif way == "function":
        return model, torch.compile(lambda x: model(x), **compiling(backend))
    elif way == "training step":

        def step(x):
            loss = model(x).square().sum()
            loss.backward()
            return loss.detach()

        with torch._dynamo.config.patch(compiled_autograd=True):
            return model, torch.compile(step, **compiling(backend))
    return model, model


def train(model, call, steps=2, around=lambda step: contextlib.nullcontext(), way=None, backend="eager"):
    """Losses, gradients and weights of some steps; `around` is entered for each."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step_optimizer = optimizer.step
    if way == "compiled optimizer":
        step_optimizer = torch.compile(step_optimizer, **compiling(backend))
    step_backward = contextlib.nullcontext
    if way == "compiled autograd":
        compile_graph = functools.partial(torch.compile, **compiling(backend))
        step_backward = functools.partial(torch._dynamo.compiled_autograd._enable, compile_graph)
    seen = []
    batches = torch.Generator().manual_seed(2)
    for step in range(steps):
        x = torch.randn(4 + step, 8, generator=batches)
        with around(step):
            optimizer.zero_grad()
            if way == "training step":
                loss = call(x)
            else:
                loss = call(x).square().sum()
                with step_backward():
                    loss.backward()
            step_optimizer()
        seen += [loss.detach(), *(p.grad.clone() for p in model.parameters())]
    return [*seen, *(p.detach().clone() for p in model.parameters())]


def count():
    """What dynamo has compiled: graphs, graph breaks, captures of compiled autograd."""
    breaks = Counter({"breaks": sum(counters["graph_break"].values())})
    return Counter(counters["stats"]) + Counter(counters["compiled_autograd"]) + breaks


@cache
def bare_run(way, backend):
    """What a training gives without msprobe, and what dynamo counts."""
    counters.clear()
    return train(*build(way, backend), way=way, backend=backend), count()


def compare_runs(tmp_path, way, level, task, backend="eager"):
    """Trains with every step collected, and compares with the run without msprobe; returns the dumps."""
    expected, graphs = bare_run(way, backend)
    counters.clear()
    dumps = []

    @contextlib.contextmanager
    def collect(step):
        with collecting(tmp_path / str(step), model, level=level, task=task) as dump:
            yield
        dumps.append(dump)

    model, call = build(way, backend)
    found = train(model, call, around=collect, way=way, backend=backend)
    assert all(torch.equal(a, b) for a, b in zip(found, expected))
    assert count() == graphs  # nothing was compiled again, no graph break was added
    assert ("captures" in graphs) == (way in AUTOGRAD)
    return dumps


@pytest.mark.parametrize(("level", "task"), TASKS)
def test_a_closed_region_is_untouched_at_every_level_and_task(tmp_path, level, task):
    compare_runs(tmp_path, "whole", level, task)


@pytest.mark.slow
@pytest.mark.parametrize(("level", "task"), TASKS)
@pytest.mark.parametrize("way", WAYS)
def test_a_closed_region_of_inductor_is_untouched_at_every_level_and_task(tmp_path, way, level, task):
    compare_runs(tmp_path, way, level, task, "inductor")


@pytest.mark.slow
@pytest.mark.parametrize(("level", "task"), TASKS)
@pytest.mark.parametrize("backend", ["aot_eager", "inductor reduce-overhead", "inductor max-autotune"])
def test_a_closed_region_of_a_mode_or_backend_is_untouched_at_every_level_and_task(tmp_path, level, task, backend):
    compare_runs(tmp_path, "whole", level, task, backend)


def test_a_closed_region_of_inductor_is_untouched(tmp_path):
    dumps = compare_runs(tmp_path, "whole", "mix", "statistics", "inductor")
    assert "Module.Net.forward.0" in dumps[0].names


def test_a_closed_region_is_untouched_where_the_backward_is_compiled(tmp_path):
    compare_runs(tmp_path, "whole", "mix", "statistics", "aot_eager")


@pytest.mark.parametrize("way", WAYS)
def test_a_closed_region_is_untouched_however_it_is_compiled(tmp_path, way):
    dumps = compare_runs(tmp_path, way, "mix", "statistics")
    assert not any("gelu" in name for name in dumps[0].names)


@pytest.mark.parametrize(
    ("way", "level", "name"),
    [
        ("whole", "mix", "Module.Net.forward.0"),
        ("whole", "L0", "Module.Net.forward.0"),
        ("whole", "L1", "Compiled.Net.0.forward"),
        ("in place", "mix", "Module.Net.forward.0"),
        ("per block", "mix", "Module.blocks.1.Block.forward.0"),
        ("per block", "L1", "Compiled.Block.1.forward"),
        ("function", "L1", "Compiled.<lambda>.0.forward"),
        ("compiled optimizer", "L1", "Compiled.step.0.forward"),
    ],
)
def test_a_region_is_named_by_its_module_or_function_and_the_log_says_once_what_is_not_seen(
    tmp_path, way, level, name, logged
):
    dumps = compare_runs(tmp_path, way, level, "statistics")
    assert name in dumps[0].names
    assert len(logged("does not see the calls inside it")) == 1 + (way == "compiled optimizer")


@pytest.mark.parametrize("way", ["whole", "function", "training step"])
@pytest.mark.filterwarnings("error:Accessing the data pointer of FakeTensor")
def test_start_and_stop_of_a_warm_region_compile_nothing(tmp_path, way):
    model, call = build(way)
    for _ in range(2):  # torch itself compiles again when an earlier shape returns
        train(model, call, steps=2, way=way)
    graphs = count()
    train(model, call, steps=2, way=way, around=lambda step: collecting(tmp_path / str(step), model, level="mix"))
    train(model, call, steps=2, way=way)
    assert count() == graphs


@pytest.mark.parametrize(("way", "level"), [("compiled autograd", "L1"), ("training step", "L0")])
@pytest.mark.filterwarnings("error:Accessing the data pointer of FakeTensor")
def test_a_compiled_backward_pass_has_no_hooks_of_ours_and_the_log_says_so(tmp_path, way, level, logged):
    dumps = compare_runs(tmp_path, way, level, "statistics")
    names = dumps[0].names
    assert not any(name.endswith("backward") for name in names)
    assert level == "L1" or "Module.head.Linear.parameters_grad" in names
    assert len(logged("the backward pass is compiled (compiled autograd)")) == 1


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_the_graph_breaks_of_a_region_are_in_its_record_and_logged_once(tmp_path, level, logged):
    model, call = build("graph break")
    call(torch.randn(2, 8))
    with collecting(tmp_path, model, level=level) as dump:
        call(torch.randn(2, 8))
        call(torch.randn(2, 8))
    name = "Compiled.Net.0.forward" if level == "L1" else "Module.Net.forward.0"
    breaks = dump[name]["graph_breaks"]
    assert len(breaks) >= 1
    assert all("test_compiled_regions.py" in text for text in breaks)
    assert len(logged(" graph break")) == 1
    assert len(logged("does not see the calls inside it")) == 1


def test_the_graph_breaks_are_looked_for_again_after_a_reset():
    def other(x):
        torch._dynamo.graph_break()
        return x + 1

    torch._dynamo.reset()
    torch.compile(other, backend="eager")(torch.ones(2))
    assert graph_breaks(torch.compile(Net(breaks=True), backend="eager")) == []
    _, call = build("graph break")
    call(torch.randn(2, 8))
    assert len(graph_breaks(call)) == 1


# Open and eager regions.


def dump_of(path, way, level, compile="closed", step=1):
    """The second step of a training: the first one compiles."""
    model, call = build(way)
    dumps = []

    @contextlib.contextmanager
    def collect(number):
        if number != step:
            yield
            return
        with collecting(path, model, level=level, compile=compile) as dump:
            yield
        dumps.append(dump)

    values = train(model, call, steps=2, around=collect)
    return dumps[0], values


@pytest.fixture(scope="module")
def eager_dump(tmp_path_factory):
    return dump_of(tmp_path_factory.mktemp("eager"), None, "mix")


@pytest.mark.parametrize("way", OPENED)
def test_an_eager_region_gives_the_dump_of_uncompiled_code(tmp_path, way, eager_dump):
    dump, values = dump_of(tmp_path, way, "mix", "eager")
    expected, expected_values = eager_dump
    assert dump.data == expected.data
    assert dump.construct == expected.construct
    assert all(torch.equal(a, b) for a, b in zip(values, expected_values))


def without_numbers(value):
    """A record without the numbers of values and memory: compiled code keeps other tensors."""
    if isinstance(value, dict):
        return {key: without_numbers(one) for key, one in value.items() if key not in ("value_id", "memory")}
    return [without_numbers(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize("way", OPENED)
def test_an_open_region_has_the_records_of_uncompiled_code(tmp_path, way, eager_dump, logged):
    dump, _ = dump_of(tmp_path, way, "mix", "open")
    expected = eager_dump[0]
    data, eager = dump.data, expected.data
    apis = [name for name in eager if not name.startswith("Module.") or name.endswith("parameters_grad")]
    assert [name for name in data if name not in eager] == []
    assert [name for name in apis if name not in data] == []
    assert all(without_numbers(data[name]) == without_numbers(eager[name]) for name in apis)
    assert all(dump.construct[name] == expected.construct[name] for name in apis)
    assert logged("The numbers are those of the graph")


def test_a_record_of_an_open_region_names_its_source_line(tmp_path):
    dump, _ = dump_of(tmp_path, "whole", "L1", "open")
    stack = next(stack for names, stack in dump.stacks.values() if "Functional.gelu.1.forward" in names)
    assert "self.down(F.gelu(self.up(self.norm(x))))" in stack[0]
    assert any("in train" in line for line in stack)


def test_after_an_open_step_the_region_runs_compiled_again(tmp_path):
    model, call = build("whole")
    x = torch.randn(4, 8)
    expected = call(x)
    with collecting(tmp_path, model, level="L1", compile="open") as dump:
        call(x)
    graphs = count()
    assert torch.equal(call(x), expected)
    assert count() == graphs
    assert "Functional.gelu.1.forward" in dump.names


def test_a_function_that_is_not_compiled_inside_an_open_region_is_seen(tmp_path):
    torch._dynamo.reset()

    @torch.compiler.disable
    def outside(x):
        return torch.tanh(x)

    compiled = torch.compile(lambda x: outside(x * 2) + 1, backend="eager")
    compiled(torch.randn(3))
    with collecting(tmp_path, level="L1", compile="open") as dump:
        compiled(torch.randn(3))
    assert dump.names == ["Tensor.__mul__.0.forward", "Torch.tanh.0.forward", "Tensor.__add__.0.forward"]


def test_open_regions_stay_closed_at_L0(tmp_path, logged):
    dump, _ = dump_of(tmp_path, "whole", "L0", "open")
    assert "Module.Net.forward.0" in dump.names
    assert len(logged("at level L0 compiled regions stay closed")) == 1
    assert len(logged('With "compile": "eager" it does')) == 1
    assert not logged('With "compile": "open" it does')


@pytest.mark.parametrize("in_place", [True, False])
def test_an_open_region_of_which_torch_compiles_nothing_is_named(tmp_path, logged, in_place):
    """Torch before 2.14 does not compile its own containers in place."""
    unseen = in_place and framework_versions.release("torch") < (2, 14)
    torch._dynamo.reset()
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()))
    if in_place:
        model[1].compile(backend="eager")
    else:
        model[1] = torch.compile(model[1], backend="eager")
    with collecting(tmp_path, model, level="mix", compile="open") as dump:
        model(torch.randn(2, 4))
    assert ("Functional.gelu.0.forward" in dump.names) is not unseen
    assert len(logged("Sequential ran without a graph")) == unseen


@pytest.mark.parametrize("way", ["whole", "in place"])
def test_a_stance_that_forbids_compiling_is_no_fault(tmp_path, way, logged):
    model, call = build(way)
    x = torch.randn(4, 8)
    expected = call(x)
    with torch.compiler.set_stance("fail_on_recompile"), collecting(tmp_path, model, level="mix") as dump:
        assert torch.equal(call(x), expected)
    assert dump.names
    assert not logged("AttributeError")


def test_an_exception_inside_an_open_region_is_that_of_the_script(tmp_path):
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: torch.linalg.cholesky(x * 2), backend="eager")
    messages = []
    for directory in (None, tmp_path):
        opened = collecting(directory, level="L1", compile="open") if directory else contextlib.nullcontext()
        with opened, pytest.raises(torch.linalg.LinAlgError) as error:
            compiled(-torch.eye(2))
        messages.append(error.value.args)
    assert messages[0] == messages[1]


@pytest.mark.parametrize("level", ["L0", "mix"])
@pytest.mark.parametrize("compile", ["closed", "open", "eager"])
def test_a_script_for_which_warnings_are_errors_goes_on(tmp_path, level, compile):
    asked = module_hooks._has_any_global_hook
    model, call = build("whole")
    x = torch.randn(4, 8)
    expected = call(x)
    with warnings.catch_warnings(), collecting(tmp_path, model, level=level, compile=compile):
        warnings.filterwarnings("error", message="Using `torch.compile")
        assert torch.equal(call(x), expected)
        handle = module_hooks.register_module_forward_hook(lambda *call: None)
        with pytest.raises(UserWarning, match="global hooks"):
            call(x)  # the script's own hook is a reason
        handle.remove()
    assert module_hooks._has_any_global_hook is asked
