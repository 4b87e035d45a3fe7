"""check_compiled: planted faults are named at their node, clean models give no finding."""

from __future__ import annotations

import contextlib
import functools
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch._dynamo.compiled_autograd
import torch.nn.functional as F
from torch import nn
from torch._dynamo.utils import counters

from msprobe.pytorch import check_compiled
from msprobe.pytorch.compiled.check.answer import OF_SCRIPT
from msprobe.pytorch.compiled.check.judge import judge
from msprobe.pytorch.compiled.check.session import CheckSession, _NotingBackend

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "compiled"


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        h = F.gelu(self.up(x))
        return torch.tanh(self.down(h)) + x


class WrongTanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.tanh(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        return grad * (1 - ctx.saved_tensors[0])


def wrong_tanh(x):
    return WrongTanh.apply(x)


def replacing(target, other):
    """A backend of the user's own that puts another function in the place of one."""

    def replaces(graph, example_inputs):
        for node in graph.graph.nodes:
            if node.target is target:
                node.target = other
        graph.recompile()
        return graph.forward

    return replaces


def fast_gelu(x):
    return x * torch.sigmoid(1.702 * x)


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(3)


def test_a_wrong_forward_is_named_at_its_node_and_line(tmp_path):
    backend = replacing(torch._C._nn.gelu, fast_gelu)
    answer = check_compiled(Mlp(), torch.randn(4, 8), backend=backend, directory=tmp_path)
    assert not answer.ok
    (finding,) = answer.findings
    assert finding.code == "h = torch._C._nn.gelu(linear)"
    assert finding.source.endswith("in forward: h = F.gelu(self.up(x))")
    assert not finding.backward
    assert finding.nodes == 1
    assert answer.regions[0].runs <= 12
    assert "1 wrong" in str(answer)
    assert finding.reproducer in str(answer)


def test_a_wrong_backward_is_named_at_its_node_and_line(tmp_path):
    backend = replacing(torch.tanh, wrong_tanh)
    answer = check_compiled(Mlp(), torch.randn(4, 8), backend=backend, directory=tmp_path)
    (finding,) = answer.findings
    assert "torch.tanh(linear_1)" in finding.code
    assert finding.backward
    assert "torch.tanh(self.down(h))" in finding.source


def test_a_fault_of_two_nodes_together_is_reproduced_with_both(tmp_path):
    def fuses(graph, example_inputs):
        for node in graph.graph.nodes:
            if node.target is torch.add and node.args[0].target is torch.mul:
                with graph.graph.inserting_before(node):
                    node.args = (node.args[0], graph.graph.call_function(torch.mul, (node.args[1], 0.999)))
        graph.recompile()
        return graph.forward

    def model(x, y):
        product = torch.mul(x, y)
        return torch.relu(torch.add(product, x))

    answer = check_compiled(model, torch.randn(9), torch.randn(9), backend=fuses, directory=tmp_path)
    (finding,) = answer.findings
    assert "torch.add" in finding.code
    assert finding.nodes == 2
    assert answer.regions[0].runs <= 12


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_clean_model_gives_no_finding(tmp_path, backend, dtype):
    answer = check_compiled(Mlp().to(dtype), torch.randn(4, 8, dtype=dtype), backend=backend, directory=tmp_path)
    assert answer.ok
    assert "none is wrong" in str(answer)
    assert "bit-identical to eager" in str(answer)
    assert list(tmp_path.iterdir()) == []


def test_a_compiled_result_that_is_nearer_to_fp64_is_not_a_bug(tmp_path):
    def exact(x, dim):
        return torch.softmax(x.double(), dim).to(x.dtype)

    backend = replacing(torch.softmax, exact)

    def model(x):
        return torch.softmax(x, -1)

    x = torch.randn(40, 300)
    answer = check_compiled(model, x, backend=backend, directory=tmp_path)
    assert answer.ok
    assert "not a bug" in str(answer)


def test_dropout_and_running_statistics_are_no_difference(tmp_path):
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
    x = torch.randn(6, 8)
    state = torch.get_rng_state()
    expected = torch.compile(nn.Sequential(*model[2:]), backend="aot_eager")(x)
    torch.set_rng_state(state)
    answer = check_compiled(nn.Sequential(*model[2:]), x, backend="aot_eager", directory=tmp_path)
    assert answer.ok
    assert check_compiled(model, x, backend="aot_eager", directory=tmp_path).ok
    assert int(model[1].num_batches_tracked) == 1  # the checked runs write copies
    assert expected.shape == (6, 2)


def test_the_script_gets_its_own_result_and_random_numbers(tmp_path):
    def run(session):
        torch._dynamo.reset()
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
        compiled = torch.compile(model, backend="aot_eager")
        with session:
            out = compiled(torch.randn(3, 8))
        out.sum().backward()
        return out.detach(), model[0].weight.grad, torch.rand(3)

    expected = run(contextlib.nullcontext())
    session = CheckSession(tmp_path)
    found = run(session)
    assert all(torch.equal(a, b) for a, b in zip(found, expected))
    assert len(session.answer.regions) == 1


def test_each_compiled_block_and_each_shape_is_checked(tmp_path):
    model = nn.Sequential(Mlp(), Mlp())
    for block in model:
        block.compile(backend="aot_eager", dynamic=True)
    answer = check_compiled(model, torch.randn(4, 8), more_inputs=[(torch.randn(7, 8),)], directory=tmp_path)
    assert answer.ok
    assert len(answer.regions) >= 2
    assert any("with shapes [7, 8]" in region.name for region in answer.regions)


def test_a_backend_for_a_compiled_model_is_refused():
    with pytest.raises(ValueError, match="already compiled"):
        check_compiled(torch.compile(Mlp(), backend="eager"), torch.randn(2, 8), backend="aot_eager")


def test_a_reproducer_runs_alone_and_shows_the_fault(tmp_path, monkeypatch):
    module = tmp_path / "my_backend.py"
    module.write_text(
        "import torch\n\n\n"
        "def rounds(graph, example_inputs):\n"
        "    def call(*inputs):\n"
        "        return tuple(value.half().to(value.dtype) for value in graph(*inputs))\n\n"
        "    return call\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    from my_backend import rounds  # type: ignore[import-not-found]

    answer = check_compiled(torch.tanh, torch.randn(100), backend=rounds, directory=tmp_path / "out")
    (finding,) = answer.findings
    done = subprocess.run(
        [sys.executable, finding.reproducer], cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, capture_output=True
    )
    assert done.returncode == 1, done.stderr
    assert b"The compiled result is wrong." in done.stdout


def test_rounding_is_no_fault_and_more_than_rounding_is():
    exact = torch.randn(1000, dtype=torch.float64)
    eager = exact.float()
    assert not judge("x", eager * (1 + 2**-23), eager, exact).wrong
    assert judge("x", eager * (1 + 1e-5), eager, exact).wrong
    assert not judge("x", exact.bfloat16() * 1, exact.bfloat16(), exact).wrong
    assert judge("x", exact.bfloat16() * 1.1, exact.bfloat16(), exact).wrong
    spoiled = eager.clone()
    spoiled[7] = float("nan")
    assert judge("x", spoiled, eager, exact).wrong
    assert not judge("x", eager, spoiled, exact).wrong
    spoiled[7] = eager[7] + 0.01
    assert judge("x", spoiled, eager, exact).wrong


def test_an_inductor_lowering_that_is_wrong_is_named_with_its_kernel(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARK))
    from faults import FAULTS  # type: ignore[import-not-found]

    fault = next(fault for fault in FAULTS if fault.name == "fast-math exp")
    with fault.plant():
        answer = check_compiled(fault.model(), *fault.inputs(), directory=tmp_path)
    (finding,) = answer.findings
    assert "torch.exp" in finding.code
    assert "the lowering of aten.exp.default is wrong" in finding.why
    assert "cpp_fused" in finding.kernels[0]
    assert Path(finding.kernels[0].rpartition(" in ")[2]).exists()


def test_a_wrong_view_is_named_and_not_the_call_that_reads_it(tmp_path):
    def turns(graph, example_inputs):
        """Torch makes views of inputs that are outputs itself, like AOTAutograd: this compiler is not asked."""
        results = next(node for node in graph.graph.nodes if node.op == "output").all_input_nodes
        for node in graph.graph.nodes:
            if node.target == "transpose" and node not in results:
                node.args = (node.args[0], node.args[1], node.args[1])
        graph.recompile()
        return graph.forward

    def model(x, weight):
        turned = x.transpose(0, 1)
        return torch.matmul(turned, weight)

    answer = check_compiled(model, torch.randn(6, 6), torch.randn(6, 6), backend=turns, directory=tmp_path)
    (finding,) = answer.findings
    assert "x.transpose(0, 1)" in finding.source
    assert finding.nodes == 1


def test_a_graph_that_cannot_be_copied_runs_without_the_check(tmp_path):
    graph = torch.fx.symbolic_trace(nn.Linear(2, 2))
    graph.scale = torch.ones(2, requires_grad=True) * 2  # not a leaf: torch does not copy it
    session = CheckSession(tmp_path)
    compiled = _NotingBackend(session, "Linear", lambda graph, inputs: graph.forward)(graph, [])
    x = torch.ones(1, 2)
    assert torch.equal(compiled(x), graph(x))
    assert not session.answer.checked
    assert "RuntimeError" in session.answer.regions[0].error
    assert str(session.answer).startswith("0 compiled graphs checked: 1 could not be checked")


class ClampedTanh(torch.autograd.Function):
    """Wrong for large gradients only."""

    @staticmethod
    def forward(ctx, x):
        y = torch.tanh(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        return grad.clamp(-100, 100) * (1 - ctx.saved_tensors[0].square())


def clamped_tanh(x):
    return ClampedTanh.apply(x)


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_the_backward_is_checked_with_the_gradients_of_the_script(tmp_path, scale):
    compiled = torch.compile(Mlp(), backend=replacing(torch.tanh, clamped_tanh))
    with CheckSession(tmp_path) as session:
        (compiled(torch.randn(4, 8)).square().mean() * scale).backward()
    (region,) = session.answer.regions
    assert "backward with the gradients of the script" in str(session.answer)
    assert session.answer.ok == (scale == 1.0)
    if not session.answer.ok:
        assert "torch.tanh(linear_1)" in region.finding.code
        assert region.finding.backward
        assert region.finding.nodes == 1
        assert region.runs <= 12
        assert "results(compiled, inputs(), gradients())" in Path(region.finding.reproducer).read_text()


def test_without_a_backward_of_the_script_the_gradients_are_random_and_the_answer_says_so(tmp_path):
    answer = check_compiled(Mlp(), torch.randn(4, 8), backend="eager", directory=tmp_path)
    assert "backward with random gradients" in str(answer)
    with torch.no_grad():
        answer = check_compiled(Mlp(), torch.randn(4, 8), backend="eager", directory=tmp_path)
    assert "backward" not in str(answer)


def test_an_output_that_the_script_does_not_differentiate_is_left_out(tmp_path):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            return self.first(x), torch.tanh(self.second(x))

    compiled = torch.compile(Two(), backend=replacing(torch.tanh, wrong_tanh))
    with CheckSession(tmp_path) as session:
        compiled(torch.randn(4, 8))[0].sum().backward()
    assert session.answer.ok  # the wrong gradient is never computed
    assert "gradient of first.weight" in session.answer.regions[0].verdicts
    assert "gradient of second.weight" not in session.answer.regions[0].verdicts


def test_a_check_that_waited_runs_in_the_surroundings_of_its_call(tmp_path):
    compiled = torch.compile(Mlp(), backend="aot_eager")
    with CheckSession(tmp_path) as session:
        with torch.autocast("cpu", torch.bfloat16):
            loss = compiled(torch.randn(4, 8)).float().square().mean()
        loss.backward()
    assert "bit-identical to eager" in str(session.answer)


@pytest.mark.parametrize("compiled_autograd", [False, True])
def test_a_checked_training_gives_the_same_results(tmp_path, compiled_autograd):
    def train(session):
        torch._dynamo.reset()
        torch.manual_seed(1)
        model = nn.Sequential(Mlp(), Mlp())
        for block in model:
            block.compile(backend="aot_eager")  # one graph for both: its second call comes before its backward
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses, captures = [], counters["compiled_autograd"]["captures"]
        with session, enabled() if compiled_autograd else contextlib.nullcontext():
            for _ in range(3):
                optimizer.zero_grad()
                loss = model(torch.randn(4, 8)).square().mean()
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
        assert (counters["compiled_autograd"]["captures"] > captures) == compiled_autograd
        return [*losses, *(parameter.detach() for parameter in model.parameters())]

    enabled = functools.partial(torch._dynamo.compiled_autograd._enable, torch.compile(backend="aot_eager"))
    expected = train(contextlib.nullcontext())
    session = CheckSession(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(train(session), expected))
    assert session.answer.ok
    blocks = [region for region in session.answer.regions if region.name.startswith("Mlp")]
    assert blocks
    assert all(region.gradients == OF_SCRIPT for region in blocks)


def test_a_stance_that_forbids_compiling_stays_as_it_is(tmp_path):
    torch._dynamo.reset()
    model, x = torch.compile(Mlp(), backend="eager"), torch.ones(2, 8)
    wanted = model(x)
    with torch.compiler.set_stance("fail_on_recompile"), CheckSession(tmp_path) as session:
        assert torch.equal(model(x), wanted)
    assert not session.answer.regions
