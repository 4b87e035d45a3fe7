"""Tensors without plain memory: what can be known is written, and the call's result is its own."""

from __future__ import annotations

import os

import pytest
import torch
import torch.nn.functional as F
from collecting import assert_same, collecting
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call, grad, vmap


def test_sparse_tensors_are_measured_by_their_values(tmp_path):
    dense = torch.tensor([[0.0, 3.0], [4.0, 0.0]])
    coo, csr = dense.to_sparse(), dense.to_sparse_csr()
    with collecting(tmp_path) as dump:
        torch.sum(coo)
        out = torch.matmul(csr, torch.ones(2, 1))
    assert torch.equal(out, dense @ torch.ones(2, 1))
    found = dump["Torch.sum.0.forward"]["input_args"][0]
    assert (found["Max"], found["Min"], found["Norm"], found["nnz"]) == (4, 3, 5, 2)
    assert found["shape"] == [2, 2]
    assert dump["Torch.matmul.0.forward"]["input_args"][0]["layout"] == "torch.sparse_csr"


def test_gradients_of_a_sparse_embedding(tmp_path):
    layer = torch.nn.Embedding(5, 3, sparse=True)
    with collecting(tmp_path, torch.nn.Sequential(layer), level="mix") as dump:
        layer(torch.tensor([1, 1, 4])).sum().backward()
    assert layer.weight.grad.is_sparse
    assert dump["Module.0.Embedding.parameters_grad"]["weight"][0]["layout"] == "torch.sparse_coo"


@pytest.mark.filterwarnings("ignore")
def test_quantized_tensors_are_measured_by_the_values_they_represent(tmp_path):
    plain = torch.tensor([1.0, 2.0, -0.5])
    with collecting(tmp_path) as dump:
        quantized = torch.quantize_per_tensor(plain, 0.5, 0, torch.qint8)
        torch.clone(quantized)
    found = dump["Torch.clone.0.forward"]["input_args"][0]
    assert (found["dtype"], found["Max"], found["Min"], found["quantized"]) == ("torch.qint8", 2, -0.5, True)


def test_meta_and_fake_tensors_have_no_numbers_and_break_nothing(tmp_path):
    with collecting(tmp_path) as dump:
        torch.relu(torch.ones(2, 3, device="meta"))
        with FakeTensorMode():
            out = torch.relu(torch.ones(4))
    assert tuple(out.shape) == (4,)
    for number, shape in ((0, [2, 3]), (1, [4])):
        found = dump[f"Torch.relu.{number}.forward"]["output"][0]
        assert (found["shape"], found["Max"]) == (shape, None)
        assert "unreadable" in found
    assert "FakeTensor" in dump["Torch.relu.1.forward"]["output"][0]["type"]


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
@pytest.mark.filterwarnings("ignore")
def test_nested_tensors(tmp_path, layout):
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.full((1, 3), 4.0)], layout=layout)
    with collecting(tmp_path) as dump:
        torch.clone(nested)
    found = dump["Torch.clone.0.forward"]["input_args"][0]
    assert (found["Max"], found["Min"]) == (4, 1)


def test_a_dtensor_is_measured_by_its_local_part(tmp_path, monkeypatch):
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor, Shard, init_device_mesh

    for key, value in {"MASTER_ADDR": "localhost", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(key, value)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        tensor = DTensor.from_local(torch.tensor([[3.0, -4.0]], requires_grad=True), mesh, [Shard(0)])
        with collecting(tmp_path) as dump:
            out = torch.relu(tensor)
            out.to_local().sum().backward()
        dump.directory = dump.directory.with_name("rank0")
        assert not dump.errors
        assert torch.equal(out.to_local().detach(), torch.tensor([[3.0, 0.0]]))
        found = dump["Torch.relu.0.forward"]["input_args"][0]
        assert found["type"].endswith("DTensor")
        assert (found["Max"], found["Min"], found["local_shape"]) == (3, -4, [1, 2])
    finally:
        dist.destroy_process_group()
        os.environ.pop("RANK", None)


def test_vmap_and_func_grad_give_their_own_result(tmp_path):
    model = torch.nn.Linear(3, 1)
    parameters = {name: value.detach() for name, value in model.named_parameters()}

    def loss(parameters, x):
        return torch.tanh(functional_call(model, parameters, (x,))).sum()

    batch = torch.randn(4, 3)
    expected = vmap(grad(loss), in_dims=(None, 0))(parameters, batch)
    hessian = torch.func.hessian(lambda x: torch.sin(x).sum())(batch[0])
    with collecting(tmp_path) as dump:
        found = vmap(grad(loss), in_dims=(None, 0))(parameters, batch)
        again = torch.func.hessian(lambda x: torch.sin(x).sum())(batch[0])
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert torch.equal(hessian, again)
    assert dump["Torch.tanh.0.forward"]["input_args"][0]["wrapped"] == "functorch"


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_fp8_tensors_stay_intact(tmp_path, task):
    tensor = torch.randn(4, 4).to(torch.float8_e4m3fn)
    before = tensor.view(torch.uint8).clone()
    with collecting(tmp_path, task=task) as dump:
        out = torch.clone(tensor)
        wide = torch.add(tensor.float(), 1)
    assert out.dtype == torch.float8_e4m3fn
    assert torch.equal(tensor.view(torch.uint8), before)
    assert_same(dump["Torch.clone.0.forward"]["output"][0], tensor)
    assert torch.equal(wide, tensor.float() + 1)


def test_a_subclass_with_its_own_torch_function_is_left_to_it(tmp_path):
    seen = []

    class Logged(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            seen.append(func.__name__)
            return super().__torch_function__(func, types, args, kwargs or {})

    tensor = torch.ones(2).as_subclass(Logged)
    with collecting(tmp_path) as dump:
        out = torch.relu(tensor)
    assert seen == ["relu"]
    assert type(out) is Logged
    assert dump["Torch.relu.0.forward"]["output"][0]["Max"] == 1


def test_scripted_and_traced_modules_run_and_are_one_record(tmp_path):
    class Net(torch.nn.Module):
        def forward(self, x):
            return F.relu(x) + 1

    scripted = torch.jit.script(Net())
    traced = torch.jit.trace(Net(), torch.ones(2))
    model = torch.nn.Sequential(scripted, traced, torch.nn.Tanh())
    x = torch.randn(2, requires_grad=True)
    expected = model(x)
    with collecting(tmp_path, model, level="mix") as dump:
        out = model(x)
        out.sum().backward()
    assert torch.equal(out, expected)
    assert_same(dump["Module.0.Net.forward.0"]["output"][0], F.relu(x) + 1)
    assert "Module.2.Tanh.forward.0" in dump.names
    assert "Module.0.Net.backward.0" in dump.names


def test_operators_of_torch_library_are_recorded_and_distrusted(tmp_path):
    @torch.library.custom_op("msprobe_test::double", mutates_args=())
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @torch.library.custom_op("msprobe_test::behind", mutates_args=())
    def behind(x: torch.Tensor) -> torch.Tensor:
        x.data.add_(7)  # what it does not say
        return x.clone()

    double.register_autograd(lambda ctx, grad: grad * 2)
    x = torch.ones(3, requires_grad=True)
    with collecting(tmp_path) as dump:
        torch.ops.msprobe_test.double(x).sum().backward()
        y = torch.zeros(2)
        torch.relu(y)
        torch.ops.msprobe_test.behind(y)
        torch.relu(y)
    assert_same(dump["Ops.msprobe_test.double.0.forward"]["output"][0], torch.full((3,), 2.0))
    assert_same(dump["Ops.msprobe_test.double.0.backward"]["output"][0], torch.full((3,), 2.0))
    assert dump["Torch.relu.1.forward"]["input_args"][0]["Max"] == 7


def test_registered_apis_are_recorded_until_restored(tmp_path):
    import types

    from msprobe.pytorch import PrecisionDebugger

    library = types.SimpleNamespace(fused=lambda x, scale=1: torch.relu(x) * scale, __name__="library")
    original = library.fused
    x = torch.randn(3, requires_grad=True)
    with collecting(tmp_path) as dump:
        debugger = PrecisionDebugger._current
        debugger.register_custom_api(library, "fused")
        library.fused(x, scale=2).sum().backward()
        debugger.restore_custom_api(library, "fused")
        library.fused(x)
    assert library.fused is original
    assert "library.fused.0.forward" in dump.names
    assert_same(dump["library.fused.0.backward"]["output"][0], 2.0 * (x > 0))
    assert "library.fused.1.forward" not in dump.names
    assert dump["library.fused.0.forward"]["input_kwargs"]["scale"]["value"] == 2
    assert sum(name.startswith("Torch.relu") and name.endswith("forward") for name in dump.names) == 1


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_lazy_modules_are_recorded_from_their_first_call_on(tmp_path, task):
    model = nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.LazyLinear(1))
    x = torch.randn(3, 4)
    with collecting(tmp_path, model, level="mix", task=task) as dump:
        model(x).sum().backward()
    first = dump["Module.0.LazyLinear.forward.0"]
    assert_same(first["input_args"][0], x)
    assert_same(first["parameters"]["weight"], model[0].weight)
    assert_same(dump["Module.0.LazyLinear.parameters_grad"]["weight"][0], model[0].weight.grad)
    assert_same(dump["Module.2.LazyLinear.parameters_grad"]["bias"][0], model[2].bias.grad)


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_a_gradient_that_is_zero_without_memory_is_recorded_as_the_zeros_that_it_is(tmp_path, task):
    x = torch.randn(3, 2, requires_grad=True)
    with collecting(tmp_path, task=task) as dump:
        torch.sgn(x).sum().backward()
    found = dump["Torch.sgn.0.backward"]["output"][0]
    assert_same(found, x.grad)
    assert found["shape"] == [3, 2]
    if task == "tensor":
        assert torch.equal(torch.load(dump.directory / "dump_tensor_data" / found["data_name"]), torch.zeros(3, 2))
